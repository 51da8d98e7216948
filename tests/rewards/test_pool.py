from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.rewards.samples import batch, sample
from vime.config.tree import RewardConfig
from vime.errors import RunError, UserError
from vime.rewards import RewardPool

USER = "tests.rewards.user_rewards"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with RewardPool(RewardConfig(name=f"{USER}:by_command", timeout_s=0.5, workers=2)) as pool:
        yield pool


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        ("raise", "ValueError: no such move (user_rewards.py:"),
        ("not a number", "ValueError: could not convert string to float"),
        ("none", "returned None"),
        ("nan", "returned NaN"),
        ("text", "returned a str, not a number: '1.0'"),
        ("list", "returned a list, not a number: [1.0]"),
        ("sys_exit", "SystemExit: 3"),
        ("sleep", "timeout: no score within reward.timeout_s 0.5 s"),
        ("swallow", "timeout: no score within reward.timeout_s 0.5 s"),
        ("swallow_all", "timeout: no score within reward.timeout_s 0.5 s"),
        ("hang", "timeout: no score within reward.timeout_s 0.5 s; its worker was killed"),
        ("exit", "the worker process died on this sample (exit code 7)"),
        ("segfault", "the worker process died on this sample (exit code -11)"),
    ],
)
def test_a_sample_that_cannot_be_scored_is_marked_with_its_cause_and_the_others_are_scored(pool: RewardPool, command: str, cause: str) -> None:
    samples = batch("0.25", "0.5", command, "0.75", "1")
    samples[2].reward = 1.0  # a stale value must not survive

    metrics = pool.score(samples)

    assert [s.reward for s in samples] == [0.25, 0.5, None, 0.75, 1.0]
    assert samples[2].reward_error is not None
    assert samples[2].reward_error.startswith(cause)
    assert [s.reward_error for s in samples if s is not samples[2]] == [None] * 4
    assert metrics["rollout/reward_error_count"] == 1.0


def test_several_guilty_samples_in_one_batch_are_each_found(pool: RewardPool) -> None:
    texts = ["1", "hang", "0", "raise", "exit", *["0.5"] * 40, "sleep", "segfault", "1"]
    samples = batch(*texts)

    metrics = pool.score(samples)

    assert [i for i, t in enumerate(texts) if t in ("hang", "raise", "exit", "sleep", "segfault")] == [i for i, s in enumerate(samples) if s.reward is None]
    assert [float(t) for t in texts if t[0].isdigit()] == [s.reward for s in samples if s.reward is not None]
    assert metrics["rollout/reward_error_count"] == 5.0


def test_slow_samples_are_spread_over_the_workers() -> None:
    with RewardPool(RewardConfig(name=f"{USER}:by_command", range=(0.0, 1e9), workers=2)) as pool:
        samples = batch(*["slow_pid"] * 32)
        pool.score(samples)
    assert len({s.reward for s in samples}) == 2  # both workers' process ids


def test_rewards_are_joined_by_sample_id_not_by_position(pool: RewardPool) -> None:
    samples = batch(*[str(i / 100) for i in range(100)])
    shuffled = samples[::3] + samples[1::3] + samples[2::3]
    pool.score(shuffled)
    assert [i / 100 for i in range(100)] == [s.reward for s in samples]


def test_a_repeated_sample_id_is_refused(pool: RewardPool) -> None:
    with pytest.raises(RunError, match="reward: 1 of 2 samples share a sample id"):
        pool.score([sample("1"), sample("0")])


def test_an_infinite_reward_stops_the_run_and_names_the_reward(pool: RewardPool) -> None:
    with pytest.raises(RunError, match=r"reward: reward 'tests.rewards.user_rewards:by_command' returned inf for sample 0-1-0; a reward must be finite"):
        pool.score(batch("1", "inf"))


def test_a_reward_outside_its_declared_range_stops_the_run(pool: RewardPool) -> None:
    with pytest.raises(RunError, match=r"returned 1.5 for sample 0-1-0, outside reward.range \[0, 1\]") as caught:
        pool.score(batch("1", "1.5"))
    assert caught.value.stage == "reward"


