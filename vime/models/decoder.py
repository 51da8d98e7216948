"""What a decoder-only language model is made of, read from config.json once, and the weight-table entries that follow from it.

Families differ in how config.json names these facts and in Hugging Face's tensor names; everything after that is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from vime.models.rope import Rope
from vime.models.rules import Columns, Heads, OfExpert, Rows, Rule, Stack, Vocabulary, Whole


@dataclass(frozen=True)
class GroupedQuery:
    """Attention with grouped queries. `qk_norm`: RMSNorm of each head, or of all heads together before they are split ("full")."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["head", "full"] | None = None


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): low-rank queries (`q_rank`, None: full) and a low-rank joint latent of keys and values,
    with a rotary part apart from it. A query head has nope + rope dimensions, a value head `value`."""

    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Experts:
    """The routed experts of a sparse layer. `groups`, `groups_kept`: group-limited routing (DeepSeek-V3), 1 and 1 without. `scale`: factor on the weights
    of the chosen ones. `shared`: width of the shared expert, 0 without one."""

    count: int
    top_k: int
    ffn: int
    score: Literal["softmax", "sigmoid"]
    normalise: bool = True
    bias: bool = False  # a correction added to the scores for choosing alone
    scale: float = 1.0
    groups: int = 1
    groups_kept: int = 1
    shared: int = 0
    shared_gate: bool = False


@dataclass(frozen=True)
class Names:
    """Hugging Face's names of a sparse layer's tensors, below the layer's prefix; `{e}` is the expert."""

    router: str = "mlp.gate.weight"
    bias: str = "mlp.gate.e_score_correction_bias"
    gate: str = "mlp.experts.{e}.gate_proj.weight"
    up: str = "mlp.experts.{e}.up_proj.weight"
    down: str = "mlp.experts.{e}.down_proj.weight"
    shared: str = "mlp.shared_experts."
    shared_gate: str = "mlp.shared_expert_gate.weight"


@dataclass(frozen=True)
class Decoder:
    """A decoder. `sparse[i]`: layer i has routed experts. `mtp`: multi-token-prediction layers after the last. `prefix`: of the tensor names."""

    layers: int
    hidden: int
    ffn: int  # of the dense layers
    vocab: int
    eps: float
    tied: bool
    attention: GroupedQuery | Latent
    rope: Rope
    max_positions: int
    experts: Experts | None = None
    sparse: tuple[bool, ...] = ()
    mlp_bias: bool = False
    mtp: int = 0
    names: Names = field(default_factory=Names)
    prefix: str = "model."
    head: str = "lm_head.weight"

    def is_sparse(self, layer: int) -> bool:
        """MTP layers (numbered from `layers` on) are like the last layer."""
        return bool(self.sparse) and self.sparse[min(layer, self.layers - 1)]


Rules = dict[str, Rule]
LayerRules = Callable[[Decoder, int, str], Rules]


def decoder_rules(decoder: Decoder, *, mtp: bool, local: str = "", layer: LayerRules | None = None) -> Rules:
    """The whole model's entries, under the names of Megatron's GPTModel (`local` before them). `layer` makes those of one layer, given its number and its
    Hugging Face prefix."""
    layer = layer or layer_rules
    vocabulary, prefix = (decoder.vocab, decoder.hidden), decoder.prefix
    extra = [f"{prefix}layers.{decoder.layers + index}." for index in range(decoder.mtp)] if mtp else []
    embedding, head = f"{prefix}embed_tokens.weight", decoder.head
    second = mtp_aliases(decoder) if mtp else {}  # published checkpoints hold embedding and head a second time, in their MTP layers
    of_embedding, of_head = (tuple(alias for alias, name in second.items() if name == original) for original in (embedding, head))
    rules: Rules = {f"{local}embedding.word_embeddings.weight": Vocabulary(embedding, vocabulary, aliases=of_embedding)}
    for index in range(decoder.layers):
        rules |= {f"{local}decoder.layers.{index}.{name}": rule for name, rule in layer(decoder, index, f"{prefix}layers.{index}.").items()}
    rules[f"{local}decoder.final_layernorm.weight"] = Whole(f"{prefix}norm.weight", (decoder.hidden,))
    # with tied embeddings only a last stage apart from the first holds an output layer: a copy of the embedding
    rules[f"{local}output_layer.weight"] = Vocabulary(embedding, vocabulary) if decoder.tied else Vocabulary(head, vocabulary, home=-1, aliases=of_head)
    for index, hf in enumerate(extra):
        rules |= {f"{local}mtp.layers.{index}.{name}": rule for name, rule in mtp_rules(decoder, index, hf, layer).items()}
    return rules


