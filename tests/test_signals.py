"""A signal is raised at once, or noted where raising would be swallowed; the first one counts."""

from __future__ import annotations

import signal

import pytest

from vime import interrupts
from vime.errors import Interrupted


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch):
    with interrupts.kept_handlers():
        interrupts.install()
        monkeypatch.setattr(interrupts, "_noted", None)
        yield


def test_a_signal_is_raised_where_it_comes():
    with pytest.raises(Interrupted, match="interrupted by SIGTERM"):
        signal.raise_signal(signal.SIGTERM)


def test_a_shield_keeps_it_until_it_is_asked_for():
    with interrupts.shielded():
        with interrupts.shielded():
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(Interrupted) as caught:
        interrupts.check()
    assert caught.value.signum == signal.SIGINT


def test_later_signals_do_not_disturb_the_end():
    with pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(Interrupted, match="SIGINT"):
        interrupts.check()


def test_without_a_signal_nothing_is_raised():
    with interrupts.shielded():
        interrupts.check()
    interrupts.check()


def test_replaced_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with interrupts.kept_handlers():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before
