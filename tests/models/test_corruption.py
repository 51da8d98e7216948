"""A fault planted in one kind of entry of the weight table, or in one fact of the architecture, is caught by the comparison with Hugging Face.

Load and export read the same table, so a fault in it is consistent with itself: the identity tests cannot see it, a comparison of results can.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.models import hugging_face, megatron
from tests.models.families import BY_NAME, CASES
from tests.training.ranks import one_rank
from vime.models.base import Layout, Piece, rows
from vime.models.decoder import Decoder
from vime.models.registry import family_for
from vime.models.rules import Heads, OfExpert, Rows, Rule, Slab, Stack, same

CAUGHT = 2e-3  # 100 times what parity is held to
Rules = dict[str, Rule]


class SwappedStack(Stack):
    """The first tensor where the second belongs."""

    def pieces(self, layout: Layout) -> list[Piece]:
        right = super().pieces(layout)
        return [dataclasses.replace(piece, view=other.view) for piece, other in zip(right, right[::-1], strict=True)]


def swapped_halves(rule: Rule) -> Rule:
    """gate for up."""
    if isinstance(rule, OfExpert | Slab):
        return dataclasses.replace(rule, rule=swapped_halves(rule.rule))
    assert isinstance(rule, Stack)
    return SwappedStack(rule.names, rule.shape)


def swapped_heads(rule: Rule) -> Rule:
    """k for v."""
    if not isinstance(rule, Heads):
        raise LookupError
    q, k, v = rule.parts
    return dataclasses.replace(rule, parts=(q, v, k))


def grouped_by_tensor(rule: Rule) -> Rule:
    """All queries, then all keys, then all values, as if the model had one group."""
    if not isinstance(rule, Heads):
        raise LookupError
    return dataclasses.replace(rule, parts=tuple((name, count * rule.groups) for name, count in rule.parts), groups=1)


def halves_exchanged(rule: Rule) -> Rule:
    """The first half of the rows (of the heads) in the second's place."""
    assert isinstance(rule, Rows)
    return Turned(rule.name, rule.shape)


class Turned(Rows):
    def pieces(self, layout: Layout) -> list[Piece]:
        half = self.shape[0] // 2
        first, second = (Piece(self.name, self.shape, rows(self.name, self.shape, start, start + half), same, split=True) for start in (0, half))
        return [dataclasses.replace(first, view=lambda weight: weight[half:]), dataclasses.replace(second, view=lambda weight: weight[:half])]


def next_expert(rules: Rules, name: str) -> str:
    following = re.sub(r"experts\.(\d+)\.", lambda match: f"experts.{int(match[1]) + 1}.", name)
    return following if following in rules else re.sub(r"experts\.\d+\.", "experts.0.", name)


def one_changed(rules: Rules, suffix: str, change: Callable[[Rule], Rule]) -> Rules:
    """One entry, of the last layer that has one, changed."""
    name = next((name for name in reversed(rules) if name.endswith(suffix) and "mtp." not in name), None)
    if name is None:
        raise LookupError
    return {**rules, name: change(rules[name])}


def all_changed(rules: Rules, suffix: str, change: Callable[[Rule], Rule]) -> Rules:
    """Every entry whose name ends so (which experts a few tokens choose is chance)."""
    if not any(re.search(suffix + "$", name) for name in rules):
        raise LookupError
    return {name: change(rule) if re.search(suffix + "$", name) else rule for name, rule in rules.items()}


def off_by_one(rules: Rules) -> Rules:
    """Every expert's weights in the place of the one before it."""
    if not any(".experts." in name for name in rules):
        raise LookupError
    return {name: rules[next_expert(rules, name)] if ".experts." in name else rule for name, rule in rules.items()}


def exchanged(rules: Rules, first: str, second: str) -> Rules:
    """Two entries in each other's place, in the first layer that has them."""
    one, other = (next((name for name in rules if name.endswith(suffix)), "") for suffix in (first, second))
    if not one or not other:
        raise LookupError
    return {**rules, one: rules[other], other: rules[one]}


TABLE_FAULTS: dict[str, Callable[[Rules], Rules]] = {
    "gate and up swapped": lambda rules: one_changed(rules, ".mlp.linear_fc1.weight", swapped_halves),
    "gate and up of the experts swapped": lambda rules: all_changed(rules, r"experts\.\d+\.linear_fc1\.weight", swapped_halves),
    "gate and up of the shared expert swapped": lambda rules: one_changed(rules, "shared_experts.linear_fc1.weight", swapped_halves),
    "k and v swapped": lambda rules: one_changed(rules, "linear_qkv.weight", swapped_heads),
    "k and v biases swapped": lambda rules: one_changed(rules, "linear_qkv.bias", swapped_heads),
    "heads not grouped": lambda rules: one_changed(rules, "linear_qkv.weight", grouped_by_tensor),
    "experts off by one": off_by_one,
    "norms of a layer swapped": lambda rules: exchanged(rules, "input_layernorm.weight", "pre_mlp_layernorm.weight"),
    "layers swapped": lambda rules: exchanged(rules, ".0.self_attention.linear_proj.weight", ".1.self_attention.linear_proj.weight"),
}


def plant_in_table(patch: pytest.MonkeyPatch, name: str, change: Callable[[Rules], Rules]) -> None:
    """A change of the table of the case's family."""
    family: Any = type(family_for(BY_NAME[name].config))
    original = family.rules
    patch.setattr(family, "rules", lambda self, decoder, *, mtp: change(original(self, decoder, mtp=mtp)))


