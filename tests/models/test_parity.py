"""Megatron's logits against Hugging Face's, in float32, for every family."""

from __future__ import annotations

import pytest

from tests.models import hugging_face, megatron
from tests.models.families import CASES


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def model(request, tmp_path_factory):
    """(directory, Hugging Face's logits, how near vime's must come)."""
    directory = hugging_face.write(request.param.config, tmp_path_factory.mktemp("parity") / request.param.name)
    return directory, hugging_face.logits(directory, megatron.SEQUENCES), request.param.tolerance


def test_logits_equal_hugging_faces(model):
    directory, expected, tolerance = model
    assert megatron.gap(directory, expected) < tolerance
