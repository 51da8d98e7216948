"""Answers to one prompt form a group; who belongs to it is said by ids, never by position."""

from __future__ import annotations

from collections.abc import Iterable

from vime.data.sample import Sample
from vime.errors import RunError


def group_samples(samples: Iterable[Sample], samples_per_prompt: int) -> dict[int, list[Sample]]:
    """The samples by group id, each group in order of index.

    Raises `RunError` when a sample appears twice, a group is not exactly the indices 0 … samples_per_prompt − 1, or its samples answer different
    prompts: training on a partial or doubled group would shift its mean.
    """
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group_id, []).append(sample)
    for group_id, members in groups.items():
        members.sort(key=lambda s: s.index)
        _check(group_id, members, samples_per_prompt)
    return groups


def _check(group_id: int, members: list[Sample], expected: int) -> None:
    indices = [s.index for s in members]
    if len(set(indices)) < len(indices):
        doubled = sorted({i for i in indices if indices.count(i) > 1})
        raise RunError("rollout", f"group {group_id} holds index {doubled[0]} more than once: the same answer arrived twice")
    if indices != list(range(expected)):
        raise RunError("rollout", f"group {group_id} has samples {indices}, expected 0 to {expected - 1}")
    if len({s.prompt.prompt_id for s in members}) > 1:
        raise RunError("rollout", f"group {group_id} mixes answers to prompts {sorted({s.prompt.prompt_id for s in members})}")
