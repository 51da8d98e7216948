"""What every test gets: a run that leaves a process behind fails; real engines are shared."""

from tests.leftovers import pytest_configure, pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown
from tests.rollout.engines import dense_engine, dense_model, mixture_engine, mixture_model

__all__ = [
    "dense_engine",
    "dense_model",
    "mixture_engine",
    "mixture_model",
    "pytest_configure",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]
