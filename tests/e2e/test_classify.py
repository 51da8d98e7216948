from __future__ import annotations

import re

import pytest

from e2e.classify import INFRA_SIGNATURES, classify, last_words
from e2e.process import Exit
from matrix.outcome import Outcome

OK, FAILED, KILLED = Exit(0, None), Exit(3, None), Exit(None, "SIGKILL")


@pytest.mark.parametrize(
    ("exit_", "steps", "more", "outcome", "infra"),
    [
        (OK, 100, {}, None, None),
        (OK, 99, {}, Outcome.INCOMPLETE, None),
        (OK, 40, {"early_stop": "reward reached its goal"}, None, None),
        (FAILED, 40, {"early_stop": "reward reached its goal"}, Outcome.INCOMPLETE, None),
        (FAILED, 100, {}, Outcome.INCOMPLETE, None),
        (FAILED, 0, {"tail": "OSError: [Errno 98] Address already in use"}, Outcome.INFRA, "port-in-use"),
        (FAILED, 50, {"error": "checkpoint: [Errno 28] No space left on device"}, Outcome.INFRA, "disk-full"),
        (KILLED, 50, {"tail": "No space left on device"}, Outcome.INCOMPLETE, None),
        (OK, 100, {"tail": "Address already in use"}, None, None),
        (Exit(None, "SIGTERM", by_itself=False), 50, {"stopped_by": "stalled"}, Outcome.INCOMPLETE, None),
        (Exit(None, None, by_itself=False), 50, {}, Outcome.INCOMPLETE, None),
    ],
)
def test_every_ending_has_one_class(exit_: Exit, steps: int, more: dict[str, str], outcome: Outcome | None, infra: str | None):
    ending = classify(exit_, steps, 100, **more)  # type: ignore[arg-type]
    assert (ending.outcome, ending.infra) == (outcome, infra)
    assert f"{steps}/100 steps" in ending.reason


NUMERICS = (
    "train: loss is not finite at step 3 (nan)",
    "weight sync: digest of model.layers.0.mlp.gate_proj.weight differs: sent 3f2a, received 77c1",
    "train: grad norm inf at step 12",
    "held: log-probs differ by 0.31 on probe 2",
    "AssertionError: batch size 256 does not divide",
    "train: KL overflow",
    "RuntimeError: value cannot be converted to type float without overflow",
    "rollout: 3 of 256 log-probs are missing",
    "ValueError: reward 1.5 outside [0, 1]",
)


@pytest.mark.parametrize("text", NUMERICS)
def test_no_signature_matches_a_fault_of_what_was_computed(text: str):
    assert classify(FAILED, 3, 100, error=text, tail=text).outcome is Outcome.INCOMPLETE


def test_a_run_s_own_words_outrank_what_else_stands_in_its_output():
    """A port that was taken and tried again does not make a retry of a loss that is not finite."""
    tail = "OSError: [Errno 98] Address already in use (tried the next port)"
    assert classify(FAILED, 3, 100, error="train: loss is not finite at step 3 (nan)", tail=tail).outcome is Outcome.INCOMPLETE
    assert classify(FAILED, 3, 100, error="engine 0 died", tail=tail).outcome is Outcome.INCOMPLETE
    assert classify(FAILED, 3, 100, tail=tail + "\nloss: nan").outcome is Outcome.INCOMPLETE
    assert classify(FAILED, 3, 100, tail=tail).outcome is Outcome.INFRA


def test_the_last_words_are_plain_text():
    assert last_words("\x1b[31mout of memory\x1b[0m\n\n") == "out of memory"


def test_no_signature_speaks_of_numbers():
    words = re.compile(r"nan|inf\b|loss|grad|reward|digest|mismatch|differ|overflow|assert|log.?prob|kl\b|value", re.IGNORECASE)
    assert [signature.name for signature in INFRA_SIGNATURES if words.search(signature.pattern.pattern)] == []
