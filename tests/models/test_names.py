"""Names and arrangements of parameters that Megatron has elsewhere: TransformerEngine's joined norms and numbered experts, grouped experts in one parameter."""

from __future__ import annotations

import pytest
import torch

from tests.models.families import BY_NAME
from tests.models.identity import tensors_of
from vime.models.base import Layout
from vime.models.hf_io import copy_into
from vime.models.registry import family_for

CONFIG = BY_NAME["qwen3-moe"].config
HIDDEN, FFN, EXPERTS = CONFIG["hidden_size"], CONFIG["moe_intermediate_size"], CONFIG["num_experts"]


def pieces(name: str, layout: Layout, config: dict = CONFIG):
    return family_for(config).weight_table(config).pieces(name, layout)


def test_local_layer_and_expert_numbers_become_the_models():
    layout = Layout(pp=1, pp_size=2, layer_offset=1, dp=1, dp_size=2, ep_size=2)
    for name in ("decoder.layers.0.mlp.experts.local_experts.3.linear_fc2.weight", "decoder.layers.0.mlp.experts.linear_fc2.weight3"):
        (piece,) = pieces(name, layout)
        assert piece.hf_name == "model.layers.1.mlp.experts.7.down_proj.weight"
        assert piece.owner_rank(layout) == layout.rank() == 3


@pytest.mark.parametrize(
    ("joined", "own"),
    [
        ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
        ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
        ("self_attention.linear_q_up_proj.layer_norm_weight", "self_attention.q_layernorm.weight"),
        ("self_attention.linear_kv_up_proj.layer_norm_weight", "self_attention.kv_layernorm.weight"),
    ],
)
def test_a_norm_joined_to_its_linear_is_the_norm(joined, own):
    config = BY_NAME["deepseek-v3" if "up_proj" in joined else "qwen3"].config
    (one,), (other,) = pieces(f"decoder.layers.0.{joined}", Layout(), config), pieces(f"decoder.layers.0.{own}", Layout(), config)
    assert (one.hf_name, one.hf_slice) == (other.hf_name, other.hf_slice)


@pytest.mark.parametrize(
    "layout",
    [Layout(), Layout(dp=1, dp_size=2, ep_size=2), Layout(tp=1, tp_size=2, etp_size=2), Layout(tp=1, tp_size=2, dp=1, dp_size=2, ep_size=2, etp_size=2)],
)
def test_grouped_experts_compute_what_single_ones_do(layout):
    """Megatron's GroupedMLP reads weight1 as [experts, hidden, 2 ffn] and weight2 as [experts, ffn, hidden]. Its kernels run on CUDA alone; its forward here
    is in plain torch."""
    count, width = EXPERTS // layout.ep_size, FFN // layout.etp_size
    draw = {"dtype": torch.float64, "generator": torch.Generator().manual_seed(0)}  # in double precision the order of sums does not show
    tensors = {name: torch.randn(tensor.shape, **draw) for name, tensor in tensors_of(CONFIG).items()}
    weight1, weight2 = (torch.full(shape, torch.nan, dtype=torch.float64) for shape in ((HIDDEN, count * 2 * width), (count * width, HIDDEN)))
    for name, weight in (("weight1", weight1), ("weight2", weight2)):
        for piece in pieces(f"decoder.layers.1.mlp.experts.{name}", layout):
            assert piece.expert
            copy_into(weight, piece, tensors[piece.hf_name][piece.hf_slice])
        assert not weight.isnan().any()
    x = torch.randn(5, HIDDEN, **draw)
    rows = slice(layout.etp * width, (layout.etp + 1) * width)
    for local in range(count):
        hidden = x @ weight1.view(count, HIDDEN, -1)[local]
        gate, up = hidden.chunk(2, -1)
        ours = (torch.nn.functional.silu(gate) * up) @ weight2.view(count, -1, HIDDEN)[local]
        prefix = f"model.layers.1.mlp.experts.{layout.ep * count + local}."
        hf_gate, hf_up, hf_down = (tensors[f"{prefix}{part}_proj.weight"] for part in ("gate", "up", "down"))
        theirs = (torch.nn.functional.silu(x @ hf_gate[rows].t()) * (x @ hf_up[rows].t())) @ hf_down[:, rows].t()
        torch.testing.assert_close(ours, theirs)


def test_an_unknown_parameter_is_named():
    with pytest.raises(KeyError, match=r"decoder\.layers\.0\.mlp\.adapter\.weight"):
        pieces("decoder.layers.0.mlp.adapter.weight", Layout())


def test_experts_grid_numbers_ranks_as_megatron_does():
    """Order tp-cp-ep-dp-pp: expert tensor varies fastest, then expert, then expert data."""
    owners = []
    for rank in range(16):
        layout = Layout(tp=rank % 2, tp_size=2, dp=rank // 2 % 4, dp_size=4, pp=rank // 8, pp_size=2, ep_size=2, etp_size=2)
        assert layout.rank() == rank
        owners.append((layout.etp, layout.ep, layout.expert_rank(etp=layout.etp, ep=layout.ep)))
    assert owners[:8] == [(0, 0, 0), (1, 0, 1), (0, 1, 2), (1, 1, 3)] * 2
    assert [owner for _, _, owner in owners[8:]] == [8, 9, 10, 11] * 2
