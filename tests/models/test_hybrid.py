"""Qwen3.5's own entries of the weight table and its draft layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.models import hugging_face, megatron
from tests.models.families import BY_NAME
from tests.models.identity import check_identity
from tests.training.ranks import one_rank
from vime.config.tree import MtpConfig
from vime.errors import UserError
from vime.models.base import Layout, Piece
from vime.models.hf_io import copy_into
from vime.models.qwen3_5 import GatedHeads, Joined, Qwen3_5, Span
from vime.models.registry import family_for
from vime.models.rules import Rule

CAUGHT = 2e-3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[torch.Tensor]]:
    directory = hugging_face.write(BY_NAME["qwen3-5"].config, tmp_path_factory.mktemp("hybrid") / "twin")
    return directory, hugging_face.logits(directory, megatron.SEQUENCES)


# ---- slices ----------------------------------------------------------------------------------------------------------------------------------------


def numbered(rule: Rule) -> dict[str, torch.Tensor]:
    """Tensors whose every element is a number of its own."""
    shapes = enumerate(rule.tensors().items())
    return {name: torch.arange(torch.Size(shape).numel(), dtype=torch.float64).view(shape) + 1e6 * number for number, (name, shape) in shapes}


def filled(rule: Rule, sizes: list[int], rest: tuple[int, ...], ranks: int) -> list[torch.Tensor]:
    """Each rank's parameter, filled by the rule from `numbered`."""
    tensors = numbered(rule)
    out = []
    for rank in range(ranks):
        parameter = torch.full((sum(sizes) // ranks, *rest), float("nan"), dtype=torch.float64)
        for piece in rule.pieces(Layout(tp=rank, tp_size=ranks)):
            copy_into(parameter, piece, tensors[piece.hf_name][piece.hf_slice])
        assert not parameter.isnan().any()
        out.append(parameter)
    return out


@given(keys=st.integers(1, 3), values=st.integers(1, 3), heads=st.integers(1, 3), ranks=st.sampled_from([1, 2, 4]), rest=st.sampled_from([(3,), (1, 4)]))
@settings(max_examples=60, deadline=None)
def test_every_rank_holds_its_share_of_each_part_of_a_fused_projection(keys, values, heads, ranks, rest):
    q, v, h = keys * ranks, values * ranks, heads * ranks
    qkv = (2 * q + v, *rest)
    parts = [("qkv", qkv, 0, q), ("qkv", qkv, q, q), ("qkv", qkv, 2 * q, v), ("z", (v, *rest), 0, v), ("b", (h, *rest), 0, h)]
    rule = Joined(tuple(Span(*part) for part in parts))
    tensors = {
        name: torch.arange(torch.Size(shape).numel(), dtype=torch.float64).view(shape) + 1e6 * number
        for number, (name, shape) in enumerate(rule.tensors().items())
    }
    shares = filled(rule, [q, q, v, v, h], rest, ranks)
    for rank, parameter in enumerate(shares):
        expected = [tensors[name][start + rank * size // ranks : start + (rank + 1) * size // ranks] for name, _, start, size in parts]
        assert torch.equal(parameter, torch.cat(expected))


@given(each=st.integers(1, 3), groups=st.integers(1, 2), ranks=st.sampled_from([1, 2]), dim=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_queries_and_their_gates_are_where_megatron_reads_them(each, groups, ranks, dim):
    groups, hidden = groups * ranks, 2
    heads = each * groups
    rule = GatedHeads("", heads, groups, dim, hidden)
    q, k, v = numbered(rule).values()
    for rank, parameter in enumerate(filled(rule, [(2 * heads + 2 * groups) * dim], (hidden,), ranks)):
        local = parameter.view(groups // ranks, 2 * each + 2, dim, hidden)
        for index in range(groups // ranks):
            group = rank * groups // ranks + index
            for head in range(each):
                both = q.view(heads, 2, dim, hidden)[group * each + head]
                assert torch.equal(local[index, head], both[0]) and torch.equal(local[index, each + head], both[1])
            assert torch.equal(local[index, 2 * each], k.view(groups, dim, hidden)[group]) and torch.equal(
                local[index, 2 * each + 1], v.view(groups, dim, hidden)[group]
            )


@pytest.mark.parametrize("layout", [{"tensor": 2}, {"tensor": 2, "pipeline": 2, "sequence_parallel": True}])
def test_more_value_heads_than_key_heads_keep_together(layout):
    changes = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8, "linear_value_head_dim": 12}
    check_identity({**BY_NAME["qwen3-5"].config, **changes}, layout)


@pytest.mark.parametrize(
    ("changes", "parallel", "message"),
    [
        (
            {"linear_num_key_heads": 3, "linear_num_value_heads": 6},
            {"tensor": 2},
            r"parallel.tensor 2 does not divide .* linear attention's key heads \(3\)",
        ),
        ({"linear_num_value_heads": 5}, {}, "linear_num_value_heads 5 is no multiple of linear_num_key_heads 2"),
        ({"layer_types": ["linear_attention"] * 3}, {}, "layer_types has 3 entries for 4 layers"),
        ({"layer_types": ["linear_attention", "sliding", "full_attention", "full_attention"]}, {}, "among them 'sliding'"),
        ({"mtp_num_hidden_layers": 2}, {}, "mtp_num_hidden_layers 2"),
        ({"hidden_act": "gelu"}, {}, "hidden_act 'gelu' is not supported by the qwen3-5 family"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_numbers(changes, parallel, message):
    with pytest.raises(UserError, match=message):
        check_identity({**BY_NAME["qwen3-5"].config, **changes}, parallel)


# ---- faults ----------------------------------------------------------------------------------------------------------------------------------------


def spans_exchanged(first: int, second: int) -> Callable[[Rule], Rule]:
    def change(rule: Rule) -> Rule:
        assert isinstance(rule, Joined)
        spans = list(rule.spans)
        spans[first], spans[second] = spans[second], spans[first]
        return Joined(tuple(spans))

    return change


class NotInterleaved(GatedHeads):
    """A group's queries, then its gates, as if q_proj did not hold each query head beside its gate."""

    def pieces(self, layout: Layout) -> list[Piece]:
        q, k, v = super().pieces(layout)
        each = self.heads // self.groups
        return [dataclasses.replace(q, view=lambda weight: weight.view(self.groups, 2 * each + 2, self.dim, self.hidden)[:, : 2 * each]), k, v]


def not_interleaved(rule: Rule) -> Rule:
    assert isinstance(rule, GatedHeads)
    return NotInterleaved(**{field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)})


FAULTS: dict[str, tuple[str, Callable[[Rule], Rule]]] = {
    "q and k of the projection": ("in_proj.weight", spans_exchanged(0, 1)),
    "z and v of the projection": ("in_proj.weight", spans_exchanged(2, 3)),
    "beta and alpha": ("in_proj.weight", spans_exchanged(4, 5)),
    "q and k of the convolution": ("conv1d.weight", spans_exchanged(0, 1)),
    "queries and gates": ("linear_qkv.weight", not_interleaved),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_parts_exchanged_in_the_table_show(fault, model, monkeypatch):
    directory, expected = model
    suffix, change = FAULTS[fault]
    original = Qwen3_5.rules
    names: list[str] = []

    def planted(self: Any, decoder: Any, *, mtp: bool) -> dict[str, Rule]:
        rules = original(self, decoder, mtp=mtp)
        names[:] = [name for name in rules if name.endswith(suffix)]
        return {**rules, **{name: change(rules[name]) for name in names}}

    monkeypatch.setattr(Qwen3_5, "rules", planted)
    assert megatron.gap(directory, expected) > CAUGHT
    assert names


@pytest.mark.parametrize(("first", "second"), [("dt_bias", "A_log"), ("input_layernorm.weight", "pre_mlp_layernorm.weight")])
def test_vectors_exchanged_show(first, second, model, monkeypatch):
    directory, expected = model
    original = Qwen3_5.rules

    def planted(self: Any, decoder: Any, *, mtp: bool) -> dict[str, Rule]:
        rules = original(self, decoder, mtp=mtp)
        one, other = (next(name for name in rules if name.endswith(suffix)) for suffix in (first, second))
        return {**rules, one: rules[other], other: rules[one]}

    monkeypatch.setattr(Qwen3_5, "rules", planted)
    assert megatron.gap(directory, expected) > CAUGHT


# ---- multi-token prediction ------------------------------------------------------------------------------------------------------------------------


def with_draft(directory: Path, out: Path) -> Path:
    """The checkpoint with a draft layer beside it."""
    config = BY_NAME["qwen3-5"].config
    table = family_for(config).weight_table(config, mtp=True)
    draw = torch.Generator().manual_seed(5)
    draft = {}
    for name in sorted(table.draft):
        noise = torch.randn(table.shapes[name], generator=draw)
        draft[name] = noise * 0.1 if noise.dim() == 1 else noise * noise.shape[-1] ** -0.5 * 1.5
    out.mkdir()
    for file in directory.glob("*.json"):
        (out / file.name).write_bytes(file.read_bytes())
    save_file({**load_file(directory / "model.safetensors"), **draft}, out / "model.safetensors", metadata={"format": "pt"})
    return out


@torch.no_grad()
def draft_of_hugging_face(directory: Path, sequence: list[int]) -> torch.Tensor:
    """float32[len − 1, V]: from the model's hidden state at t and token t + 1, with Hugging Face's own layer and norms."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

    main = hugging_face.auto_class(BY_NAME["qwen3-5"].config).from_pretrained(directory, dtype=torch.float32).eval()
    tensors = {name.removeprefix("mtp."): tensor for name, tensor in load_file(directory / "model.safetensors").items() if name.startswith("mtp.")}
    config = main.config
    layer = Qwen3_5DecoderLayer(config, config.layer_types.index("full_attention")).eval()
    layer.load_state_dict({name.removeprefix("layers.0."): tensor for name, tensor in tensors.items() if name.startswith("layers.0.")})

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        module = Qwen3_5RMSNorm(config.hidden_size, config.rms_norm_eps)
        module.weight.copy_(tensors[f"{name}.weight"])
        return module(x)

    hidden = main.model(torch.tensor([sequence])).last_hidden_state[:, :-1]
    embedded = main.model.embed_tokens(torch.tensor([sequence[1:]]))
    joined = torch.cat([norm("pre_fc_norm_embedding", embedded), norm("pre_fc_norm_hidden", hidden)], dim=-1) @ tensors["fc.weight"].T
    positions = torch.arange(len(sequence) - 1)[None, None].expand(3, 1, -1)
    rotary = main.model.rotary_emb(joined, positions)
    future = torch.full((len(sequence) - 1, len(sequence) - 1), float("-inf")).triu(1)[None, None]
    return main.lm_head(norm("norm", layer(joined, position_embeddings=rotary, attention_mask=future)))[0]


def test_the_draft_layer_predicts_as_one_of_hugging_faces_modules(model, tmp_path):
    from vime.training.batch import TrainBatch, pack
    from vime.training.forward import inputs

    directory = with_draft(model[0], tmp_path / "draft")
    config = megatron.config_of(directory, train={"mtp": MtpConfig(loss_weight=0.1)})
    sequence = megatron.SEQUENCES[2]
    with one_rank(config) as actor, torch.no_grad():
        micro = pack(TrainBatch.of([sequence], [[0] + [1] * (len(sequence) - 1)]), [0], torch.device("cpu"))
        _, (draft,) = actor.trained.model(**inputs(micro, draft=True))
    assert (draft[0, : len(sequence) - 1] - draft_of_hugging_face(directory, sequence)).abs().max() < 5e-5


def test_a_checkpoint_with_a_draft_layer_trains_without_it(model, tmp_path):
    directory = with_draft(model[0], tmp_path / "draft")
    assert megatron.gap(directory, model[1]) < 5e-5
    family = family_for(BY_NAME["qwen3-5"].config)
    assert family.exported_config(BY_NAME["qwen3-5"].config)["mtp_num_hidden_layers"] == 0
    assert family.exported_config(BY_NAME["qwen3-5-vl"].config)["text_config"]["mtp_num_hidden_layers"] == 0
