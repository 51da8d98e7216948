"""Real engines that several tests share; each test starts from a full sync of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rollout.child import EngineChild, config_of
from tests.weights import models


@pytest.fixture(scope="session")
def dense_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.dense(tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="session")
def mixture_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.mixture(tmp_path_factory.mktemp("qwen3-moe"))


@pytest.fixture(scope="module")
def dense_engine(dense_model: Path) -> Iterator[EngineChild]:
    child = EngineChild(config_of(dense_model))
    yield child
    child.close()


@pytest.fixture(scope="module")
def mixture_engine(mixture_model: Path) -> Iterator[EngineChild]:
    child = EngineChild(config_of(mixture_model))
    yield child
    child.close()
