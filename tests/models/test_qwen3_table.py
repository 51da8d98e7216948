"""The weight table: every layout holds every element of every tensor, each slice owned once, and what is loaded comes out again bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.models.base import Layout, padded_vocab
from vime.models.hf_io import copy_into
from vime.models.qwen3 import Qwen3
from vime.weights.exporter import gather_plan, shards


class Local:
    """A rank's parameters under Megatron's names, as the exporter sees a model."""

    def __init__(self, hf: dict, layout: Layout, layers: int, fused_norms: bool):
        tp, hidden, dim = layout.tp_size, hf["hidden_size"], hf["head_dim"]
        heads, kv, ffn = hf["num_attention_heads"], hf["num_key_value_heads"], hf["intermediate_size"]
        norms = (
            ("self_attention.linear_qkv.layer_norm_weight", "mlp.linear_fc1.layer_norm_weight")
            if fused_norms
            else ("input_layernorm.weight", "pre_mlp_layernorm.weight")
        )
        per_layer = {
            norms[0]: (hidden,),
            norms[1]: (hidden,),
            "self_attention.linear_qkv.weight": ((heads + 2 * kv) * dim // tp, hidden),
            "self_attention.q_layernorm.weight": (dim,),
            "self_attention.k_layernorm.weight": (dim,),
            "self_attention.linear_proj.weight": (hidden, heads * dim // tp),
            "mlp.linear_fc1.weight": (2 * ffn // tp, hidden),
            "mlp.linear_fc2.weight": (hidden, ffn // tp),
        }
        shapes = {f"decoder.layers.{i}.{name}": shape for i in range(layers) for name, shape in per_layer.items()}
        first, last = layout.pp == 0, layout.pp == layout.pp_size - 1
        rows = padded_vocab(hf["vocab_size"], tp) // tp
        if first:
            shapes["embedding.word_embeddings.weight"] = (rows, hidden)
        if last:
            shapes["decoder.final_layernorm.weight"] = (hidden,)
        if last and (not hf["tie_word_embeddings"] or not first):
            shapes["output_layer.weight"] = (rows, hidden)
        self.weights = {name: torch.full(shape, float("nan")) for name, shape in shapes.items()}

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.weights.items())

    def named_modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        return iter(())


def split(layers: int, stages: int, first: int | None) -> list[int]:
    """Layers of each stage; `first` makes the first stage's count its own."""
    if first is None or stages == 1:
        return [layers // stages] * stages
    return [first] + [(layers - first) // (stages - 1)] * (stages - 1)


def grid(tp: int, dp: int, counts: list[int]) -> list[tuple[Layout, int]]:
    pp = len(counts)
    return [
        (Layout(tp=t, tp_size=tp, pp=p, pp_size=pp, dp=d, dp_size=dp, layer_offset=sum(counts[:p])), counts[p])
        for p in range(pp)
        for d in range(dp)
        for t in range(tp)
    ]


layouts = st.sampled_from([(1, 1, 1, None), (2, 1, 1, None), (4, 2, 1, None), (1, 1, 2, None), (2, 2, 2, None), (2, 1, 2, 1), (1, 2, 3, 2), (4, 1, 4, None)])


@given(layout=layouts, tied=st.booleans(), vocab=st.sampled_from([64, 61, 9]), fused=st.booleans())
@settings(max_examples=60, deadline=None)
def test_load_then_export_is_the_identity_on_every_layout(layout, tied, vocab, fused):
    tp, dp, pp, first = layout
    hf = {
        "model_type": "qwen3",
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 2,
    }
    hf |= {"vocab_size": vocab, "tie_word_embeddings": tied}
    counts = split(4, pp, first)
    counts[-1] += 4 - sum(counts)
    table = Qwen3().weight_table(hf)
    rng = np.random.default_rng(0)
    tensors = {name: torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for name, shape in table.shapes.items()}
    out = {name: torch.full(shape, float("nan")) for name, shape in table.shapes.items()}
    owned: dict[str, int] = dict.fromkeys(tensors, 0)
    ranks = grid(tp, dp, counts)
    assert [place.rank() for place, _ in ranks] == list(range(len(ranks)))  # the owner's number is a global rank
    for place, layers in ranks:
        model = Local(hf, place, layers, fused)
        for name, piece in table.local(model.weights, place):
            copy_into(model.weights[name], piece, tensors[piece.hf_name][piece.hf_slice])
        for shard in shards([model], table, place):
            torch.testing.assert_close(shard.tensor, tensors[shard.hf_name][shard.slice], rtol=0, atol=0)
            if shard.owner_rank == place.rank():
                out[shard.hf_name][shard.slice] = shard.tensor
                owned[shard.hf_name] += shard.tensor.numel()
    for name, tensor in tensors.items():
        assert owned[name] == tensor.numel(), f"{name}: {owned[name]} of {tensor.numel()} elements owned"
        assert torch.equal(out[name], tensor), name


def test_views_write_through_to_the_parameter():
    hf = {
        "model_type": "qwen3",
        "hidden_size": 4,
        "intermediate_size": 6,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "vocab_size": 5,
    }
    table, layout = Qwen3().weight_table(hf), Layout()
    for name, weight in Local({**hf, "tie_word_embeddings": False}, layout, 1, False).weights.items():
        for piece in table.pieces(name, layout):
            piece.view(weight).fill_(1.0)
        assert not torch.isnan(weight).any(), f"{name}: the views leave elements out"


def test_a_missing_slice_is_noticed_before_anything_is_written():
    hf = {
        "model_type": "qwen3",
        "hidden_size": 4,
        "intermediate_size": 6,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "vocab_size": 5,
    }
    table = Qwen3().weight_table(hf)
    only_first_layer = Local({**hf, "tie_word_embeddings": False}, Layout(), 1, False)
    with pytest.raises(ValueError, match="no rank holds model.layers.1"):
        gather_plan(shards([only_first_layer], table, Layout()), list(table.shapes))


def test_an_unknown_parameter_is_refused():
    table = Qwen3().weight_table(
        json.loads('{"hidden_size":4,"intermediate_size":6,"num_hidden_layers":1,"num_attention_heads":2,"head_dim":2,"vocab_size":5}')
    )
    with pytest.raises(KeyError, match="decoder.layers.0.mlp.router.weight|router"):
        table.pieces("decoder.layers.0.mlp.router.weight", Layout())