def with_decoder(change: Callable[[Decoder], Decoder]) -> Callable[[pytest.MonkeyPatch, Any], None]:
    """A fact of the architecture read wrongly, where Megatron's configuration is made (the table keeps the right one)."""

    def plant(patch: pytest.MonkeyPatch, family: Any) -> None:
        original = type(family).decoder
        patch.setattr(type(family), "decoder", lambda self, hf_config: change(original(self, hf_config)))

    return plant


def experts_changed(**values: Any) -> Callable[[Decoder], Decoder]:
    return lambda decoder: dataclasses.replace(decoder, experts=dataclasses.replace(decoder.experts, **values))


def rope_changed(**values: Any) -> Callable[[Decoder], Decoder]:
    return lambda decoder: dataclasses.replace(decoder, rope=dataclasses.replace(decoder.rope, **values))


FACT_FAULTS: dict[str, tuple[str, Callable[[Decoder], Decoder]]] = {
    "scaling of the rotary embedding missing": ("llama-scaled", rope_changed(kind="default")),
    "YaRN missing": ("deepseek-v3", rope_changed(kind="default")),
    "YaRN's factor on the attention missing": ("deepseek-v3", rope_changed(mscale_all_dim=0.0, mscale=0.0)),
    "whole heads rotated": ("glm4-moe", rope_changed(percent=1.0)),
    "another rotary base": ("qwen3", rope_changed(theta=500000.0)),
    "weights of the experts not scaled": ("deepseek-v3", experts_changed(scale=1.0)),
    "no groups of experts": ("deepseek-v3", experts_changed(groups=1, groups_kept=1)),
    "weights of the experts not normalised": ("qwen3-moe", experts_changed(normalise=False)),
    "another epsilon": ("qwen3", lambda decoder: dataclasses.replace(decoder, eps=1e-2)),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """(directory, Hugging Face's logits) by case."""
    made: dict[str, tuple[Path, Any]] = {}

    def get(name: str) -> tuple[Path, Any]:
        if name not in made:
            directory = hugging_face.write(BY_NAME[name].config, tmp_path_factory.mktemp("corrupt") / name)
            made[name] = directory, hugging_face.logits(directory, megatron.SEQUENCES)
        return made[name]

    return get


def faulty_cases(plant: Callable[[Rules], Rules]) -> list[str]:
    """Cases in whose table the fault can be planted."""
    out = []
    for case in CASES:
        family: Any = family_for(case.config)
        with contextlib.suppress(LookupError):
            plant(family.rules(family.decoder(case.config), mtp=False))
            out.append(case.name)
    return out


def planted() -> list[Any]:
    """Every fault in the first and the last text model that can have it; in every model in `make test-all`."""
    out = []
    for fault, plant in TABLE_FAULTS.items():
        names = faulty_cases(plant)
        texts = [name for name in names if not BY_NAME[name].sees]
        out += [pytest.param(plant, name, id=f"{fault}-{name}", marks=() if name in (texts[0], texts[-1]) else pytest.mark.slow) for name in names]
    return out


@pytest.mark.parametrize(("fault", "name"), planted())
def test_a_fault_in_the_table_shows(fault, name, models, monkeypatch):
    directory, expected = models(name)
    plant_in_table(monkeypatch, name, fault)
    assert megatron.gap(directory, expected) > CAUGHT


@pytest.mark.parametrize("fault", FACT_FAULTS)
def test_a_fact_read_wrongly_shows(fault, models, monkeypatch):
    name, change = FACT_FAULTS[fault]
    directory, expected = models(name)
    with_decoder(change)(monkeypatch, family_for(BY_NAME[name].config))
    assert megatron.gap(directory, expected) > CAUGHT


@pytest.mark.parametrize("kind", ["linear_kv_up_proj.weight", "linear_q_up_proj.weight", "linear_kv_down_proj.weight"])
def test_heads_of_a_latent_in_another_order_show(kind, models, monkeypatch):
    plant = partial(one_changed, suffix=kind, change=halves_exchanged)
    plant_in_table(monkeypatch, "deepseek-v3", plant)
    directory, expected = models("deepseek-v3")
    assert megatron.gap(directory, expected) > CAUGHT


@pytest.mark.parametrize("name", ["glm4-moe", "glm4-moe-lite", "deepseek-v3", "moonlight", "minimax-m2"])
def test_a_correction_bias_that_is_left_out_shows(name, models):
    directory, expected = models(name)
    with one_rank(megatron.config_of(directory)) as actor:
        biases = [buffer for buffer_name, buffer in actor.trained.model.named_buffers() if buffer_name.endswith("expert_bias")]
        assert all(buffer.abs().max() > 0 for buffer in biases) and biases
        for buffer in biases:
            buffer.zero_()
        gaps = [float((ours - theirs).abs().max()) for ours, theirs in zip(megatron.logits_of(actor), expected, strict=True)]
    assert max(gaps) > CAUGHT


def test_a_head_that_is_tied_by_mistake_shows(models, monkeypatch):
    directory, expected = models("qwen3-untied")

    def tied(rules: Rules) -> Rules:
        return {**rules, "output_layer.weight": dataclasses.replace(rules["embedding.word_embeddings.weight"], home=-1)}

    plant_in_table(monkeypatch, "qwen3-untied", tied)
    monkeypatch.setattr("vime.models.hf_io.check_tensors", lambda checkpoint, table: None)  # the table no longer lists lm_head.weight, which would refuse it
    assert megatron.gap(directory, expected) > CAUGHT
