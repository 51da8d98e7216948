"""The configuration tree: frozen dataclasses, one per component, with every default in one place.

Nothing here imports torch. Units are in the names (`_s` seconds, `_mb` mebibytes); sizes without a unit are counts.
`megatron` and `vllm` are passed through whole to those libraries and validated against their own option catalogues (`vime/config/options.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, with_config

strict = with_config(ConfigDict(extra="forbid", strict=True))  # validated from JSON: lists are tuples and ints floats there, texts are not numbers

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Dtype = Literal["float32", "bfloat16", "float16"]


@strict
@dataclass(frozen=True)
class ModelConfig:
    """Which weights are trained and in which precision."""

    path: str  # a Hugging Face model directory: config.json, tokenizer, *.safetensors
    dtype: Dtype = "bfloat16"  # of the trainer's parameters
    load: Literal["hf", "torch-dist"] = "hf"
    torch_dist_path: str | None = None  # with load: torch-dist
    freeze_vision: bool = False  # a vision tower keeps its weights; the text model learns
    random_init_seed: int | None = None  # initialise from this seed; model.path then needs config.json and a tokenizer, no weights


@strict
@dataclass(frozen=True)
class DataConfig:
    """Where prompts come from: a reasoning-gym task or a JSONL/Parquet file."""

    task: str | None = None  # a vime task name ("spell_backward") or "rg:<reasoning-gym dataset>"
    task_args: dict[str, Any] = field(default_factory=dict)
    path: str | None = None  # a .jsonl or .parquet file; exactly one of task and path
    prompt_field: str = "prompt"
    label_field: str = "label"
    metadata_field: str | None = None
    images_field: str | None = None  # of a file: an image or a list of them (path, or bytes), each marked in the prompt by <image>
    chat_template: bool = False  # apply the tokenizer's chat template to the prompt
    size: PositiveInt = 4096  # prompts generated for a task (a file has its own size)
    seed: int = 77  # of the generated data, not of the run: every seed of a recipe sees the same pool
    shuffle: bool = True  # each epoch in another order, drawn from the run's seed
    overlong: Literal["fail", "drop"] = "fail"  # a prompt longer than rollout.max_prompt_tokens: stop, or leave it out with a warning


@strict
@dataclass(frozen=True)
class RewardConfig:
    """How an answer is scored."""

    name: str = "exact_match"  # exact_match, math, reasoning_gym, or "package.module:function"
    args: dict[str, Any] = field(default_factory=dict)
    range: tuple[float, float] = (0.0, 1.0)  # a reward outside it stops the run
    timeout_s: PositiveFloat = 10.0  # per sample
    workers: PositiveInt = 1  # worker processes


@strict
@dataclass(frozen=True)
class SpeculativeConfig:
    """Speculative decoding: a draft proposes tokens, the model accepts those it would have sampled; answers and log-probs are the model's own."""

    method: Literal["none", "mtp"] = "none"  # mtp: the model's multi-token-prediction layers, updated with it
    tokens: PositiveInt = 1  # proposed at once


@strict
@dataclass(frozen=True)
class RolloutConfig:
    """How answers are sampled."""

    prompts_per_step: PositiveInt = 16
    samples_per_prompt: PositiveInt = 16
    max_prompt_tokens: PositiveInt = 1024
    max_response_tokens: PositiveInt = 1024
    temperature: NonNegativeFloat = 1.0  # 0 is refused for training
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: int = -1  # -1: off
    engines: PositiveInt = 1
    tensor_parallel: PositiveInt = 1  # devices an engine
    dtype: Dtype | None = None  # of the engine; null: the trainer's
    deterministic: bool = True  # every request seeded by hash of (run seed, step, group, sample)
    truncated: Literal["keep", "zero", "mask"] = "keep"  # an answer cut at max_response_tokens: keep its reward, pay 0, or leave it out of the loss
    incomplete_group: Literal["refill", "drop", "fail"] = "fail"  # a group that could not be filled
    max_retries: NonNegativeInt = 2  # of one group on an infrastructure failure, before the run fails
    max_engine_restarts: NonNegativeInt = 0  # over the whole run; a restarted engine rejoins by a full weight sync
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    stop_token_ids: tuple[int, ...] = ()  # besides the model's own end-of-sequence ids


@strict
@dataclass(frozen=True)
class AlgoConfig:
    """The policy-gradient objective. Formulas and their sources are in `vime/algos/`."""

    advantage: Literal["grpo", "reinforce"] = "grpo"  # reward minus the group's mean; or the reward itself
    normalize_std: bool = False  # divide the advantage by the group's standard deviation
    old_logprobs: Literal["trainer", "engine"] = "trainer"  # the denominator of the ratio
    importance: Literal["none", "truncated"] = "truncated"  # token-level correction exp(logp_trainer − logp_engine)
    importance_cap: PositiveFloat = 2.0
    clip_low: NonNegativeFloat = 0.2
    clip_high: NonNegativeFloat = 0.28
    dual_clip: float | None = None  # bound on the loss of tokens with negative advantage (> 1)
    aggregation: Literal["token", "sequence"] = "token"  # mean over tokens, or mean over sequences of their token means
    kl_coef: NonNegativeFloat = 0.0  # weight of KL(policy ‖ reference) in the loss; above 0 a reference model is kept
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coef: float = 0.0
    check_old_logprobs: bool = False  # compute old log-probs by a pass of their own even where the new ones detached would do


