"""A run that trains the draft layers and speculates with them, from the command line to the metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loop.process import EXAMPLE, curve, events, finished, settings
from tests.models.families import BY_NAME
from vime.models.twins import make_twin

pytestmark = [pytest.mark.heavy, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("name", ["glm4-moe-lite", "glm4-moe"])
def test_a_run_with_draft_layers(name: str, tmp_path: Path) -> None:
    path = str(make_twin(BY_NAME[name].config, tmp_path / "twin"))
    chosen = settings(
        model__path=path,
        model__random_init_seed=1,
        rollout__speculative__method="mtp",
        train__mtp__loss_weight=0.2,
        checkpoint__save_last=True,
        checkpoint__save_hf=True,
    )
    finished("train", EXAMPLE, *chosen, out=tmp_path / "run")
    steps = curve(tmp_path / "run")
    assert len(steps) == 3
    for metrics in steps.values():
        assert 1.0 <= metrics["spec/accept_len"] <= 2.0 and metrics["train/mtp_loss"] > 0
        assert metrics["train/logprob_gap_max"] < 1e-4, "speculative answers have the model's own log-probs"
    for sync in events(tmp_path / "run", "weight_sync"):
        assert sync["held"]["read_back"] > 0
    assert (tmp_path / "run" / "hf" / "model.safetensors").is_file()
