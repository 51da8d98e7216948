"""Real vLLM engines that all tests of a session share: a start takes ten seconds.

Each test begins with a full sync of its own, or with the weights of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rollout.child import EngineChild, config_of

SIZES = {"max_prompt_tokens": 64, "max_response_tokens": 64}


@pytest.fixture(scope="session")
def dense_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.weights import models

    return models.dense(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="session")
def mixture_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.weights import models

    return models.mixture(tmp_path_factory.mktemp("qwen3-moe"))


@pytest.fixture(scope="session")
def dense_engine(dense_model: Path) -> Iterator[EngineChild]:
    child = EngineChild(config_of(dense_model, rollout=SIZES), weights_version=0)
    yield child
    child.close()


@pytest.fixture(scope="session")
def mixture_engine(mixture_model: Path) -> Iterator[EngineChild]:
    child = EngineChild(config_of(mixture_model, rollout=SIZES), weights_version=0)
    yield child
    child.close()