@strict
@dataclass(frozen=True)
class MtpConfig:
    """Multi-token prediction: the draft layers of a model that has them."""

    loss_weight: NonNegativeFloat = 0.0  # of their loss beside the policy's; 0: they are not trained
    gradient: Literal["mtp-only", "joint"] = "mtp-only"  # the draft loss moves the draft layers alone; or the trunk, embedding and head too


@strict
@dataclass(frozen=True)
class TrainConfig:
    """The optimizer and the batches."""

    steps: PositiveInt = 100  # rollout steps
    optimizer_steps_per_rollout: PositiveInt = 1
    max_tokens_per_microbatch: PositiveInt = 4096  # on one rank; over c context-parallel ranks a micro-batch holds c times as many
    lr: PositiveFloat = 1e-6
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    clip_grad: NonNegativeFloat = 1.0  # 0: off
    warmup_steps: NonNegativeInt = 0
    decay: Literal["constant", "linear", "cosine"] = "constant"
    min_lr_fraction: Fraction = 0.0
    distributed_optimizer: bool = True
    recompute: Literal["none", "full"] = "none"
    mtp: MtpConfig = field(default_factory=MtpConfig)
    deterministic: bool = False  # switch the device's libraries to reproducible, slower kernels and collectives


@strict
@dataclass(frozen=True)
class ParallelConfig:
    """The trainer's layout. The world size is tensor × pipeline × context × data."""

    tensor: PositiveInt = 1
    pipeline: PositiveInt = 1
    context: PositiveInt = 1
    expert: PositiveInt = 1
    expert_tensor: PositiveInt = 1
    data: PositiveInt = 1
    sequence_parallel: bool = False


@strict
@dataclass(frozen=True)
class PlacementConfig:
    """Which devices train and which generate."""

    mode: Literal["colocate", "non-colocate"] = "non-colocate"
    nodes: PositiveInt = 1
    devices_per_node: PositiveInt | None = None  # null: what the platform reports
    ray_address: str | None = None  # null: a cluster of our own on 127.0.0.1, ended with the run
    environment: dict[str, str] = field(default_factory=dict)  # more variables for every trainer and engine process
    release_memory: Literal["auto", "always", "never"] = "auto"  # colocated trainer and engine park their memory for each other; auto: where the platform can


@strict
@dataclass(frozen=True)
class WeightsConfig:
    """How the engines get new weights."""

    transport: Literal["auto", "ipc", "broadcast", "p2p", "disk"] = "auto"  # auto: ipc when colocated, broadcast when not
    encoding: Literal["full", "delta"] = "full"
    bucket_mb: PositiveFloat = 256.0
    in_flight: Literal["drain", "abort", "keep"] = "drain"  # requests under way when a sync begins
    verify_held_every: NonNegativeInt = 10  # every how many syncs the engine's held weights are proven; 0: never (`received` is always checked)
    timeout_s: PositiveFloat = 300.0
    disk_path: str | None = None  # with transport: disk; null: inside the run directory


@strict
@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept to go on from."""

    every: NonNegativeInt = 0  # steps; 0: only the last step's if save_last
    keep: PositiveInt = 2
    async_save: bool = False  # the state is copied at once, its files are written while training goes on
    save_last: bool = False
    save_hf: bool = False  # also export a Hugging Face directory at the last step


@strict
@dataclass(frozen=True)
class EvalConfig:
    """Greedy accuracy on held-out prompts."""

    every: NonNegativeInt = 0  # steps; 0: off
    name: str = "heldout"
    size: PositiveInt = 256
    seed: int = 5  # of the generated held-out prompts
    path: str | None = None  # a prompt file instead of the task
    temperature: NonNegativeFloat = 0.0


@strict
@dataclass(frozen=True)
class SftConfig:
    """Supervised training on the labels (`vime sft`). Optimizer settings are `train`'s; its steps are optimizer steps."""

    batch_size: PositiveInt = 128
    label_noise: Fraction = 0.0  # probability that a label token is replaced by another one of the labels' alphabet
    output: str | None = None  # the Hugging Face directory to write; null: <run>/hf


@strict
@dataclass(frozen=True)
class TrackingConfig:
    """What is written beside the metrics."""

    samples_per_step: NonNegativeInt = 2
    log_every: PositiveInt = 1  # steps between progress lines on the console


@strict
@dataclass(frozen=True)
class TimeoutConfig:
    """Deadlines; every wait names the stage it waits for when it gives up."""

    placement_s: PositiveFloat = 60.0
    start_s: PositiveFloat = 600.0
    rollout_s: PositiveFloat = 1800.0
    train_s: PositiveFloat = 1800.0
    checkpoint_s: PositiveFloat = 1800.0


@strict
@dataclass(frozen=True)
class Config:
    """One run, whole."""

    model: ModelConfig
    data: DataConfig
    name: str = "run"
    seed: NonNegativeInt = 0
    run_dir: str | None = None  # null: runs/<name>/<time>
    platform: str = "auto"  # auto, cpu, cuda, npu, or one registered by an entry point
    reward: RewardConfig = field(default_factory=RewardConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    timeouts: TimeoutConfig = field(default_factory=TimeoutConfig)
    megatron: dict[str, Any] = field(default_factory=dict)  # {model: {…}, optimizer: {…}, ddp: {…}}: fields of Megatron-Core's own configs
    vllm: dict[str, Any] = field(default_factory=dict)  # fields of vLLM's EngineArgs
    labels: dict[str, Any] = field(default_factory=dict)  # opaque; copied into the manifest