def test_a_batch_of_nothing_but_errors_stops_the_run_with_the_first_error(pool: RewardPool) -> None:
    with pytest.raises(RunError, match="could not score any of 2 answers; the first error: ValueError: no such move"):
        pool.score(batch("raise", "nan"))


def test_an_empty_batch_is_no_error(pool: RewardPool) -> None:
    assert pool.score([])["rollout/reward_error_count"] == 0.0


def test_a_worker_that_dies_while_idle_is_replaced(pool: RewardPool) -> None:
    samples = batch(*["pid"] * 1)
    wide = RewardPool(RewardConfig(name=f"{USER}:by_command", range=(0.0, 1e9)))
    try:
        wide.score(samples)
        assert samples[0].reward is not None
        os.kill(int(samples[0].reward), signal.SIGKILL)
        again = batch("pid", "0.5")
        wide.score(again)
        assert again[1].reward == 0.5
        assert again[0].reward != samples[0].reward
    finally:
        wide.close()


def test_close_ends_the_workers_even_busy_ones() -> None:
    wide = RewardPool(RewardConfig(name=f"{USER}:by_command", range=(0.0, 1e9), timeout_s=30))
    samples = batch("pid")
    wide.score(samples)
    worker = psutil.Process(int(samples[0].reward or 0))
    wide.close()
    wide.close()
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_a_function_gets_the_context_it_names_and_its_arguments() -> None:
    with RewardPool(RewardConfig(name=f"{USER}:context_seen", args={"bonus": 8.0}, range=(0.0, 100.0))) as pool:
        samples = [sample("a", number=1, ids=[5, 6]), sample("b", number=2, ids=[7], finish_reason="length")]
        pool.score(samples)
    assert [s.reward for s in samples] == [15.0, 8.0]


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("exact_macth", {}, "no reward 'exact_macth'; did you mean 'exact_match'\\? rewards are exact_match, math, reasoning_gym, or package.module:function"),
        ("no_such_package.rewards:score", {}, "reward.name 'no_such_package.rewards:score': no module 'no_such_package'; looked in "),
        (f"{USER}:always_rises", {}, "has no 'always_rises'; it has by_command, swallow, .*always_raises"),
        (f"{USER}:NOT_A_FUNCTION", {}, "it is a int, not a function"),
        (f"{USER}:asynchronous", {}, "it is an async function"),
        (f"{USER}:", {}, "is not of the form package.module:function"),
        ("tests.rewards.broken_module:score", {}, "importing tests.rewards.broken_module fails: ZeroDivisionError"),
        ("exact_match", {"stripp": True}, "reward.args: 'exact_match' cannot be called as .*unexpected keyword argument 'stripp'; its signature is "),
        (f"{USER}:strict_arguments", {}, "missing a required (keyword-only )?argument: 'weight'"),
        ("exact_match", {"finish_reason": "stop"}, "reward.args.finish_reason: the pool gives it"),
    ],
)
def test_a_reward_that_cannot_be_used_is_refused_at_start(name: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RewardPool(RewardConfig(name=name, args=args))


SCRIPT = f"""
from tests.rewards.samples import batch
from vime.config.tree import RewardConfig
from vime.rewards import RewardPool
if __name__ == "__main__":
    with RewardPool(RewardConfig(name="{USER}:by_command", timeout_s=60, workers=2)) as pool:
        print("ready", flush=True)
        pool.score(batch("hang", "sleep", "hang"))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_end_with_their_run_however_it_ends(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        time.sleep(0.3)
        family = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
        assert len(family) >= 3
        run.send_signal(how)
        _, alive = psutil.wait_procs(family, timeout=8)
    assert alive == []


def test_what_cannot_be_sent_to_a_worker_stops_the_run(pool: RewardPool) -> None:
    with pytest.raises(RunError, match="a chunk could not be handed to a worker: .*lambda"):
        pool.score([sample("1", metadata={"f": lambda: 0})])
