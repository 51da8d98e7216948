"""The gated delta rule: a linear attention whose state is a matrix that decays, and is corrected towards each new value.

Per head, with S [K, V] the state, q and k [K], v [V], decay exp(g) in (0, 1], step size beta in (0, 1):

    S_t = exp(g_t) · S_{t−1} + k_t ⊗ beta_t · (v_t − k_tᵀ exp(g_t) S_{t−1}),        o_t = S_tᵀ q_t

(Yang, Kautz, Hatamizadeh: Gated Delta Networks, ICLR 2025, equation 10.) Queries and keys are normalised to length 1, queries divided by √K.
`recurrent_delta_rule` is that definition; `chunked_delta_rule` computes the same by blocks of positions (their section 3.3, the WY form).
"""

from __future__ import annotations

import torch

CHUNK = 64  # positions solved together: the cost inside a chunk grows with its square, the loop over chunks with their number
NORM_EPSILON = 1e-6


def recurrent_delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """The definition, one position after the other. q, k [B, H, T, K]; v [B, H, T, V]; g, beta [B, H, T] → [B, H, T, V], float32."""
    q, k, v, g, beta = _prepared(q, k, v, g, beta)
    state = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])
    out = []
    for t in range(v.shape[2]):
        state = state * g[:, :, t].exp()[..., None, None]
        missing = v[:, :, t] - torch.einsum("bhk,bhkv->bhv", k[:, :, t], state)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, :, t], missing * beta[:, :, t, None])
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], state))
    return torch.stack(out, dim=2)


def chunked_delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, chunk: int = CHUNK) -> torch.Tensor:
    """As `recurrent_delta_rule`, `chunk` positions at a time (fewer where the sequences are shorter).

    Within a chunk the corrections u solve a unit lower-triangular system: u_i + Σ_{j<i} beta_i (k_i·k_j) exp(G_i − G_j) u_j = beta_i v_i − …, with
    G the decays' running sum; what the chunk reads of the state before it (`w`) solves the same system.
    """
    length = v.shape[2]
    chunk = min(chunk, length)
    padding = -length % chunk
    q, k, v, g, beta = (
        torch.nn.functional.pad(x, (0, 0, 0, padding) if x.dim() == 4 else (0, padding)).unflatten(2, (-1, chunk)) for x in _prepared(q, k, v, g, beta)
    )
    total = g.cumsum(-1)  # [B, H, N, C]: log decay from the chunk's start up to and with each position
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    between = (total[..., :, None] - total[..., None, :]).masked_fill(later, float("-inf")).exp()  # [.., i, j]: decay from j to i, 0 for j > i
    k_beta = k * beta[..., None]
    system = (k_beta @ k.transpose(-1, -2)) * between  # its diagonal and what is above are not read
    known = torch.cat((v * beta[..., None], k_beta * total.exp()[..., None]), dim=-1)
    u, w = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True).split((v.shape[-1], k.shape[-1]), dim=-1)
    inside = (q @ k.transpose(-1, -2)) * between
    from_state = q * total.exp()[..., None]
    to_end = k * (total[..., -1:] - total).exp()[..., None]
    state = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])
    out = []
    for n in range(v.shape[2]):
        correction = u[:, :, n] - w[:, :, n] @ state
        out.append(from_state[:, :, n] @ state + inside[:, :, n] @ correction)
        state = state * total[:, :, n, -1, None, None].exp() + to_end[:, :, n].transpose(-1, -2) @ correction
    return torch.stack(out, dim=2).flatten(2, 3)[:, :, :length]


def _prepared(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """In float32, queries and keys of length 1, queries scaled."""
    q, k, v, g, beta = (x.float() for x in (q, k, v, g, beta))
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPSILON) for x in (q, k))
    return q * k.shape[-1] ** -0.5, k, v, g, beta
