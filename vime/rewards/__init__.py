"""Scoring answers: the rewards that come with vime, users' own, and the worker processes they run in."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime.rewards.pool import RewardPool as RewardPool
    from vime.rewards.truncation import apply_truncated_policy as apply_truncated_policy

__all__ = ["RewardPool", "apply_truncated_policy"]

_HOME = {"RewardPool": "vime.rewards.pool", "apply_truncated_policy": "vime.rewards.truncation"}


def __getattr__(name: str) -> Any:
    """Imported on first use: worker processes import this package and need neither."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
