"""The order in which a run consumes its prompts: a pure function of (prompts, seed, consumption number), so a checkpoint is one number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import xxhash

from vime.data.fingerprint import fingerprint
from vime.data.sample import Prompt
from vime.errors import UserError


class PromptSource:
    """Hands out prompts epoch after epoch; each epoch is a permutation of the pool drawn from (seed, epoch).

    The group id of a handed-out prompt is its consumption number in the run: 0, 1, 2, …
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int, shuffle: bool = True):
        if not prompts:
            raise UserError("no prompts: the prompt source needs at least one")
        self.prompts = prompts
        self.seed = seed
        self.shuffle = shuffle
        self.consumed = 0
        self.fingerprint: str = fingerprint(prompts)
        self._epoch = -1
        self._order: list[int] = []

    def take(self, n: int) -> list[tuple[int, Prompt]]:
        """The next n (group id, prompt) pairs, across epochs if need be."""
        if n < 0:
            raise ValueError(f"cannot take {n} prompts")
        first = self.consumed
        self.consumed += n
        return [(group_id, self.at(group_id)) for group_id in range(first, self.consumed)]

    def at(self, group_id: int) -> Prompt:
        """The prompt with this consumption number, consumed or not: what a group that was in flight at a crash is made again from."""
        epoch, position = divmod(group_id, len(self.prompts))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, epoch_order(len(self.prompts), self.seed, epoch, self.shuffle)
        return self.prompts[self._order[position]]

    def identity(self) -> dict[str, Any]:
        """What must not change between the attempts of a run; JSON-serialisable."""
        return {"seed": self.seed, "shuffle": self.shuffle, "prompts": len(self.prompts), "fingerprint": self.fingerprint}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; JSON-serialisable."""
        return {"consumed": self.consumed, **self.identity()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on after `state`. Raises `UserError` when the data set or its order is not the checkpoint's."""
        self.check(state)
        self.consumed = state["consumed"]

    def check(self, state: dict[str, Any]) -> None:
        """Raises `UserError` unless this is the data set, in the order, of `state` (or of an `identity`)."""
        if state["fingerprint"] != self.fingerprint:
            raise UserError(
                f"the data set changed since the run began: it had {state['prompts']} prompts with fingerprint {state['fingerprint']}, "
                f"now {len(self.prompts)} with {self.fingerprint}; bring back the old data (or its tokenizer), or start a new run"
            )
        for key in ("seed", "shuffle"):
            if state[key] != getattr(self, key):
                raise UserError(
                    f"the order of prompts changed since the run began: {key} was {state[key]}, now {getattr(self, key)}; "
                    f"set it back to {state[key]}, or start a new run"
                )


def epoch_order(n: int, seed: int, epoch: int, shuffle: bool) -> list[int]:
    """A permutation of range(n): the positions sorted by a keyed hash.

    A hash rather than a library's shuffle, whose stream may change between versions: a resumed run must see the old order.
    """
    if not shuffle:
        return list(range(n))
    return sorted(range(n), key=lambda i: xxhash.xxh64_intdigest(f"{seed}/{epoch}/{i}".encode()))
