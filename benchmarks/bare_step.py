"""The same training step without vime's loop: vLLM's engine, Megatron-Core's schedule and optimizer, and vLLM's weight reload, called directly in one process.

What is left out: Ray, actors and their messages, reward workers, the run directory, digests and proofs of weights, per-token metrics, checks of the data.
What is the same: model, weights, prompts, engine options, sampling parameters and seeds, packed batches, loss, optimizer. So the rewards of both agree.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
from typing import Any

import numpy as np

Group = tuple[int, Any]  # number of the group in the run, its prompt


class BareStep:
    """Engine and trainer of one process. Seconds of each stage are in `seconds` after `step`."""

    def __init__(self, config: Any):
        from vime.data import PromptSource, end_token_ids, load_prompts, load_tokenizer
        from vime.platforms import registry
        from vime.training.distributed import initialise
        from vime.training.model import build

        self.config, self.platform = config, registry.get(config.platform)
        tokenizer = load_tokenizer(config.model.path)
        self.source = PromptSource(load_prompts(config.data, tokenizer, config.rollout.max_prompt_tokens), config.seed, config.data.shuffle)
        self.tokenizer, self.end_ids = tokenizer, end_token_ids(config.model.path, tokenizer, config.rollout.stop_token_ids)
        layout = initialise(config, self.platform, 0, 1, "127.0.0.1", free_port())
        self.trained = build(config, self.platform, layout, self.platform.device(0))
        self._start_engine()
        self.seconds: dict[str, float] = {}

    def _start_engine(self) -> None:
        from vllm.config.weight_transfer import WeightTransferConfig  # noqa: F401  (makes a wrong vLLM generation fail here, by name)
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        from vime.rollout.engine import engine_spec
        from vime.rollout.vllm_compat.llm_engine import engine_arguments

        self.platform.bootstrap_vllm()
        arguments = engine_arguments(engine_spec(self.config, self.config.model.path, load_weights=True), "")
        del arguments["worker_extension_cls"]
        self.engine: Any = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self.vllm_config: Any = self.engine.vllm_config
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)  # it warns of layers that have no weights
        (self.engine_model,) = self.engine.collective_rpc(lambda worker: worker.model_runner.model)

    def step(self, step: int, *, seeded: bool = True) -> dict[str, float]:
        """One rollout of the configured size, one update, one weight reload. Returns the reward's mean and the number of sampled tokens."""
        self.seconds = {}
        groups = self._timed("rollout", self.source.take, self.config.rollout.prompts_per_step)
        answers = self._timed("rollout", self.generate, step, groups, seeded)
        rewards = self._timed("reward", self.rewards, groups, answers)
        batch = self._timed("train", self.batch, groups, answers, rewards)
        self._timed("train", self.train, batch, step)
        self._timed("weight_sync", self.sync)
        return {"reward_mean": float(rewards.mean()), "tokens": float(sum(len(ids) for ids, _ in answers))}

    def _timed(self, name: str, function: Any, *args: Any) -> Any:
        begin = time.perf_counter()
        result = function(*args)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
        return result

    def generate(self, step: int, groups: list[Group], seeded: bool = True) -> list[tuple[list[int], np.ndarray]]:
        """(ids, log-probs) of every sample, by group and index."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        from vime.rollout.types import request_seed

        rollout = self.config.rollout
        order = []
        for (group, prompt), index in itertools.product(groups, range(rollout.samples_per_prompt)):
            params = SamplingParams(
                temperature=rollout.temperature,
                top_p=rollout.top_p,
                top_k=rollout.top_k,
                seed=request_seed(self.config.seed, step, group, index) if seeded and rollout.deterministic else None,
                stop_token_ids=sorted(self.end_ids),
                max_tokens=rollout.max_response_tokens,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                skip_clone=True,
            )
            order.append(f"{step}-{group}-{index}")
            self.engine.add_request(order[-1], {"prompt_token_ids": list(prompt.ids)}, params)
        done: dict[str, tuple[list[int], np.ndarray]] = {}
        while len(done) < len(order):
            for item in self.engine.step():
                if item.finished:
                    answer = item.outputs[0]
                    flat = answer.logprobs
                    done[item.request_id] = (list(answer.token_ids), np.asarray(flat.logprobs, np.float32)[np.asarray(flat.start_indices)])
        return [done[name] for name in order]

    def rewards(self, groups: list[Group], answers: list[tuple[list[int], np.ndarray]]) -> np.ndarray:
        """1 where the answer is the label and an end mark, as `exact_match` pays; float64[groups, samples]."""
        size = self.config.rollout.samples_per_prompt
        wanted = [self.tokenizer.encode(prompt.label, add_special_tokens=False) for _, prompt in groups]
        hits = [ids[:-1] == wanted[place // size] and ids[-1] in self.end_ids for place, (ids, _) in enumerate(answers)]
        return np.asarray(hits, np.float64).reshape(len(groups), size)

    def batch(self, groups: list[Group], answers: list[tuple[list[int], np.ndarray]], rewards: np.ndarray) -> Any:
        """The packed micro-batches of the step."""
        from vime.training import batches
        from vime.training.batch import TrainBatch, pack

        size = self.config.rollout.samples_per_prompt
        ids, masks, logprobs, lengths = [], [], [], []
        for place, (answer, answer_logprobs) in enumerate(answers):
            prompt = groups[place // size][1].ids
            ids += [*prompt, *answer]
            masks += [0] * len(prompt) + [1] * len(answer)
            logprobs += [np.zeros(len(prompt), np.float32), answer_logprobs]
            lengths.append(len(prompt) + len(answer))
        advantages = (rewards - rewards.mean(axis=1, keepdims=True)).astype(np.float32).ravel()
        batch = TrainBatch(
            ids=np.asarray(ids),
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            loss_mask=np.asarray(masks, np.uint8),
            engine_logprobs=np.concatenate(logprobs),
            advantages=np.repeat(advantages, lengths),
            group_ids=np.zeros(len(answers), np.int64),
        )
        (plan,) = batches.plan(lengths, 1, self.config.train.max_tokens_per_microbatch)
        device = self.platform.device(0)
        return [pack(batch, micro, device) for micro in plan], int(batch.loss_mask.sum())

    def train(self, packed_batch: Any, step: int) -> None:
        """Forward, backward and update: the clipped surrogate with a truncated importance weight, mean over tokens."""
        import torch
        from megatron.core.distributed import finalize_model_grads
        from megatron.core.pipeline_parallel import get_forward_backward_func

        from vime.training.forward import packed
        from vime.training.model import set_rate
        from vime.training.schedule import lr_at

        micros, tokens = packed_batch
        algo, trained = self.config.algo, self.trained

        def forward(iterator: Any, model: Any) -> Any:
            micro = next(iterator)
            logits = model(input_ids=micro.ids_T[None], position_ids=micro.positions_T[None], attention_mask=None, packed_seq_params=packed(micro))

            def loss(logits: Any) -> Any:
                logprobs = torch.log_softmax(logits[0].index_select(0, micro.rows_N).float() / micro.temperature, -1).gather(-1, micro.targets_N[:, None])[:, 0]
                old = logprobs.detach()
                ratio = (logprobs - old).exp()
                weight = (old - micro.engine_logprobs_N).exp().clamp(max=algo.importance_cap)
                clipped = ratio.clamp(1 - algo.clip_low, 1 + algo.clip_high)
                value = (weight * torch.maximum(-ratio * micro.advantages_N, -clipped * micro.advantages_N)).sum() / tokens
                return value, torch.zeros((), dtype=torch.int), {}

            return logits, loss

        trained.ddp.zero_grad_buffer()
        trained.optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(micros),
            model=[trained.ddp],
            num_microbatches=len(micros),
            seq_length=max(len(micro.ids_T) for micro in micros),
            micro_batch_size=1,
            forward_only=False,
        )
        finalize_model_grads([trained.ddp])
        set_rate(trained.optimizer, lr_at(step, self.config.train), self.config.train)
        trained.optimizer.step()

    def sync(self) -> None:
        """The trainer's tensors straight into vLLM's layer-wise reload, then its prefix cache emptied."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

        from vime.weights.exporter import shards

        trained, model = self.trained, self.engine_model
        with set_current_vllm_config(self.vllm_config):
            self.platform.before_weight_reload(model)
            initialize_layerwise_reload(model)
            model.load_weights((shard.hf_name, shard.tensor) for shard in shards([trained.model], trained.table, trained.layout))
            finalize_layerwise_reload(model, self.vllm_config.model_config)
            self.platform.after_weight_reload(model)
        self.engine.reset_prefix_cache()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(pipe: Any, values: dict[str, Any], environment: dict[str, str]) -> None:
    """The bare process: build, then do blocks of steps on request. Messages in: (first step, number of steps, seeded) or None; out: a list of step records."""
    os.environ.update(environment | {"VLLM_LOGGING_LEVEL": "ERROR"})  # vLLM writes its warnings to stdout, where the tables belong
    from vime.config.resolve import from_dict

    bare = BareStep(from_dict(values).config)
    pipe.send(("ready", []))
    while (message := pipe.recv()) is not None:
        first, count, seeded = message
        records = []
        for step in range(first, first + count):
            begin = time.perf_counter()
            facts = bare.step(step, seeded=seeded)
            records.append({"step": step, "wall": time.perf_counter() - begin, **bare.seconds, **facts})
        pipe.send(("done", records))
    os._exit(0)  # vLLM and Megatron-Core share one torch.distributed world here, which neither of them would end cleanly
