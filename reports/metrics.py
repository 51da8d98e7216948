"""Names of the metrics the checks look at (docs/architecture.md lists them), how people call them, and which way is worse."""

from __future__ import annotations

REWARD = "rollout/reward_mean"
GAP_MEAN = "train/logprob_gap_mean"
GAP_MAX = "train/logprob_gap_max"
KL_REF = "train/kl_ref"
SAMPLER_Z = "rollout/nll_minus_entropy_z"
LEARNING_RATE = "train/lr"
REWARD_ERRORS = "rollout/reward_error_count"

# A value of these that is not finite is a fault of the training whatever the reward says.
MUST_BE_FINITE = ("train/loss", "train/grad_norm", GAP_MEAN)

TITLES = {
    REWARD: "reward",
    GAP_MEAN: "log-prob gap, trainer against engine (mean |Δ log p|)",
    "train/entropy": "entropy (nats)",
    "train/kl_ref": "KL to the reference",
    "train/ppo_kl": "KL of the update",
    "train/grad_norm": "gradient norm",
    "train/loss": "loss",
    "rollout/response_len_mean": "response length (tokens)",
    "rollout/truncated_frac": "truncated answers (fraction)",
    SAMPLER_Z: "sampler statistic z (−log p against entropy)",
    "spec/accept_len": "accepted draft length (tokens)",
    "perf/step_s": "step time (s)",
    "perf/rollout_s": "rollout time (s)",
    "perf/train_s": "training time (s)",
    "perf/weight_sync_s": "weight sync time (s)",
    "perf/tokens_per_s": "tokens per second",
    "perf/peak_mem_gib": "peak memory (GiB)",
}

# Costs shown as ratios; True where more is worse.
RESOURCES = {"perf/step_s": True, "perf/tokens_per_s": False, "perf/weight_sync_s": True, "perf/peak_mem_gib": True}

# Metrics a slimmed baseline keeps beside the judged one (whole prefixes would cost megabytes in git).
KEPT_IN_BASELINES = (*TITLES, GAP_MAX, "train/logprob_gap_p99", LEARNING_RATE, REWARD_ERRORS)


def title(metric: str) -> str:
    return TITLES.get(metric, metric)
