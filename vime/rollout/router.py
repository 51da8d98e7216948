"""Spreads the groups of a step over the engines and brings back exactly n unique samples a group, or says why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vime.config.tree import Config
from vime.data import Prompt, Sample, decode_responses, end_token_ids, validate_all
from vime.errors import RunError
from vime.rollout.types import GenRequest, GenResult, Sampling, request_seed
from vime.weights.handles import Handle

STAGE = "rollout"
Group = tuple[int, Prompt]  # consumption number of the prompt in the run, and the prompt
Failed = dict[int, tuple[list[GenRequest], str]]  # group → its requests and what went wrong
Refill = Callable[[int], Sequence[Group]]


@dataclass
class Counts:
    """What went wrong in one step."""

    retries: int = 0  # groups that were asked for again
    refilled: int = 0  # groups given up and replaced by another prompt's
    dropped: int = 0  # groups given up and left out
    reasons: list[str] = field(default_factory=list)
    drafts: int = 0  # of speculative decoding
    accepted: int = 0  # drafted tokens that the model would have sampled

    def metrics(self) -> dict[str, float]:
        """`spec/accept_len`: tokens a step of the model gave on average, its own one included; only where there were drafts."""
        speculated = {"spec/accept_len": 1 + self.accepted / self.drafts} if self.drafts else {}
        return speculated | {"rollout/group_retry_count": self.retries, "rollout/group_refill_count": self.refilled, "rollout/group_drop_count": self.dropped}


class Router:
    """Generation over all engines.

    A group stays whole on one engine (its prompt is computed once). A group that fails is asked for again, alone, on the next engine, at most
    `rollout.max_retries` times; then `rollout.incomplete_group` decides: fail the run with the engine's message, drop the group whole, or refill it from
    `refill(n)`. Only the answers of the call that is waited for are taken, so a late answer cannot arrive twice. An engine that died is not retried here:
    `WorkerDied` goes to the caller.
    """

    def __init__(self, engines: Sequence[Handle], config: Config, tokenizer: Any, *, event: Callable[..., None] | None = None):
        self.engines, self.config, self.tokenizer = list(engines), config, tokenizer
        self.event = event or (lambda kind, **fields: None)
        self.end_ids = end_token_ids(config.model.path, tokenizer, config.rollout.stop_token_ids)
        self.counts = Counts()
        self._speculated: list[tuple[int, int]] = [(0, 0)] * len(self.engines)

    def rejoin(self, index: int, engine: Handle) -> None:
        """Engine `index` was restarted."""
        self.engines[index] = engine

    def generate(self, step: int, groups: Sequence[Group], refill: Refill | None = None) -> list[Sample]:
        """`samples_per_prompt` samples of each group, in order of group and index. Raises `RunError` when a group cannot be had and the policy is to fail."""
        self.counts = Counts()
        rollout = self.config.rollout
        sampling = Sampling(rollout.temperature, rollout.top_p, rollout.top_k, self.end_ids, "train")
        requests = {group: self._requests(step, group, prompt) for group, prompt in groups}
        prompts = dict(groups)
        done, failed = self._try_all(requests, sampling)
        done |= self._settle(step, failed, sampling, refill, prompts)
        self.counts.drafts, self.counts.accepted = self._count_speculated()
        return self._samples([(prompts[group], group, index, result) for group in sorted(done) for index, result in enumerate(done[group])])

    def evaluate(self, step: int, prompts: Sequence[Prompt]) -> list[Sample]:
        """One answer to each held-out prompt at `eval.temperature`, in order. A failure fails the run: a score over part of the set is no score."""
        sampling = Sampling(self.config.eval.temperature, 1.0, -1, self.end_ids, "eval")
        limit, seed = self.config.rollout.max_response_tokens, self.config.eval.seed
        requests = {
            number: [GenRequest(f"eval-{step}-{number}-0", prompt.ids, request_seed(seed, step, number, 0), limit, prompt.images)]
            for number, prompt in enumerate(prompts)
        }
        done, failed = self._try_all(requests, sampling)
        self._count_speculated()  # not the next step's
        if failed:
            raise RunError("eval", next(iter(failed.values()))[1])
        return self._samples([(prompts[number], number, 0, done[number][0]) for number in range(len(prompts))])

    # ---- one step ---------------------------------------------------------------------------------------------------------------------------------------

    def _requests(self, step: int, group: int, prompt: Prompt) -> list[GenRequest]:
        rollout = self.config.rollout
        indices = range(rollout.samples_per_prompt)
        seeds = [request_seed(self.config.seed, step, group, index) if rollout.deterministic else None for index in indices]
        return [GenRequest(f"{step}-{group}-{index}", prompt.ids, seeds[index], rollout.max_response_tokens, prompt.images) for index in indices]

    def _try_all(self, requests: dict[int, list[GenRequest]], sampling: Sampling) -> tuple[dict[int, list[GenResult]], Failed]:
        """Every group once: (results by group, requests and message of the groups that failed)."""
        shares = spread(list(requests), len(self.engines))
        busy = [(engine, share) for engine, share in zip(self.engines, shares, strict=True) if share]
        pending = [(share, engine.call("generate", flatten(requests[group] for group in share), sampling)) for engine, share in busy]
        done: dict[int, list[GenResult]] = {}
        failed: Failed = {}
        for share, call in pending:
            results, problem = self._collect(call)
            for group in share:
                answers, lack = complete(requests[group], results, problem)
                if answers is None:
                    failed[group] = (requests[group], lack)
                else:
                    done[group] = answers
        return done, failed

    def _settle(self, step: int, failed: Failed, sampling: Sampling, refill: Refill | None, prompts: dict[int, Prompt]) -> dict[int, list[GenResult]]:
        """Retry failed groups one by one, then do with them what the policy says."""
        done: dict[int, list[GenResult]] = {}
        left = list(failed.items())
        replacements = len(failed) * (1 + self.config.rollout.max_retries)  # refilling ends too
        while left:
            group, (requests, problem) = left.pop(0)
            answers, problem = self._retry(group, requests, sampling, problem)
            if answers is not None:
                done[group] = answers
                continue
            self._give_up(group, problem)
            if self.config.rollout.incomplete_group == "refill":
                if refill is None or not replacements:
                    raise RunError(STAGE, f"group {group} could not be filled and there is no other prompt to take: {problem}")
                replacements -= 1
                for other, prompt in refill(1):
                    prompts[other] = prompt
                    left.append((other, (self._requests(step, other, prompt), "not tried yet")))
        return done

    def _retry(self, group: int, requests: list[GenRequest], sampling: Sampling, problem: str) -> tuple[list[GenResult] | None, str]:
        for attempt in range(self.config.rollout.max_retries):
            self.counts.retries += 1
            self.event("retry", stage=STAGE, group=group, attempt=attempt + 1, text=problem)
            engine = self.engines[(group + attempt + 1) % len(self.engines)]
            results, trouble = self._collect(engine.call("generate", requests, sampling))
            answers, problem = complete(requests, results, trouble)
            if answers is not None:
                return answers, ""
        return None, problem

    def _count_speculated(self) -> tuple[int, int]:
        """Drafts and accepted tokens over all engines since the last call. Engines count from their start."""
        if self.config.rollout.speculative.method == "none":
            return 0, 0
        before, self._speculated = self._speculated, [engine.call("speculated").result(self.config.timeouts.rollout_s, STAGE) for engine in self.engines]
        since = [now if now[0] < then[0] else (now[0] - then[0], now[1] - then[1]) for now, then in zip(self._speculated, before, strict=True)]
        return sum(drafts for drafts, _ in since), sum(accepted for _, accepted in since)  # an engine that counts less was restarted

    def _give_up(self, group: int, problem: str) -> None:
        policy = self.config.rollout.incomplete_group
        if policy == "fail":
            raise RunError(STAGE, f"group {group} failed {1 + self.config.rollout.max_retries} times (rollout.max_retries): {problem}")
        self.counts.refilled += policy == "refill"
        self.counts.dropped += policy == "drop"
        self.counts.reasons.append(problem)
        self.event("sample_dropped", stage=STAGE, group=group, policy=policy, text=problem)

    def _collect(self, call: Any) -> tuple[list[GenResult], str]:
        """The results of one engine call, or the message of what failed."""
        try:
            return call.result(self.config.timeouts.rollout_s, STAGE), ""
        except RunError as error:
            if type(error) is not RunError:  # WorkerDied: the engine needs a restart, not a retry
                raise
            return [], error.message

    def _samples(self, answers: Sequence[tuple[Prompt, int, int, GenResult]]) -> list[Sample]:
        """From (prompt, group, index in it, result)."""
        texts = decode_responses(self.tokenizer, [result.response_ids for *_, result in answers], self.end_ids)
        samples = [
            Sample(
                sample_id=result.sample_id,
                group_id=group,
                index=index,
                prompt=prompt,
                response_ids=result.response_ids,
                engine_logprobs=result.logprobs,
                loss_mask=np.ones(len(result.response_ids), np.uint8),
                finish_reason=result.finish_reason,
                weight_version=result.weight_version,
                text=text,
            )
            for (prompt, group, index, result), text in zip(answers, texts, strict=True)
        ]
        validate_all(samples)
        return samples


def spread(groups: Sequence[int], engines: int) -> list[list[int]]:
    """Consecutive groups to each engine, sizes at most one apart; the same split for the same numbers."""
    base, extra = divmod(len(groups), engines)
    sizes = [base + (index < extra) for index in range(engines)]
    starts = [sum(sizes[:index]) for index in range(engines)]
    return [list(groups[start : start + size]) for start, size in zip(starts, sizes, strict=True)]


def complete(requests: Sequence[GenRequest], results: Iterable[GenResult], problem: str) -> tuple[list[GenResult] | None, str]:
    """A group's results in the order of its requests, or None and what is wrong: a missing, doubled or cut-short sample spoils the whole group."""
    wanted = {request.sample_id for request in requests}
    by_id: dict[str, GenResult] = {}
    for result in results:
        if result.sample_id in wanted:
            if result.sample_id in by_id:
                raise RunError(STAGE, f"sample {result.sample_id} arrived twice")
            by_id[result.sample_id] = result
    missing = sorted(wanted - by_id.keys())
    if missing:
        return None, problem or f"the engine returned no answer for sample {missing[0]}"
    cut = [name for name, result in by_id.items() if result.finish_reason == "abort"]
    if cut:
        return None, f"sample {cut[0]} was aborted by a weight update"
    return [by_id[request.sample_id] for request in requests], ""


def flatten(groups: Iterable[list[GenRequest]]) -> list[GenRequest]:
    return [request for group in groups for request in group]
