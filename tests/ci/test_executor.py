"""The local executor: order, dependencies, groups, retries, soft failures, blocks, timeouts, uploads, the stand-in agent; and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ci.local.executor import Build, Options
from ci.local.interpolate import interpolated
from ci.local.steps import Refused, State
from ci.validate import PipelineError


def runs(pid: int) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def states(build: Build) -> dict[str, str]:
    return {step.name: str(step.state) for step in build.steps}


def test_steps_run_in_the_order_of_what_they_depend_on(local):
    build = local(
        {"key": "last", "command": "true", "depends_on": ["middle"]},
        {"key": "middle", "command": "true", "depends_on": "first"},
        {"key": "first", "command": "true"},
    )
    assert build.started == ["first", "middle", "last"]
    assert build.state is State.PASSED


def test_a_wait_holds_what_follows_and_breaks_it_on_failure(local):
    build = local({"key": "a", "command": "false"}, {"key": "b", "command": "true"}, "wait", {"key": "c", "command": "true"})
    assert states(build)["c"] == "broken"
    assert build.started == ["a", "b"]
    assert build.state is State.FAILED


def test_a_wait_that_continues_on_failure(local):
    build = local({"key": "a", "command": "false"}, {"wait": None, "continue_on_failure": True}, {"key": "c", "command": "true"})
    assert (states(build)["c"], build.state) == ("passed", State.FAILED)


def test_a_dependency_that_may_fail_lets_a_step_run_also_when_it_never_ran(local):
    build = local(
        {"key": "a", "command": "false"},
        {"key": "b", "command": "true", "depends_on": ["a"]},
        {"key": "c", "command": "true", "depends_on": [{"step": "b", "allow_failure": True}]},
        {"key": "d", "command": "true", "depends_on": ["b"], "allow_dependency_failure": True},
    )
    assert states(build) == {"a": "hard_failed", "b": "broken", "c": "passed", "d": "passed"}


def test_only_the_named_exit_codes_are_retried_and_as_often_as_said(local, tmp_path):
    count = f"echo x >> {tmp_path}/tries; [ $(wc -l < {tmp_path}/tries) -ge 3 ]"
    rules = {"automatic": [{"exit_status": 13, "limit": 2}]}
    build = local({"key": "a", "command": f"{count} || exit 13", "retry": rules}, {"key": "b", "command": "exit 1", "retry": rules})
    assert [len(build.step(key).jobs[0].attempts) for key in "ab"] == [3, 1]
    assert states(build) == {"a": "passed", "b": "hard_failed"}


def test_a_shell_that_is_killed_is_a_lost_agent_and_is_retried_as_minus_one(local, tmp_path):
    lost = f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; kill -9 $$; }}"
    build = local({"key": "a", "command": lost.replace("$$", "$$$$"), "retry": {"automatic": [{"exit_status": -1, "limit": 2}]}})
    assert [attempt.exit for attempt in build.step("a").jobs[0].attempts] == [-1, 0]
    assert build.state is State.PASSED


def test_retries_end(local):
    build = local({"key": "a", "command": "exit 13", "retry": {"automatic": [{"exit_status": 13, "limit": 2}]}, "soft_fail": [{"exit_status": 13}]})
    assert [attempt.exit for attempt in build.step("a").jobs[0].attempts] == [13, 13, 13]
    assert (states(build)["a"], build.state) == ("soft_failed", State.PASSED)


@pytest.mark.parametrize(("rule", "state"), [(True, "soft_failed"), ([{"exit_status": 10}], "soft_failed"), ([{"exit_status": 11}], "hard_failed")])
def test_a_soft_failure_is_one_of_the_codes_said(local, rule, state):
    assert states(local({"key": "a", "command": "exit 10", "soft_fail": rule}))["a"] == state


def test_parallel_jobs_know_their_number(local, tmp_path):
    build = local({"key": "a", "command": f"touch {tmp_path}/$$BUILDKITE_PARALLEL_JOB-$$BUILDKITE_PARALLEL_JOB_COUNT", "parallelism": 3})
    assert sorted(path.name for path in tmp_path.glob("?-3")) == ["0-3", "1-3", "2-3"]
    assert build.state is State.PASSED


def test_a_concurrency_group_limits_and_keeps_the_order(local, tmp_path):
    work = f"mkdir {tmp_path}/in && sleep 0.05 && rmdir {tmp_path}/in"
    shared = {"concurrency": 1, "concurrency_group": "one"}
    build = local(*({"key": f"s{n}", "command": work, **shared} for n in range(4)), agents=4)
    assert build.state is State.PASSED
    assert build.started == ["s0", "s1", "s2", "s3"]


def test_an_ordered_group_waits_for_the_one_before_an_eager_one_does_not(local):
    def made(method: str) -> list[str]:
        shared = {"concurrency": 1, "concurrency_group": method, "concurrency_method": method}
        return [
            {"key": f"{method}-slow", "command": "sleep 0.3"},
            {"key": f"{method}-first", "command": "true", "depends_on": [f"{method}-slow"], **shared},
            {"key": f"{method}-second", "command": "true", **shared},
        ]

    build = local(*made("ordered"), *made("eager"), agents=4)
    assert build.started.index("ordered-first") < build.started.index("ordered-second")
    assert build.started.index("eager-second") < build.started.index("eager-first")


def test_higher_priority_goes_first(local):
    build = local(*({"key": f"p{n}", "command": "true", "priority": n} for n in (1, 3, 2)), agents=1)
    assert build.started == ["p3", "p2", "p1"]


def test_a_block_step_waits_for_a_person_and_what_does_not_depend_on_it_goes_on(local):
    block = {"block": "more?", "key": "more", "depends_on": ["a"], "fields": [{"select": "Cells", "key": "cells", "options": [{"label": "x", "value": "x"}]}]}
    steps = ({"key": "a", "command": "true"}, block, {"key": "b", "command": "buildkite-agent meta-data get cells", "depends_on": ["more"]})
    build = local(*steps)
    assert states(build) == {"a": "passed", "more": "blocked", "b": "blocked"}
    assert build.state is State.PASSED


def test_a_block_step_that_is_released_hands_on_its_field(local, tmp_path):
    block = {"block": "more?", "key": "more", "fields": [{"select": "Cells", "key": "cells", "options": [{"label": "x", "value": "x"}]}]}
    build = local(block, {"key": "b", "command": f"buildkite-agent meta-data get cells > {tmp_path}/cells"}, release={"cells": "x\ny"})
    assert (tmp_path / "cells").read_text() == "x\ny\n"
    assert build.state is State.PASSED


def test_a_timeout_ends_the_job_and_all_below_it_and_is_not_retried(local, tmp_path):
    code = f"sleep 77 & echo $! > {tmp_path}/child; sleep 77"
    step = {"key": "a", "command": code.replace("$", "$$"), "timeout_in_minutes": 1, "retry": {"automatic": [{"exit_status": -1, "limit": 2}]}}
    build = local(step, minute_s=0.4)
    assert states(build)["a"] == "timed_out"
    assert len(build.step("a").jobs[0].attempts) == 1
    assert not runs(int((tmp_path / "child").read_text()))


def test_what_a_job_leaves_behind_is_ended(local, tmp_path):
    build = local({"key": "a", "command": f"sleep 77 & echo $$! > {tmp_path}/child"})
    assert build.state is State.PASSED
    assert not runs(int((tmp_path / "child").read_text()))


def test_ctrl_c_ends_every_process(tmp_path):
    code = (
        "import sys; from pathlib import Path; from ci.local.executor import Build, Options; p = Path(sys.argv[1]);"
        "b = Build(Options(p / 'build', p, grace_s=1)); s = b.run({'steps': [{'key': k, 'command': f'echo $$$$ > {p}/{k}; sleep 77; true'} for k in 'ab']});"
        "sys.exit(130 if s == 'canceled' else 1)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not all((tmp_path / key).exists() and (tmp_path / key).read_text().strip() for key in "ab"):
        assert time.monotonic() < deadline, "the jobs did not start"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "canceled" in out
    pids = [int((tmp_path / key).read_text()) for key in "ab"]
    assert [pid for pid in pids if runs(pid)] == []
    assert json.loads((tmp_path / "build" / "build.json").read_text())["state"] == "canceled"


def test_uploaded_steps_run_and_a_step_that_stood_there_does_not_wait_for_them(local, tmp_path):
    later = {"steps": [{"key": "later", "command": f"sleep 0.3; touch {tmp_path}/later"}]}
    (tmp_path / "later.json").write_text(json.dumps(later))
    build = local(
        {"key": "up", "command": f"buildkite-agent pipeline upload {tmp_path}/later.json"},
        {"key": "static", "command": f"[ ! -e {tmp_path}/later ]", "depends_on": ["up"]},
    )
    assert states(build) == {"up": "passed", "later": "passed", "static": "passed"}
    assert [step.name for step in build.steps] == ["up", "later", "static"]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"key": "up", "command": "true"}], "the build has a step with the key up already"),
        ([{"key": "x", "command": "true", "cache": "y"}], "step x has 'cache', which the local executor does not know"),
        ([{"key": "x", "command": "true", "timeout_in_minutes": "soon"}], "step x: timeout_in_minutes: 'soon' is not of type 'integer'"),
        ([{"key": "x", "commnd": "true"}], "'commnd' was unexpected"),
        ([{"key": f"x{n}", "command": "true"} for n in range(501)], "501 jobs in one upload; 500 is the limit"),
        ([{"key": "x", "command": "true", "parallelism": 501}], "501 jobs in one upload"),
    ],
)
def test_an_upload_is_refused_whole_and_says_why(local, tmp_path, steps, message):
    (tmp_path / "more.json").write_text(json.dumps({"steps": steps}))
    build = local({"key": "up", "command": f"buildkite-agent pipeline upload {tmp_path}/more.json"})
    assert states(build) == {"up": "hard_failed"}
    assert message in "\n".join(build.said)


def test_an_unknown_attribute_is_refused_before_anything_runs(tmp_path):
    build = Build(Options(tmp_path / "build", tmp_path))
    with pytest.raises(Refused, match="step a has 'plugins', which the local executor does not know"):
        build.run({"steps": [{"key": "a", "command": "true", "plugins": ["docker#v5.0.0"]}]})
    with pytest.raises(PipelineError, match="'nonsense' was unexpected"):
        build.run({"steps": [{"key": "a", "command": "true", "nonsense": 1}]})
    assert build.started == []


def test_a_step_for_agents_that_are_not_here_ends_as_lost(local):
    build = local({"key": "a", "command": "true", "agents": {"queue": "npu-a3"}, "soft_fail": [{"exit_status": -1}]})
    assert (states(build)["a"], build.started) == ("soft_failed", [])
    assert "no agent here serves queue npu-a3" in "\n".join(build.said)


def test_an_image_and_a_secret_that_are_not_here_fail_the_step(local):
    build = local({"key": "a", "command": "true", "image": "x@sha256:0"}, {"key": "b", "command": "true", "secrets": ["NOT_THERE"]})
    assert states(build) == {"a": "hard_failed", "b": "hard_failed"}
    assert "secret NOT_THERE is not set here" in "\n".join(build.said)


def test_artifacts_meta_data_and_annotations_pass_between_jobs_that_share_nothing(local):
    made = "mkdir -p out/deep && echo hello > out/deep/file && buildkite-agent meta-data set who me && echo '**hi**' | buildkite-agent annotate --context c"
    wanted = "buildkite-agent artifact download 'out/**/*' . && grep hello out/deep/file && [ $$(buildkite-agent meta-data get who) = me ]"
    missing = "! buildkite-agent artifact download 'none/*' . && ! buildkite-agent meta-data get none && ! buildkite-agent meta-data exists none"
    build = local(
        {"key": "a", "command": made, "artifact_paths": ["out/**/*"]},
        {"key": "b", "command": [wanted, missing], "depends_on": ["a"]},
        {"key": "c", "command": "[ $$(buildkite-agent step get outcome --step a) = passed ]", "depends_on": ["b"]},
        apart=True,
    )
    assert build.state is State.PASSED, "\n".join(build.said)
    assert (build.store.annotations / "c.md").read_text() == "**hi**\n"


def test_the_stand_in_refuses_what_it_does_not_know(local):
    build = local({"key": "a", "command": "buildkite-agent oidc request-token"}, {"key": "b", "command": "buildkite-agent annotate x --priority 3"})
    assert states(build) == {"a": "hard_failed", "b": "hard_failed"}
    assert "'oidc request-token' is not known here" in "\n".join(build.said)


def test_a_jobs_environment_holds_its_own_build_and_not_an_outer_one(local, tmp_path):
    outer = {**os.environ, "BUILDKITE_BUILD_NUMBER": "7", "BUILDKITE_BUILD_ID": "outer"}
    local({"key": "a", "command": f"env > {tmp_path}/env"}, environment=outer, build="mine")
    told = (tmp_path / "env").read_text()
    assert "BUILDKITE_BUILD_ID=mine" in told
    assert "BUILDKITE_BUILD_NUMBER" not in told


@pytest.mark.parametrize(
    ("text", "want"),
    [("$A ${A} $$A \\$A", "1 1 $A $A"), ("${B:-two} ${E:-x} ${E-x}", "two x "), ("$none|${none}", "|"), ("$(date) 5$ ${", "$(date) 5$ ${")],
)
def test_variables_are_replaced_as_an_upload_does(text, want):
    assert interpolated({"x": [text]}, {"A": "1", "E": ""}) == {"x": [want]}


def test_a_variable_that_must_be_set(local, tmp_path):
    with pytest.raises(ValueError, match=r"\$NONE: say which"):
        interpolated("${NONE:?say which}", {})
