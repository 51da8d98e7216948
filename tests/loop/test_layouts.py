"""Every layout, transport and encoding trains three steps through the whole stack, with what the engines hold proven at every sync."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.loop.process import EXAMPLE, curve, events, finished, settings
from vime.config.resolve import resolve
from vime.data import PromptSource, load_prompts, load_tokenizer

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

COLOCATED = {"placement__mode": "colocate"}
TWO_RANKS, TWO_ENGINES = {"parallel__data": 2}, {"rollout__engines": 2}


def trained(out: Path, **changes: Any) -> dict[int, dict[str, float]]:
    """Metrics of three steps; asserts the proofs of every sync and that the prompts are those of any other layout."""
    finished("train", EXAMPLE, *settings(tracking__samples_per_step=4, **changes), out=out)
    syncs = events(out, "weight_sync")
    assert [sync["version"] for sync in syncs] == [0, 1, 2, 3]
    assert all(sync["received"] == "digest" and sync["held"]["tensors"] == sync["tensors"] for sync in syncs)
    assert all(sync["held"]["method"] == "digest+probe" for sync in syncs)
    assert len({sync["digest"] for sync in syncs}) == 4  # every step moved the weights
    assert {sync["transport"] for sync in syncs} == {changes.get("weights__transport", "ipc" if "placement__mode" in changes else "broadcast")}
    encodings = [sync["encoding"] for sync in syncs]
    assert encodings == (["full", "delta", "delta", "delta"] if changes.get("weights__encoding") == "delta" else ["full"] * 4)
    steps = curve(out)
    assert sorted(steps) == [0, 1, 2]
    assert all(metrics["train/logprob_gap_max"] < 1e-4 for metrics in steps.values())
    assert [prompts(out, step) for step in range(3)] == expected_prompts()
    return steps


def prompts(out: Path, step: int) -> list[str]:
    return [json.loads(line)["prompt"] for line in (out / "samples" / f"step-{step:06d}.jsonl").read_text().splitlines()]


def expected_prompts() -> list[list[str]]:
    config = resolve(EXAMPLE).config
    source = PromptSource(load_prompts(config.data, load_tokenizer(config.model.path), config.rollout.max_prompt_tokens), config.seed, config.data.shuffle)
    return [[prompt.text for _, prompt in source.take(4)] for _ in range(3)]


def test_two_data_parallel_ranks_and_one_engine(tmp_path: Path):
    """With a reference model, two updates a rollout, and deltas over the broadcast."""
    steps = trained(
        tmp_path / "run", **TWO_RANKS, weights__encoding="delta", train__optimizer_steps_per_rollout=2, algo__kl_coef=0.1, train__lr=1e-2, algo__clip_high=0.01
    )
    assert steps[0]["train/kl_ref"] == pytest.approx(0, abs=1e-5)
    assert steps[2]["train/kl_ref"] > 1e-3
    assert any(metrics["train/ppo_kl"] != 0 for metrics in steps.values())


def test_one_rank_and_two_engines(tmp_path: Path):
    """Peer to peer, with the engines' log-probs as the old ones."""
    trained(tmp_path / "run", **TWO_ENGINES, weights__transport="p2p", algo__old_logprobs="engine", algo__importance="none")


@pytest.mark.slow
def test_two_colocated_pairs(tmp_path: Path):
    trained(tmp_path / "run", **COLOCATED, **TWO_RANKS, **TWO_ENGINES)


@pytest.mark.slow
def test_through_files(tmp_path: Path):
    trained(tmp_path / "run", weights__transport="disk")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["full", "delta"])
@pytest.mark.parametrize("transport", ["ipc", "broadcast", "p2p", "disk"])
@pytest.mark.parametrize("layout", ["1+1", "2+2"])
def test_every_transport_and_encoding(tmp_path: Path, transport: str, encoding: str, layout: str):
    placement = COLOCATED if transport == "ipc" else {}
    more = {**TWO_RANKS, **TWO_ENGINES} if layout == "2+2" else {}
    trained(tmp_path / "run", **placement, **more, weights__transport=transport, weights__encoding=encoding)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [{"tensor": 2}, {"pipeline": 2}, {"tensor": 2, "sequence_parallel": True}], ids=str)
def test_other_trainer_layouts(tmp_path: Path, parallel: dict[str, Any]):
    trained(tmp_path / "run", **{f"parallel__{key}": value for key, value in parallel.items()})
