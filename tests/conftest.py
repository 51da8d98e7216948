"""What every test gets: a run that leaves a process behind fails; real engines are shared; Ctrl-C reaches what a test starts."""

import signal

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


def pytest_addoption(parser):
    parser.addoption("--curves", default=None, metavar="FOLDER", help="public curves for tests/reports/test_public_curves.py")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs with SIGINT ignored, and every child inherits that: tests of Ctrl-C would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
