"""Combinations of packages and models that are known to break on Ascend NPUs, found before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TRITON_ASCEND = {"0.23": "3.2.2", "0.22": "3.2.1"}  # vllm-ascend's release -> the triton-ascend its metadata asks for
NEWEST = "3.2.2"
GATED_DELTA_NET = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text")


def conflicts(model: Mapping[str, Any], packages: Mapping[str, str]) -> list[str]:
    """One line a conflict, with what to install. `model`: config.json; `packages`: installed distributions (normalised names) and versions."""
    return [*pairing(packages), *gated_delta_net(model, packages)]


def pairing(packages: Mapping[str, str]) -> list[str]:
    """torch_npu is built for one torch, vllm-ascend for one vllm: same numbers up to the second dot, or the third."""
    problems = []
    for vendor, base, parts in (("torch-npu", "torch", 2), ("vllm-ascend", "vllm", 3)):
        have, of = packages.get(vendor), packages.get(base)
        if have and of and release(have)[:parts] != release(of)[:parts]:
            problems.append(f"{vendor} {have} needs {base} {'.'.join(release(have)[:parts])}, this environment has {of}: install the pinned set (docs/npu.md)")
    return problems


def gated_delta_net(model: Mapping[str, Any], packages: Mapping[str, str]) -> list[str]:
    """Serving takes the delta rule's kernels from triton-ascend, training commonly from flash-linear-attention, which asks for triton. Both install a module
    `triton`, and the one installed last wins for both."""
    kinds = {str(model.get("model_type")), str((model.get("text_config") or {}).get("model_type"))}
    if kinds.isdisjoint(GATED_DELTA_NET):
        return []
    problems = []
    wanted = TRITON_ASCEND.get(".".join(release(packages.get("vllm-ascend", ""))[:2]), NEWEST)
    if "triton" in packages and "triton-ascend" in packages:
        problems.append(
            f"triton {packages['triton']} and triton-ascend {packages['triton-ascend']} both install the module `triton`, and the gated delta net of this "
            f"model needs triton-ascend's: pip uninstall -y triton triton-ascend && pip install triton-ascend=={wanted}"
        )
    if "vllm-ascend" in packages and "triton-ascend" not in packages:
        problems.append(f"this model's gated delta net needs triton-ascend to be served: pip install triton-ascend=={wanted}")
    if "flash-linear-attention" in packages:
        problems.append(
            "flash-linear-attention is installed: its kernels are compiled for CUDA and are chosen before vime's own gated delta net: "
            "pip uninstall -y flash-linear-attention fla-core"
        )
    return problems


def release(version: str) -> list[str]:
    """`2.10.0.post4` → ["2", "10", "0"]; local parts (`+cpu`) do not count."""
    return [part for part in version.split("+")[0].split(".") if part.isdigit()]
