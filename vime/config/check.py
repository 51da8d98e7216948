"""What a configuration must satisfy beyond its types. Pure: no file is opened and no device asked."""

from __future__ import annotations

from vime.config.tree import Config
from vime.training.context import pack_multiple, padded

Problem = tuple[str, str]  # the key at fault, and what to change
SEEDS = 2**32
LOWEST_TEMPERATURE = 0.01  # of vLLM


def check(config: Config) -> list[Problem]:
    """Every contradiction in a configuration, empty when there is none."""
    return [*_numbers(config), *_data(config), *_rollout(config), *_algo(config), *_batches(config), *_layout(config), *_weights(config)]


def _numbers(config: Config) -> list[Problem]:
    """What some library would only complain about, or change in silence, after everything has started."""
    out: list[Problem] = []
    if config.seed >= SEEDS:
        out.append(("seed", f"must be below 2^32, as numpy's generators and Megatron-Core want it, got {config.seed}"))
    if 0 < config.rollout.temperature < LOWEST_TEMPERATURE:
        out.append(("rollout.temperature", f"vLLM would sample at {LOWEST_TEMPERATURE} instead of {config.rollout.temperature:g} in silence: set that or more"))
    betas = [name for name in ("beta1", "beta2") if getattr(config.train, name) == 1]
    out += [(f"train.{name}", "1 never forgets the zero an average starts from, and Adam divides by 1 - beta: use a value below 1") for name in betas]
    if not config.name or "/" in config.name or config.name.startswith("."):
        out.append(("name", f"is a folder's name under runs/: no '/', not empty, no dot in front, got {config.name!r}"))
    return out


def _data(config: Config) -> list[Problem]:
    out: list[Problem] = []
    data, reward = config.data, config.reward
    if (data.task is None) == (data.path is None):
        out.append(("data", f"exactly one of data.task and data.path must be set, got task {data.task!r} and path {data.path!r}"))
    if not reward.range[0] < reward.range[1]:
        out.append(("reward.range", f"the lower end must be below the upper, got {list(reward.range)}"))
    if config.model.load == "torch-dist" and config.model.torch_dist_path is None:
        out.append(("model.torch_dist_path", "is needed with model.load: torch-dist"))
    if config.eval.every and config.eval.path is None and data.path is not None:
        out.append(("eval.path", "is needed when prompts come from a file: name the held-out file"))
    return out


def _rollout(config: Config) -> list[Problem]:
    out: list[Problem] = []
    rollout = config.rollout
    if rollout.temperature == 0:
        out.append(
            (
                "rollout.temperature",
                "0 samples the same answer every time, so no group has an advantage: use a value above 0 (1.0 is usual); greedy decoding belongs to eval",
            )
        )
    if rollout.top_k == 0 or rollout.top_k < -1:
        out.append(("rollout.top_k", f"must be -1 (off) or at least 1, got {rollout.top_k}"))
    if rollout.samples_per_prompt == 1 and config.algo.advantage == "grpo":
        out.append(("rollout.samples_per_prompt", "1 sample a prompt has no group to compare with: use at least 2, or algo.advantage: reinforce"))
    return out


def _algo(config: Config) -> list[Problem]:
    out: list[Problem] = []
    algo = config.algo
    if algo.dual_clip is not None and algo.dual_clip <= 1:
        out.append(("algo.dual_clip", f"must be above 1, got {algo.dual_clip}"))
    if algo.clip_low > 1:
        out.append(("algo.clip_low", f"must be at most 1 (the ratio's lower bound is 1 - clip_low), got {algo.clip_low}"))
    if algo.old_logprobs == "engine" and algo.importance == "truncated":
        out.append(
            (
                "algo.importance",
                "corrects the trainer's old log-probs towards the engine's; with algo.old_logprobs: engine the ratio does so already: set importance: none",
            )
        )
    if config.train.warmup_steps >= config.train.steps:
        out.append(("train.warmup_steps", f"{config.train.warmup_steps} leaves none of the {config.train.steps} steps at the full rate"))
    return out


def _batches(config: Config) -> list[Problem]:
    samples = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    parts = config.train.optimizer_steps_per_rollout
    out: list[Problem] = []
    if samples % parts:
        near = [n for n in range(1, samples + 1) if samples % n == 0]
        out.append(("train.optimizer_steps_per_rollout", f"{parts} does not divide the {samples} samples of a step: choose one of {near[:12]}"))
    elif samples // parts < config.parallel.data:
        out.append(
            ("parallel.data", f"{config.parallel.data} data-parallel ranks share {samples // parts} samples of an optimizer step: at least one each is needed")
        )
    longest = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    limit, ranks = config.train.max_tokens_per_microbatch, config.parallel.context
    unit = pack_multiple(config.parallel.tensor if config.parallel.sequence_parallel else 1, ranks)
    if limit * ranks // unit * unit < padded(longest, ranks):
        over = f" on each of {ranks} context-parallel ranks" if ranks > 1 else ""
        out.append(
            (
                "train.max_tokens_per_microbatch",
                f"{limit}{over} cannot hold one sample of max_prompt_tokens + max_response_tokens = {longest} tokens",
            )
        )
    return out


def _layout(config: Config) -> list[Problem]:
    out: list[Problem] = []
    parallel, placement = config.parallel, config.placement
    if parallel.sequence_parallel and parallel.tensor == 1:
        out.append(("parallel.sequence_parallel", "splits the sequence over tensor-parallel ranks: parallel.tensor is 1"))
    stage, grid = parallel.tensor * parallel.context * parallel.data, parallel.expert * parallel.expert_tensor
    if stage % grid:
        out.append(
            (
                "parallel.expert",
                f"expert {parallel.expert} × expert_tensor {parallel.expert_tensor} = {grid} does not divide the {stage} ranks of a pipeline stage "
                "(tensor × context × data)",
            )
        )
    if placement.mode == "colocate" and world_size(config) != engine_devices(config):
        out.append(
            (
                "placement.mode",
                f"colocate shares each device between one trainer rank and one engine rank: {world_size(config)} trainer ranks, "
                f"{engine_devices(config)} engine devices",
            )
        )
    return out


def _weights(config: Config) -> list[Problem]:
    weights, mode = config.weights, config.placement.mode
    if weights.transport == "ipc" and mode == "non-colocate":
        return [("weights.transport", "ipc hands memory over on one device: it needs placement.mode: colocate; use broadcast, p2p or disk")]
    if weights.encoding == "delta" and weights.in_flight == "keep":
        return [("weights.in_flight", "keep lets requests run through an update; a delta is applied to a quiet engine only: use drain or abort")]
    return []


def world_size(config: Config) -> int:
    """Trainer ranks."""
    parallel = config.parallel
    return parallel.tensor * parallel.pipeline * parallel.context * parallel.data


def engine_devices(config: Config) -> int:
    """Devices all engines take together."""
    return config.rollout.engines * config.rollout.tensor_parallel
