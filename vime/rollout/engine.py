"""One vLLM engine as the loop sees it: generation, teacher-forced scoring, and its side of the weight session."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from vime.config.tree import Config
from vime.data.images import Image
from vime.errors import RunError
from vime.platforms import registry
from vime.rollout.pictures import check_expanded, engine_prompt
from vime.rollout.results import check_unique, scored, to_results
from vime.rollout.start import end_ids, engine_spec, model_config, start_engine
from vime.rollout.types import GenRequest, GenResult, Sampling
from vime.rollout.vllm_compat import VllmAdapter, adapter_for, installed_version
from vime.rollout.vllm_compat.base import Output
from vime.weights.connection import Connection
from vime.weights.plan import Box
from vime.weights.receiver import Received

State = Literal["clean", "updating", "dirty"]
UNSYNCED = -1
SLEEP_TAGS = ("weights", "kv_cache")  # what vLLM's sleep mode can wake one by one
PATIENCE = 0.95  # of a deadline: the engine gives up before the driver that waits for it, because it knows what it waited for


class EngineActor:
    """A plain class; `loop` makes it a Ray actor.

    States: `clean` (holds version v, may generate), `updating` (between begin and commit), `dirty` (weights undefined: refuses to generate or score until a
    full sync commits). A fresh engine is dirty, so nothing is ever sampled from weights that no sync has proven. Methods may be called from several threads:
    generation holds the engine for one scheduler step at a time.
    """

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._queue = threading.Lock()  # held while waiting for the turn: generation, which takes it again at once, would keep everybody else out
        self._paused = False
        self._state: State = "dirty"
        self._version = UNSYNCED
        self._updating = False
        self._asleep: set[str] = set()
        self._running: dict[str, int] = {}  # request id → version it started under
        self._ended: dict[str, Output] = {}

    def start(self, config: Config, index: int, model_path: str, weights_version: int | None = None) -> dict[str, Any]:
        """Build the engine; raises `RunError("engine start", …)` with vLLM's own words when it cannot be built.

        `weights_version` None: the weights come from the first sync and the engine is dirty until then. A number: the weights of `model_path` are that version.
        Returns {"index", "vllm", "generation", "workers", "dtype", "eos_token_ids"}.
        """
        self.config, self.index = config, index
        self.platform = registry.get(config.platform)
        self._eos, self._vocabulary = end_ids(model_path), int(model_config(model_path)["vocab_size"])
        self._image_token: int | None = model_config(model_path).get("image_token_id")
        version = installed_version()
        self._adapter: VllmAdapter = adapter_for(version)
        self._spec = spec = engine_spec(config, model_path, load_weights=weights_version is not None)
        start_engine(self._adapter, spec, index)
        if weights_version is not None:
            self._state, self._version = "clean", weights_version
        return {
            "index": index,
            "vllm": version,
            "generation": self._adapter.generation,
            "workers": spec.tensor_parallel,
            "dtype": spec.dtype,
            "eos_token_ids": sorted(self._eos),
        }

    def generate(self, requests: Sequence[GenRequest], sampling: Sampling) -> list[GenResult]:
        """One answer for each request, in the order given.

        Raises `UserError` for temperature 0 in training, `RunError` when the engine is dirty or a log-prob is missing (naming the sample). An answer cut
        short by a weight update under the policy `abort` comes back with finish reason `abort`.
        """
        sampling.check()
        for request in requests:
            self._check_ids(f"sample {request.sample_id}", request.prompt_ids, "rollout")
        sampling = replace(sampling, stop_token_ids=tuple(sorted({*sampling.stop_token_ids, *self._eos})))
        check_unique(request.sample_id for request in requests)
        pictures: dict[str, Any] = {}
        prompts = [engine_prompt(request.prompt_ids, request.images, self._image_token, pictures) for request in requests]
        with self._turn:
            self._wait_clean("rollout")
            for request, prompt in zip(requests, prompts, strict=True):
                self._adapter.add(request.sample_id, prompt, sampling, request.seed, request.max_tokens)
                self._running[request.sample_id] = self._version
        ended = self._run([request.sample_id for request in requests], "rollout", self.config.timeouts.rollout_s)
        found = [ended[request.sample_id] for request in requests]
        for request, (output, _) in zip(requests, found, strict=True):
            if request.images and output.finish_reason != "abort":
                check_expanded(f"sample {request.sample_id}", request.prompt_ids, output.prompt_ids)
        return to_results([output for output, _ in found], [version for _, version in found], set(sampling.stop_token_ids))

    def speculated(self) -> tuple[int, int]:
        """(drafts, accepted tokens) of speculative decoding since the start."""
        return self._adapter.speculated()

    def logprobs(self, sequences: Sequence[Sequence[int]], images: Sequence[tuple[Image, ...]] | None = None) -> list[np.ndarray]:
        """Teacher-forced float32[len−1] of each sequence at temperature 1: log p(id t | ids before t), t ≥ 1. `images`: those of each sequence. Raises
        `RunError` when dirty."""
        for number, ids in enumerate(sequences):
            self._check_ids(f"sequence {number}", ids, "engine log-probs")
        pictures: dict[str, Any] = {}
        given = images or [()] * len(sequences)
        prompts = [engine_prompt(ids, own, self._image_token, pictures) for ids, own in zip(sequences, given, strict=True)]
        names = [f"score-{threading.get_ident()}-{time.monotonic_ns()}-{number}" for number in range(len(sequences))]
        with self._turn:
            self._wait_clean("engine log-probs")
            for name, prompt in zip(names, prompts, strict=True):
                self._adapter.add_scoring(name, prompt)
                self._running[name] = self._version
        outputs = self._run(names, "engine log-probs", self.config.timeouts.rollout_s, while_paused=True)
        for number, (name, ids, own) in enumerate(zip(names, sequences, given, strict=True)):
            if own:
                check_expanded(f"sequence {number}", ids, outputs[name][0].prompt_ids)
        return [scored(outputs[name][0], ids) for name, ids in zip(names, sequences, strict=True)]

    def _check_ids(self, what: str, ids: Sequence[int], stage: str) -> None:
        """vLLM would stop at such ids in the middle of a batch, or not at all."""
        if not 0 < len(ids) < self._spec.max_model_len:
            raise RunError(
                stage, f"{what}: {len(ids)} ids do not fit an engine of {self._spec.max_model_len} (rollout.max_prompt_tokens + max_response_tokens)"
            )
        if not 0 <= min(ids) <= max(ids) < self._vocabulary:
            raise RunError(stage, f"{what}: ids from {min(ids)} to {max(ids)}, but the model's vocabulary has {self._vocabulary}")

    def _run(self, names: Sequence[str], stage: str, timeout_s: float, *, while_paused: bool = False) -> dict[str, tuple[Output, int]]:
        """Step the engine until all of `names` ended; other callers' requests advance with them. Scoring goes on while paused: the proof of a sync needs it."""
        until = time.monotonic() + PATIENCE * timeout_s
        found: dict[str, tuple[Output, int]] = {}
        left = set(names)
        try:
            self._step_until(found, left, len(names), until, stage, while_paused)
        except BaseException:
            self._forget(left)  # nothing may answer late
            raise
        return found

    def _step_until(self, found: dict[str, tuple[Output, int]], left: set[str], total: int, until: float, stage: str, while_paused: bool) -> None:
        while left:
            with self._next_turn():
                self._wait(lambda: while_paused or not self._paused or not left.isdisjoint(self._ended), until, stage, "the engine to be resumed")
                if not left & self._ended.keys():
                    self._ended.update((output.request_id, output) for output in self._adapter.step())
                for name in left & self._ended.keys():
                    found[name] = (self._ended.pop(name), self._running.pop(name))
                    self._turn.notify_all()
                left.difference_update(found)
            if left and time.monotonic() > until:
                raise RunError(stage, f"engine {self.index}: {len(left)} of {total} requests were not done in time (timeouts.rollout_s)")

    @contextlib.contextmanager
    def _next_turn(self) -> Iterator[None]:
        """The turn, in order of asking among those who ask so."""
        with self._queue:
            self._turn.acquire()
        try:
            yield
        finally:
            self._turn.release()

    def _forget(self, names: set[str]) -> None:
        with self._turn:
            self._adapter.abort([name for name in names if name not in self._ended])
            for name in names:
                self._running.pop(name, None)
                self._ended.pop(name, None)
            self._turn.notify_all()

    # ---- weight session -------------------------------------------------------------------------------------------------------------------------------

    def connect(self, connection: Connection) -> None:
        """Join the senders of a connection, in every worker process."""
        self._adapter.call_workers("vime_connect", connection, self.index)

    def layout(self) -> list[dict[str, Box] | None]:
        """What each worker needs of every tensor, for peer-to-peer plans: a box by name, or None for everything."""
        return self._adapter.call_workers("vime_layout")

    def disconnect(self) -> None:
        self._adapter.call_workers("vime_disconnect")

    def begin(self, version: int, draft: bool = False) -> None:
        """Bring requests under way to rest by `weights.in_flight` (drain, abort or keep), then open the update, of the model or of its draft model. Nothing
        generates from here to `resume`."""
        with self._next_turn():
            if self._updating:
                raise RunError("weight sync", f"engine {self.index}: version {version} cannot begin while another update is open")
            self._refuse_asleep("weight sync", ("weights",))
            self._quiesce(self.config.weights.in_flight)
            self._state, self._updating = "updating", True
            self._adapter.begin_update(draft=draft)

    def receive(self, version: int, base_version: int | None = None, draft: bool = False) -> list[Received]:
        """Receive and load `version`, whole or as a delta against `base_version`; one report a worker. Any failure leaves the engine dirty. `draft` as given to
        `begin`."""
        if not self._updating:
            raise RunError("weight sync", f"engine {self.index}: version {version} was sent before begin")
        try:
            self._adapter.update(version, base_version)
            return self._adapter.call_workers("vime_report", draft)
        except BaseException:
            self.abort(version)
            raise

    def commit(self, version: int) -> None:
        """Finish the update and drop what older weights computed. The engine is clean at `version`, but generates only after `resume`."""
        if not self._updating:
            raise RunError("weight sync", f"engine {self.index}: there is no open update to commit version {version} of")
        try:
            self._adapter.finish_update()
            self._adapter.reset_caches()
        except BaseException:
            self.abort(version)
            raise
        self._updating, self._state, self._version = False, "clean", version

    def abort(self, version: int) -> None:
        """Leave an update half-way: the engine is dirty until a full sync commits."""
        was_open, self._updating, self._state, self._version = self._updating, False, "dirty", UNSYNCED
        if was_open:
            self._adapter.abort_update()

    def held(self) -> list[dict[str, str]]:
        """Digests of those tensors that can be read back from the engine, one dict a worker."""
        return self._adapter.call_workers("vime_held")

    def state(self) -> tuple[State, int]:
        """(state, version); the version of a dirty engine is −1."""
        return self._state, self._version

    def pause(self) -> None:
        """Stop stepping; requests under way stay."""
        with self._next_turn():
            self._paused = True

    def resume(self) -> None:
        """Step again. Raises `RunError` when the engine is dirty: it stays paused."""
        with self._turn:
            if self._state != "clean":
                raise RunError("weight sync", f"engine {self.index} is {self._state} and cannot resume before a full weight sync")
            self._paused = False
            self._turn.notify_all()

    # ---- memory ---------------------------------------------------------------------------------------------------------------------------------------

    def sleep(self, level: int) -> None:
        """Give device memory back: level 1 keeps the weights on the host, level 2 drops them (a full sync must follow). Raises `RunError` while requests run or
        an update is open."""
        with self._turn:
            if self._updating or self._adapter.unfinished():
                raise RunError("memory", f"engine {self.index} cannot sleep while it {'is updated' if self._updating else 'has requests under way'}")
            self._adapter.sleep(level)
            self._asleep = set(SLEEP_TAGS)
            if level > 1:
                self._state, self._version = "dirty", UNSYNCED

    def wake(self, tags: Sequence[str] = SLEEP_TAGS) -> None:
        """Take memory back: `weights`, `kv_cache`, or both. Raises `RunError` for a tag vLLM does not know; what is awake stays so."""
        unknown = sorted(set(tags) - set(SLEEP_TAGS))
        if unknown:
            raise RunError("memory", f"engine {self.index} cannot wake {unknown[0]!r}: one of {', '.join(SLEEP_TAGS)}")
        with self._turn:
            wanted = [tag for tag in SLEEP_TAGS if tag in tags and tag in self._asleep]
            if wanted:
                self._adapter.wake(wanted)
                self._asleep.difference_update(wanted)

    def _refuse_asleep(self, stage: str, needed: Sequence[str] = SLEEP_TAGS) -> None:
        missing = [tag for tag in needed if tag in self._asleep]
        if missing:
            raise RunError(stage, f"engine {self.index} is asleep ({', '.join(missing)}): wake it first")

    def shutdown(self) -> None:
        """End vLLM and its worker processes."""
        self._adapter.shutdown()

    # ---- waiting --------------------------------------------------------------------------------------------------------------------------------------

    def _quiesce(self, policy: str) -> None:
        until = time.monotonic() + PATIENCE * self.config.weights.timeout_s
        if policy == "drain":
            self._wait(lambda: not self._adapter.unfinished(), until, "weight sync", "requests under way to finish (weights.in_flight: drain)")
        elif policy == "abort":
            open_ids = [name for name in self._running if name not in self._ended]
            self._ended.update((output.request_id, output) for output in self._adapter.abort(open_ids))
            self._turn.notify_all()
        self._paused = True

    def _wait_clean(self, stage: str) -> None:
        until = time.monotonic() + PATIENCE * self.config.weights.timeout_s
        self._wait(lambda: not self._updating, until, stage, "a weight update to end")
        self._refuse_asleep(stage)
        if self._state == "dirty":
            raise RunError(stage, f"engine {self.index} holds no committed weights (dirty): it refuses to generate or score until a full weight sync")

    def _wait(self, ready: Any, until: float, stage: str, what: str) -> None:
        """With the lock held."""
        if not self._turn.wait_for(ready, max(0.0, until - time.monotonic())):
            raise RunError(stage, f"engine {self.index}: waited too long for {what}")
