"""Megatron's logits against Hugging Face's, in float32, for every family."""

from __future__ import annotations

import pytest

from tests.models import hugging_face, megatron
from tests.models.families import CASES

TOLERANCE = 2e-5  # the largest seen is 6e-6; the bar is 1e-4


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def model(request, tmp_path_factory):
    """(directory, Hugging Face's logits)."""
    directory = hugging_face.write(request.param.config, tmp_path_factory.mktemp("parity") / request.param.name)
    return directory, hugging_face.logits(directory, megatron.SEQUENCES)


def test_logits_equal_hugging_faces(model):
    directory, expected = model
    assert megatron.gap(directory, expected) < TOLERANCE