def mtp_rules(decoder: Decoder, index: int, hf: str, layer: LayerRules) -> Rules:
    """One multi-token-prediction layer (DeepSeek-V3, arXiv 2412.19437, section 2.2): two norms, a projection of [embedding, hidden], a layer, a norm. Its
    embedding and head are the model's own."""
    hidden = decoder.hidden
    rules: Rules = {
        "enorm.weight": Whole(f"{hf}enorm.weight", (hidden,)),
        "hnorm.weight": Whole(f"{hf}hnorm.weight", (hidden,)),
        "eh_proj.weight": Rows(f"{hf}eh_proj.weight", (hidden, 2 * hidden)),
        "final_layernorm.weight": Whole(f"{hf}shared_head.norm.weight", (hidden,)),
    }
    return rules | {f"transformer_layer.{name}": rule for name, rule in layer(decoder, decoder.layers + index, hf).items()}


def mtp_aliases(decoder: Decoder) -> dict[str, str]:
    """The second names of embedding and head that checkpoints give to an MTP layer."""
    out: dict[str, str] = {}
    head = f"{decoder.prefix}embed_tokens.weight" if decoder.tied else decoder.head
    for index in range(decoder.layers, decoder.layers + decoder.mtp):
        hf = f"{decoder.prefix}layers.{index}."
        out |= {f"{hf}embed_tokens.weight": f"{decoder.prefix}embed_tokens.weight", f"{hf}shared_head.head.weight": head}
    return out


def layer_rules(decoder: Decoder, index: int, hf: str) -> Rules:
    """One layer's entries, by name below the layer."""
    rules: Rules = {"input_layernorm.weight": Whole(f"{hf}input_layernorm.weight", (decoder.hidden,))}
    rules |= latent_rules(decoder, hf) if isinstance(decoder.attention, Latent) else grouped_rules(decoder, hf)
    rules["pre_mlp_layernorm.weight"] = Whole(f"{hf}post_attention_layernorm.weight", (decoder.hidden,))
    return rules | (expert_rules(decoder, hf) if decoder.is_sparse(index) else mlp_rules(decoder, hf))


