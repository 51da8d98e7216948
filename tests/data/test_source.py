from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.data import Prompt, PromptSource
from vime.data.fingerprint import fingerprint
from vime.errors import UserError


def pool(n: int) -> list[Prompt]:
    return [Prompt(i, f"prompt {i}", [1, i], str(i), {"kind": {"a", "b"}}) for i in range(n)]


@given(size=st.integers(1, 30), takes=st.lists(st.integers(0, 40), max_size=8), seed=st.integers(0, 2**32), shuffle=st.booleans(), crash=st.integers(0, 8))
def test_prompts_after_a_resume_equal_the_uninterrupted_runs(size: int, takes: list[int], seed: int, shuffle: bool, crash: int) -> None:
    uninterrupted = PromptSource(pool(size), seed, shuffle).take(sum(takes))

    source = PromptSource(pool(size), seed, shuffle)
    state = source.state()
    consumed = []
    for i, n in enumerate(takes):
        if i == crash:
            source.take(3)  # in flight at the crash, after the checkpoint
            saved = json.loads(json.dumps(state))
            source = PromptSource(pool(size), seed, shuffle)
            source.restore(saved)
        consumed += source.take(n)
        state = source.state()

    assert uninterrupted == consumed
    assert [source.at(group_id) for group_id, _ in consumed] == [prompt for _, prompt in consumed]


@given(size=st.integers(1, 30), epochs=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_each_epoch_holds_every_prompt_once_and_group_ids_count_up(size: int, epochs: int, seed: int) -> None:
    taken = PromptSource(pool(size), seed).take(size * epochs)
    assert list(range(size * epochs)) == [group_id for group_id, _ in taken]
    for epoch in range(epochs):
        assert list(range(size)) == sorted(p.prompt_id for _, p in taken[epoch * size : (epoch + 1) * size])


def test_epochs_and_seeds_have_their_own_orders_and_without_shuffle_the_files() -> None:
    def order(seed: int, epoch: int, shuffle: bool = True) -> list[int]:
        return [p.prompt_id for _, p in PromptSource(pool(50), seed, shuffle).take(50 * (epoch + 1))[50 * epoch :]]

    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(o) for o in orders}) == 4
    assert list(range(50)) not in orders
    assert list(range(50)) == order(0, 0, shuffle=False) == order(1, 1, shuffle=False)


def test_the_order_is_pinned_for_all_versions() -> None:
    taken = PromptSource(pool(8), 1234).take(16)
    assert [p.prompt_id for _, p in taken] == [4, 5, 1, 6, 2, 0, 3, 7, 0, 4, 1, 5, 6, 2, 7, 3]


def test_the_shuffle_is_even() -> None:
    firsts = np.bincount([PromptSource(pool(8), seed).take(1)[0][1].prompt_id for seed in range(4000)], minlength=8)
    assert abs(firsts - 500).max() < 5 * np.sqrt(500)


def test_a_changed_data_set_is_refused_with_both_fingerprints() -> None:
    state = PromptSource(pool(5), 0).state()
    changed = pool(5)
    changed[3] = Prompt(3, "prompt 3", [1, 3], "another label")
    source = PromptSource(changed, 0)
    with pytest.raises(UserError, match=r"the data set changed since the run began") as caught:
        source.restore(state)
    assert state["fingerprint"] in str(caught.value)
    assert source.fingerprint in str(caught.value)
    assert source.consumed == 0


def test_a_changed_order_is_refused() -> None:
    state = PromptSource(pool(5), 0).state()
    with pytest.raises(UserError, match=r"seed was 0, now 1; set it back to 0"):
        PromptSource(pool(5), 1).restore(state)
    with pytest.raises(UserError, match=r"shuffle was True, now False"):
        PromptSource(pool(5), 0, shuffle=False).restore(state)


def test_no_prompts_is_an_error() -> None:
    with pytest.raises(UserError, match=r"no prompts"):
        PromptSource([], 0)


@pytest.mark.parametrize(
    "other",
    [
        Prompt(0, "prompt_", [1, 5], "a", {"x": 1}),
        Prompt(0, "prompt", [1, 6], "a", {"x": 1}),
        Prompt(0, "prompt", [1, 5], "b", {"x": 1}),
        Prompt(0, "prompt", [1, 5], "a", {"x": 2}),
        Prompt(0, "prompt", [1, 5], "a", {"x": "1"}),
    ],
)
def test_the_fingerprint_sees_every_part_of_a_prompt(other: Prompt) -> None:
    assert fingerprint([Prompt(0, "prompt", [1, 5], "a", {"x": 1})]) != fingerprint([other])


def test_the_fingerprint_sees_order_and_boundaries() -> None:
    a, b = pool(2)
    assert len({fingerprint(p) for p in ([a, b], [b, a], [a], [a, a], [])}) == 5


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    code = (
        "from vime.data import Prompt; from vime.data.fingerprint import fingerprint; import numpy as np\n"
        "print(fingerprint([Prompt(0, 'é', [1], {'b': 1, 'a': (2.5, None)}, {'s': {'x', 'y', 'zz'}, 'o': object(), 'n': np.arange(3)})]))"
    )
    digests = {
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1
