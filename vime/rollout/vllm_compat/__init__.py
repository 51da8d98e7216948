"""One adapter per vLLM generation; `adapter_for` picks it by the installed version."""

from __future__ import annotations

import importlib

from vime.errors import UserError
from vime.rollout.vllm_compat.base import VllmAdapter

GENERATIONS = {
    "0.32": "vime.rollout.vllm_compat.v0_32",
    "0.23": "vime.rollout.vllm_compat.v0_23",
    "0.22": "vime.rollout.vllm_compat.v0_23",  # 0.22.1 offers all that the adapter of 0.23 uses (its contract is tested)
}


def adapter_for(version: str) -> VllmAdapter:
    """The adapter of a vLLM version (`0.32.0`, `0.23.0.post1+cpu`). Raises `UserError` naming the supported generations."""
    generation = ".".join(version.split(".")[:2])
    if generation not in GENERATIONS:
        known = ", ".join(f"{name}.x" for name in GENERATIONS)
        raise UserError(f"vllm {version}: vime has adapters for {known}. Install one of these (see the extras in pyproject.toml).")
    return importlib.import_module(GENERATIONS[generation]).Adapter()


def installed_version() -> str:
    """Version of the vLLM that `import vllm` finds. Raises `UserError` when there is none."""
    from importlib.metadata import packages_distributions, version

    distributions = packages_distributions().get("vllm")
    if not distributions:
        raise UserError("vllm: not installed. Install vime with the extra of this platform, for example `pip install 'vime[cpu]'`.")
    return version(distributions[0])