def grouped_rules(decoder: Decoder, hf: str) -> Rules:
    attention, hidden = decoder.attention, decoder.hidden
    assert isinstance(attention, GroupedQuery)
    hf, own, dim = f"{hf}self_attn.", "self_attention.", attention.head_dim
    counts = (("q", attention.heads // attention.kv_heads), ("k", 1), ("v", 1))

    def heads(kind: str, rest: tuple[int, ...]) -> Heads:
        return Heads(tuple((f"{hf}{part}_proj.{kind}", count) for part, count in counts), attention.kv_heads, dim, rest)

    rules: Rules = {f"{own}linear_qkv.weight": heads("weight", (hidden,))}
    if attention.qkv_bias:
        rules[f"{own}linear_qkv.bias"] = heads("bias", ())
    if attention.qk_norm == "head":
        rules |= {f"{own}{part}_layernorm.weight": Whole(f"{hf}{part}_norm.weight", (dim,)) for part in ("q", "k")}
    elif attention.qk_norm == "full":
        for part, count in (("q", attention.heads), ("k", attention.kv_heads)):
            rules[f"{own}{part}_layernorm.weight"] = Rows(f"{hf}{part}_norm.weight", (count * dim,))
    rules[f"{own}linear_proj.weight"] = Columns(f"{hf}o_proj.weight", (hidden, attention.heads * dim))
    if attention.out_bias:
        rules[f"{own}linear_proj.bias"] = Whole(f"{hf}o_proj.bias", (hidden,))
    return rules


def latent_rules(decoder: Decoder, hf: str) -> Rules:
    attention, hidden = decoder.attention, decoder.hidden
    assert isinstance(attention, Latent)
    hf, own = f"{hf}self_attn.", "self_attention."
    # TransformerEngine's layers hold the down-projections on every tensor-parallel rank
    down: type[Whole] | type[Rows] = Whole if has_transformer_engine() else Rows
    query = attention.heads * (attention.nope + attention.rope)
    rules: Rules = {}
    if attention.q_rank is None:
        rules[f"{own}linear_q_proj.weight"] = Rows(f"{hf}q_proj.weight", (query, hidden))
    else:
        rules |= {
            f"{own}linear_q_down_proj.weight": down(f"{hf}q_a_proj.weight", (attention.q_rank, hidden)),
            f"{own}q_layernorm.weight": Whole(f"{hf}q_a_layernorm.weight", (attention.q_rank,)),
            f"{own}linear_q_up_proj.weight": Rows(f"{hf}q_b_proj.weight", (query, attention.q_rank)),
        }
    up = attention.heads * (attention.nope + attention.value)
    return rules | {
        f"{own}linear_kv_down_proj.weight": down(f"{hf}kv_a_proj_with_mqa.weight", (attention.kv_rank + attention.rope, hidden)),
        f"{own}kv_layernorm.weight": Whole(f"{hf}kv_a_layernorm.weight", (attention.kv_rank,)),
        f"{own}linear_kv_up_proj.weight": Rows(f"{hf}kv_b_proj.weight", (up, attention.kv_rank)),
        f"{own}linear_proj.weight": Columns(f"{hf}o_proj.weight", (hidden, attention.heads * attention.value)),
    }


def mlp_rules(decoder: Decoder, hf: str) -> Rules:
    shape, hf = (decoder.ffn, decoder.hidden), f"{hf}mlp."
    rules: Rules = {
        "mlp.linear_fc1.weight": Stack((f"{hf}gate_proj.weight", f"{hf}up_proj.weight"), shape),
        "mlp.linear_fc2.weight": Columns(f"{hf}down_proj.weight", shape[::-1]),
    }
    if decoder.mlp_bias:
        rules["mlp.linear_fc1.bias"] = Stack((f"{hf}gate_proj.bias", f"{hf}up_proj.bias"), (decoder.ffn,))
        rules["mlp.linear_fc2.bias"] = Whole(f"{hf}down_proj.bias", (decoder.hidden,))
    return rules


def expert_rules(decoder: Decoder, hf: str) -> Rules:
    experts, names, hidden = decoder.experts, decoder.names, decoder.hidden
    assert experts is not None
    rules = router_rules(decoder, hf)
    shape = (experts.ffn, hidden)
    for index in range(experts.count):
        own = f"mlp.experts.{index}."
        rules[f"{own}linear_fc1.weight"] = OfExpert(Stack((hf + names.gate.format(e=index), hf + names.up.format(e=index)), shape))
        rules[f"{own}linear_fc2.weight"] = OfExpert(Columns(hf + names.down.format(e=index), shape[::-1]))
    return rules | shared_rules(decoder, hf)


def router_rules(decoder: Decoder, hf: str) -> Rules:
    experts, names = decoder.experts, decoder.names
    assert experts is not None
    rules: Rules = {"mlp.router.weight": Whole(hf + names.router, (experts.count, decoder.hidden))}
    if experts.bias:
        rules["mlp.router.expert_bias"] = Whole(hf + names.bias, (experts.count,))
    return rules


def shared_rules(decoder: Decoder, hf: str) -> Rules:
    experts, names = decoder.experts, decoder.names
    assert experts is not None
    if not experts.shared:
        return {}
    shape, base = (experts.shared, decoder.hidden), hf + names.shared
    rules: Rules = {
        "mlp.shared_experts.linear_fc1.weight": Stack((f"{base}gate_proj.weight", f"{base}up_proj.weight"), shape),
        "mlp.shared_experts.linear_fc2.weight": Columns(f"{base}down_proj.weight", shape[::-1]),
    }
    if experts.shared_gate:
        rules["mlp.shared_experts.gate_weight"] = Whole(hf + names.shared_gate, (1, decoder.hidden))
    return rules


def has_transformer_engine() -> bool:
    """Whether TransformerEngine is installed; without it Megatron's local layers and vime's own packed attention are used."""
    import importlib.util

    return importlib.util.find_spec("transformer_engine") is not None
