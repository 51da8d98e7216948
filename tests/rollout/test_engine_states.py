"""The engine's state machine on a scripted adapter: what may happen when, and that every wait ends and says what it waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rollout.child import config_of
from vime.config.tree import Config
from vime.errors import RunError, UserError
from vime.platforms import registry
from vime.rollout import engine as engine_module
from vime.rollout.engine import EngineActor
from vime.rollout.results import to_results
from vime.rollout.start import LastErrors, end_ids, engine_spec, start_engine
from vime.rollout.types import GenRequest, Sampling
from vime.rollout.vllm_compat.base import EngineSpec, Output


class ScriptedAdapter:
    """Generates one id a step for every request; a request ends at its `max_tokens`."""

    generation = "test"

    def __init__(self) -> None:
        self.running: dict[str, tuple[list[int], int]] = {}
        self.log: list[str] = []
        self.step_s = 0.0
        self.fail: dict[str, Exception] = {}

    def _do(self, name: str) -> None:
        self.log.append(name)
        if name in self.fail:
            raise self.fail.pop(name)

    def start(self, spec: EngineSpec) -> None:
        self._do("start")

    def add(self, request_id: str, prompt: Mapping[str, Any], sampling: Sampling, seed: int | None, max_tokens: int) -> None:
        self.running[request_id] = ([], max_tokens)

    def add_scoring(self, request_id: str, prompt: Mapping[str, Any]) -> None:
        self.running[request_id] = (list(prompt["prompt_token_ids"]), 0)

    def step(self) -> list[Output]:
        time.sleep(self.step_s)
        done = []
        for name, (ids, limit) in list(self.running.items()):
            if limit:
                ids.append(5)
            if len(ids) >= limit:
                del self.running[name]
                done.append(Output(name, ids, np.full(len(ids), -0.5, np.float32), "length", np.zeros(max(0, len(ids) - 1), np.float32)))
        return done

    def unfinished(self) -> int:
        return len(self.running)

    def abort(self, request_ids: Sequence[str]) -> list[Output]:
        cut = [(name, self.running.pop(name)[0]) for name in request_ids if name in self.running]
        return [Output(name, ids, np.full(len(ids), -0.5, np.float32), "abort") for name, ids in cut]

    def begin_update(self, *, draft: bool = False) -> None:
        self._do("begin_update")

    def update(self, version: int, base_version: int | None) -> None:
        self._do("update")

    def finish_update(self) -> None:
        self._do("finish_update")

    def abort_update(self) -> None:
        self._do("abort_update")

    def reset_caches(self) -> None:
        self._do("reset_caches")

    def call_workers(self, method: str, *args: Any) -> list[Any]:
        return [method]

    def shutdown(self) -> None:
        self._do("shutdown")


@pytest.fixture
def adapter() -> ScriptedAdapter:
    return ScriptedAdapter()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "config.json").write_text('{"eos_token_id": 1, "max_position_embeddings": 128, "vocab_size": 64}')
    return config_of(tmp_path, timeout_s=0.4)


@pytest.fixture
def make(adapter: ScriptedAdapter, config: Config, monkeypatch: pytest.MonkeyPatch) -> Callable[..., EngineActor]:
    monkeypatch.setattr(engine_module, "adapter_for", lambda version: adapter)

    def build(in_flight: str = "drain", weights_version: int | None = 0, **timeouts: float) -> EngineActor:
        changed = replace(config, weights=replace(config.weights, in_flight=in_flight), timeouts=replace(config.timeouts, **timeouts))
        actor = EngineActor()
        actor.start(changed, 3, config.model.path, weights_version=weights_version)
        return actor

    return build


def request(name: str = "0-0-0", tokens: int = 4) -> GenRequest:
    return GenRequest(name, [2, 3], 1, tokens)


def in_thread(function: Callable[..., Any], *args: Any) -> Future:
    return ThreadPoolExecutor(1).submit(function, *args)


def sync(actor: EngineActor, version: int) -> None:
    actor.begin(version)
    actor.receive(version)
    actor.commit(version)
    actor.resume()


def test_a_fresh_engine_is_dirty_until_a_sync_commits(make: Callable[..., EngineActor]) -> None:
    actor = make(weights_version=None)
    assert actor.state() == ("dirty", -1)
    with pytest.raises(RunError, match=r"rollout: engine 3 holds no committed weights \(dirty\)"):
        actor.generate([request()], Sampling())
    with pytest.raises(RunError, match="engine log-probs: engine 3 holds no committed weights"):
        actor.logprobs([[1, 2]])
    sync(actor, 7)
    assert actor.state() == ("clean", 7)
    assert actor.generate([request()], Sampling())[0].weight_version == 7


def test_commit_resets_caches_after_the_weights_are_in_place(make: Callable[..., EngineActor], adapter: ScriptedAdapter) -> None:
    sync(make(), 1)
    assert adapter.log == ["start", "begin_update", "update", "finish_update", "reset_caches"]


@pytest.mark.parametrize("stage", ["update", "finish_update", "reset_caches"])
def test_a_failure_between_begin_and_commit_leaves_the_engine_dirty(stage: str, make: Callable[..., EngineActor], adapter: ScriptedAdapter) -> None:
    actor = make()
    adapter.fail[stage] = RuntimeError("broken")
    with pytest.raises(RuntimeError, match="broken"):
        sync(actor, 1)
    assert actor.state() == ("dirty", -1)
    assert adapter.log[-1] == "abort_update"
    with pytest.raises(RunError, match="dirty"):
        actor.generate([request()], Sampling())
    with pytest.raises(RunError, match="engine 3 is dirty and cannot resume"):
        actor.resume()
    sync(actor, 2)
    assert actor.state() == ("clean", 2)


def test_calls_out_of_order_are_refused(make: Callable[..., EngineActor]) -> None:
    actor = make()
    with pytest.raises(RunError, match="version 1 was sent before begin"):
        actor.receive(1)
    with pytest.raises(RunError, match="no open update to commit version 1"):
        actor.commit(1)
    actor.begin(1)
    with pytest.raises(RunError, match="version 2 cannot begin while another update is open"):
        actor.begin(2)
    with pytest.raises(RunError, match="engine 3 is updating and cannot resume"):
        actor.resume()


def test_abort_of_an_engine_that_is_not_updating_makes_it_dirty(make: Callable[..., EngineActor], adapter: ScriptedAdapter) -> None:
    """Another engine failed after this one had committed: it must not go on alone."""
    actor = make()
    actor.abort(5)
    assert actor.state() == ("dirty", -1)
    assert "abort_update" not in adapter.log


def test_drain_lets_requests_finish_before_the_update_begins(make: Callable[..., EngineActor], adapter: ScriptedAdapter) -> None:
    actor = make("drain")
    adapter.step_s = 0.02
    running = in_thread(actor.generate, [request(tokens=8)], Sampling())
    time.sleep(0.05)
    actor.begin(1)
    assert adapter.unfinished() == 0
    (result,) = running.result(5)
    assert (len(result.response_ids), result.finish_reason, result.weight_version) == (8, "length", 0)


def test_draining_has_a_deadline_that_names_what_it_waits_for(make: Callable[..., EngineActor], adapter: ScriptedAdapter) -> None:
    actor = make("drain")
    adapter.step_s = 0.05
    running = in_thread(actor.generate, [request(tokens=40)], Sampling())
    time.sleep(0.1)
    with pytest.raises(RunError, match=r"weight sync: engine 3: waited too long for requests under way to finish \(weights.in_flight: drain\)"):
        actor.begin(1)
    assert actor.state() == ("clean", 0)
    assert len(running.result(9)[0].response_ids) == 40


def test_abort_cuts_requests_and_returns_what_they_had(make: Callable[..., EngineActor], adapter: ScriptedAdapter) -> None:
    actor = make("abort")
    adapter.step_s = 0.02
    running = in_thread(actor.generate, [request(tokens=100)], Sampling())
    time.sleep(0.1)
    sync(actor, 1)
    (result,) = running.result(5)
    assert result.finish_reason == "abort"
    assert 0 < len(result.response_ids) < 100
    assert len(result.logprobs) == len(result.response_ids)
    assert actor.generate([request("0-0-0")], Sampling())[0].weight_version == 1


def test_keep_pauses_requests_and_goes_on_under_the_new_weights(make: Callable[..., EngineActor], adapter: ScriptedAdapter) -> None:
    actor = make("keep")
    adapter.step_s = 0.02
    running = in_thread(actor.generate, [request(tokens=30)], Sampling())
    time.sleep(0.1)
    actor.begin(1)
    had = len(adapter.running["0-0-0"][0])
    time.sleep(0.1)
    assert len(adapter.running["0-0-0"][0]) == had  # nothing is stepped between begin and resume
    actor.receive(1)
    actor.commit(1)
    actor.resume()
    (result,) = running.result(5)
    assert (len(result.response_ids), result.finish_reason) == (30, "length")
    assert result.weight_version == 0  # the oldest weights any of its ids came from


def test_generation_waits_for_an_update_to_end(make: Callable[..., EngineActor]) -> None:
    actor = make()
    actor.begin(1)
    waiting = in_thread(actor.generate, [request()], Sampling())
    time.sleep(0.05)
    assert not waiting.done()
    actor.receive(1)
    actor.commit(1)
    actor.resume()
    assert waiting.result(5)[0].weight_version == 1


def test_scoring_works_while_generation_is_paused(make: Callable[..., EngineActor]) -> None:
    """The proof of a sync scores after commit and before resume."""
    actor = make()
    actor.begin(1)
    actor.receive(1)
    actor.commit(1)
    assert actor.logprobs([[1, 2, 3]])[0].tolist() == [0.0, 0.0]


def test_a_rollout_deadline_names_the_stage_and_leaves_nothing_that_could_answer_late(make: Callable[..., EngineActor], adapter: ScriptedAdapter) -> None:
    actor = make(rollout_s=0.2)
    adapter.step_s = 0.05
    with pytest.raises(RunError, match=r"rollout: engine 3: 1 of 2 requests were not done in time \(timeouts.rollout_s\)"):
        actor.generate([request("0-0-0", 1000), request("0-0-1", 1)], Sampling())
    assert adapter.unfinished() == 0
    assert actor.generate([request("0-0-0", 2)], Sampling())[0].response_ids == [5, 5]


def test_two_callers_share_the_engine(make: Callable[..., EngineActor], adapter: ScriptedAdapter) -> None:
    actor = make()
    adapter.step_s = 0.005
    first = in_thread(actor.generate, [request(f"0-0-{index}", 20) for index in range(4)], Sampling())
    second = in_thread(actor.generate, [request(f"0-1-{index}", 5) for index in range(4)], Sampling())
    assert [result.sample_id for result in second.result(5)] == [f"0-1-{index}" for index in range(4)]
    assert [len(result.response_ids) for result in first.result(5)] == [20] * 4


def test_the_same_sample_asked_for_twice_is_refused(make: Callable[..., EngineActor]) -> None:
    with pytest.raises(RunError, match="sample 0-0-0 was requested twice"):
        make().generate([request(), request()], Sampling())


def test_temperature_0_is_refused_before_anything_is_queued(make: Callable[..., EngineActor], adapter: ScriptedAdapter) -> None:
    with pytest.raises(UserError, match="rollout.temperature: 0 is refused"):
        make().generate([request()], Sampling(temperature=0.0))
    assert adapter.unfinished() == 0


def output(ids: list[int], logprobs: Any, reason: str = "length") -> Output:
    return Output("5-2-1", ids, None if logprobs is None else np.float32(logprobs), reason)


def test_a_missing_log_prob_is_an_error_that_names_the_sample() -> None:
    with pytest.raises(RunError, match="sample 5-2-1: vLLM returned 0 log-probs for 2 ids"):
        to_results([output([4, 5], None)], [0], {1})
    with pytest.raises(RunError, match="sample 5-2-1: vLLM returned 1 log-probs for 2 ids"):
        to_results([output([4, 5], [-1.0])], [0], {1})
    good = Output("5-2-0", [4], np.float32([-1.0]), "length")
    with pytest.raises(RunError, match="sample 5-2-1: the log-prob of id 5 at position 1 is nan"):
        to_results([good, output([4, 5], [-1.0, np.nan]), good], [0, 0, 0], {1})
    with pytest.raises(RunError, match=r"sample 5-2-1: vLLM ended it \(stop\) with no ids"):
        to_results([output([], [], "stop")], [0], {1})


def test_an_end_mark_exactly_at_the_limit_is_a_stop() -> None:
    assert to_results([output([4, 1], [-1.0, -1.0], "length")], [0], {1})[0].finish_reason == "stop"
    assert to_results([output([4, 5], [-1.0, -1.0], "length")], [0], {1})[0].finish_reason == "length"


def test_end_ids_come_from_the_generation_config_first(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model.path: .* has no config.json"):
        end_ids(str(tmp_path))
    (tmp_path / "config.json").write_text('{"eos_token_id": 3}')
    assert end_ids(str(tmp_path)) == {3}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 9]}')
    assert end_ids(str(tmp_path)) == {3, 9}
    (tmp_path / "config.json").write_text('{"text_config": {"eos_token_id": 4}}')
    (tmp_path / "generation_config.json").write_text("{}")
    assert end_ids(str(tmp_path)) == {4}


def test_a_sequence_may_hold_prompt_answer_and_one_scored_id(config: Config) -> None:
    assert engine_spec(config, config.model.path, load_weights=False).max_model_len == 33
    tight = replace(config, rollout=replace(config.rollout, max_prompt_tokens=64, max_response_tokens=64))
    assert engine_spec(tight, config.model.path, load_weights=False).max_model_len == 128  # not beyond what the model can
    longer = replace(config, vllm={"max-model-len": 100})
    assert engine_spec(longer, config.model.path, load_weights=False).max_model_len == 100
    shorter = replace(config, vllm={"max_model_len": 31})
    with pytest.raises(
        UserError, match=r"vllm.max_model_len: 31 is less than rollout.max_prompt_tokens \+ max_response_tokens = 16 \+ 16: answers would be cut"
    ):
        engine_spec(shorter, config.model.path, load_weights=False)
    assert engine_spec(config, config.model.path, load_weights=False).options["enforce_eager"] is True  # on CPU, unless asked otherwise


def test_compiled_execution_on_cpu_is_a_choice(config: Config) -> None:
    graph = replace(config, vllm={"enforce-eager": False})
    assert engine_spec(graph, config.model.path, load_weights=False).options["enforce_eager"] is False
    environments = [registry.get("cpu").environment("engine", one)["TORCHDYNAMO_DISABLE"] for one in (config, graph)]
    assert environments == ["1", "0"]


def test_graph_execution_is_refused_where_the_platform_lacks_it(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.get("cpu"), "missing", {"graph": "it captures nothing"})
    graph = replace(config, vllm={"enforce-eager": False})
    with pytest.raises(UserError, match=r"vllm.enforce_eager: false is not possible on cpu: it captures nothing. Remove it."):
        engine_spec(graph, config.model.path, load_weights=False)


def test_vllms_own_last_error_explains_a_failed_start() -> None:
    import logging

    adapter = ScriptedAdapter()

    def start(spec: EngineSpec) -> None:
        logging.getLogger("vllm.engine").error("worker 0 failed: head size 16 is not supported")
        raise RuntimeError("Engine core initialization failed. See root cause above.")

    adapter.start = start
    spec = EngineSpec("/models/x", "float32", 8, 8)
    with pytest.raises(RunError, match="engine start: engine 2: vLLM could not start on /models/x: worker 0 failed: head size 16 is not supported"):
        start_engine(adapter, spec, 2)
    assert not [handler for handler in logging.getLogger("vllm").handlers if isinstance(handler, LastErrors)]

    def silent(spec: EngineSpec) -> None:
        raise ValueError("no such dtype")

    adapter.start = silent
    with pytest.raises(RunError, match="vLLM could not start on /models/x: ValueError: no such dtype"):
        start_engine(adapter, spec, 2)
