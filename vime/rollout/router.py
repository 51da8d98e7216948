"""Groups of prompts to engines, and answers back to samples: exactly `samples_per_prompt` unique ones a group, or what `rollout.incomplete_group` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vime.config.tree import Config
from vime.data import Prompt, Sample, decode_response, end_token_ids, group_samples
from vime.errors import RunError
from vime.rollout.types import GenRequest, GenResult, Sampling, request_seed
from vime.weights.handles import Gather, Handle

STAGE = "rollout"
Group = tuple[int, Prompt]
Wanted = tuple[GenRequest, Prompt, int]  # request, its prompt, its index in the group


class Router:
    """Spreads whole groups over the engines in turn and puts the answers together by sample id, never by position."""

    def __init__(self, engines: Sequence[Handle], config: Config, tokenizer: Any, *, gather: Gather | None = None):
        self.engines, self.config, self.tokenizer = list(engines), config, tokenizer
        self.end_ids = end_token_ids(config.model.path, tokenizer, config.rollout.stop_token_ids)
        self._gather = gather or _ray_gather()

    def rejoin(self, index: int, engine: Handle) -> None:
        """Engine `index` was replaced."""
        self.engines[index] = engine

    def generate(self, step: int, groups: Sequence[Group]) -> list[Sample]:
        """The step's training samples, in order of group and index. Raises `RunError` when a group cannot be filled and may not be dropped."""
        rollout = self.config.rollout
        sampling = Sampling(rollout.temperature, rollout.top_p, rollout.top_k, self.end_ids)
        wanted = [item for group, prompt in groups for item in self._requests(step, group, prompt)]
        samples = self._fill(wanted, sampling)
        whole = group_samples(samples, rollout.samples_per_prompt)
        return [sample for group, _ in groups if group in whole for sample in whole[group]]

    def evaluate(self, step: int, prompts: Sequence[Prompt]) -> list[Sample]:
        """One answer to each prompt, at `eval.temperature` (0: greedy)."""
        sampling = Sampling(self.config.eval.temperature, stop_token_ids=self.end_ids, purpose="eval")
        limit = self.config.rollout.max_response_tokens
        wanted = [
            (GenRequest(f"eval{step}-{number}-0", prompt.ids, request_seed(self.config.seed, step, -1 - number, 0), limit, number), prompt, 0)
            for number, prompt in enumerate(prompts)
        ]
        return self._samples(wanted, self._ask(wanted, sampling))

    def _requests(self, step: int, group: int, prompt: Prompt) -> list[Wanted]:
        rollout = self.config.rollout

        def seed(index: int) -> int | None:
            return request_seed(self.config.seed, step, group, index) if rollout.deterministic else None

        return [(GenRequest(f"{step}-{group}-{index}", prompt.ids, seed(index), rollout.max_response_tokens, group), prompt, index) for index in range(rollout.samples_per_prompt)]

    def _fill(self, wanted: list[Wanted], sampling: Sampling) -> list[Sample]:
        """Ask until no answer is missing, or until the policy for incomplete groups says otherwise."""
        policy, tries = self.config.rollout.incomplete_group, self.config.rollout.max_retries
        done: list[Sample] = []
        while wanted:
            answers = self._samples(wanted, self._ask(wanted, sampling))
            cut = {sample.sample_id for sample in answers if sample.finish_reason == "abort"}
            done += [sample for sample in answers if sample.sample_id not in cut]
            wanted = [item for item in wanted if item[0].sample_id in cut]
            if wanted and policy == "drop":
                lost = {item[0].group_id for item in wanted}
                done, wanted = [sample for sample in done if sample.group_id not in lost], []
            elif wanted and (policy == "fail" or tries == 0):
                tried = f" after {self.config.rollout.max_retries} retries" if policy == "refill" else ""
                raise RunError(STAGE, f"{len(wanted)} answers were aborted{tried}, the first is {wanted[0][0].sample_id}: see rollout.incomplete_group and weights.in_flight")
            tries -= 1
        if not done:
            raise RunError(STAGE, "every group was dropped (rollout.incomplete_group: drop): nothing is left to train on")
        return done

    def _ask(self, wanted: Sequence[Wanted], sampling: Sampling) -> dict[str, GenResult]:
        shares: list[list[GenRequest]] = [[] for _ in self.engines]
        order = {group: number for number, group in enumerate(dict.fromkeys(item[0].group_id for item in wanted))}
        for request, _, _ in wanted:
            shares[order[request.group_id] % len(self.engines)].append(request)
        pending = [engine.call("generate", share, sampling) for engine, share in zip(self.engines, shares, strict=True) if share]
        results: dict[str, GenResult] = {}
        for part in self._gather(pending, self.config.timeouts.rollout_s, STAGE):
            for result in part:
                if result.sample_id in results:
                    raise RunError(STAGE, f"sample {result.sample_id} arrived twice")
                results[result.sample_id] = result
        return results

    def _samples(self, wanted: Sequence[Wanted], results: dict[str, GenResult]) -> list[Sample]:
        missing = [item[0].sample_id for item in wanted if item[0].sample_id not in results]
        if missing:
            raise RunError(STAGE, f"{len(missing)} answers did not come back, the first is sample {missing[0]}")
        return [self._sample(request, prompt, index, results[request.sample_id]) for request, prompt, index in wanted]

    def _sample(self, request: GenRequest, prompt: Prompt, index: int, result: GenResult) -> Sample:
        sample = Sample(
            sample_id=request.sample_id,
            group_id=request.group_id,
            index=index,
            prompt=prompt,
            response_ids=result.response_ids,
            engine_logprobs=result.logprobs,
            loss_mask=np.ones(len(result.response_ids), np.uint8),
            finish_reason=result.finish_reason,
            weight_version=result.weight_version,
            text=decode_response(self.tokenizer, result.response_ids, self.end_ids),
        )
        sample.validate()
        return sample


def _ray_gather() -> Gather:
    from vime.loop.workers import gather

    return gather
