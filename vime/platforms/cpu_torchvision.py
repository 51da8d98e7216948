"""Vision-language models in vLLM without torchvision.

vLLM's Qwen-VL models import torchvision, by way of Hugging Face's image processor, although Hugging Face cuts pictures with PIL where torchvision is absent;
and they want a video processor, which exists with torchvision alone. The package index has torchvision for CUDA, which does not load beside a CPU build of
torch (docs/install.md). So where torchvision is not installed, an engine process that imports it gets an empty module of that name, and from then on a video
processor that knows its sizes and refuses videos. Where a torchvision is installed, nothing is changed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

NAMES = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2", "torchvision.transforms.v2.functional")
REASON = "videos need torchvision, which is not installed"


def stand_in_for_torchvision() -> None:
    """Idempotent; called in every engine process before vLLM imports a model."""
    if any(isinstance(finder, StandIn) for finder in sys.meta_path) or importlib.util.find_spec("torchvision") is not None:
        return
    from transformers.utils import is_torchvision_available

    assert not is_torchvision_available()  # remembered: from here on the module could be found
    sys.meta_path.append(StandIn())
    look_at_models_here()


def look_at_models_here() -> None:
    """vLLM looks at a model class in a process of its own before it uses it, lest CUDA be initialised here; there is no stand-in in that process."""
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda look: look()


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of `NAMES`, after every other finder."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname != NAMES[-1]) if fullname in NAMES else None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == NAMES[-1]:
            refuse_videos()


def refuse_videos() -> None:
    """Put a video processor without videos where Hugging Face and vLLM look for one."""
    transformers: Any = importlib.import_module("transformers")
    auto: Any = importlib.import_module("transformers.models.auto.video_processing_auto")
    family: Any = importlib.import_module("transformers.models.qwen3_vl")
    original: Any = importlib.import_module("transformers.models.qwen3_vl.video_processing_qwen3_vl").Qwen3VLVideoProcessor

    class NoVideos(original):
        """Knows its sizes."""

        def __init__(self, **settings: Any):
            for key in ("patch_size", "temporal_patch_size", "merge_size", "min_frames", "max_frames", "fps"):
                setattr(self, key, settings.get(key, getattr(original, key, None)))
            self.size: dict[str, int] = dict(settings.get("size") or original.size)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(REASON)

    class AutoVideoProcessor:
        @classmethod
        def from_pretrained(cls, path: str | Path, *args: Any, **kwargs: Any) -> NoVideos:
            file = Path(path) / "video_preprocessor_config.json"
            return NoVideos(**(json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}))

    auto.AutoVideoProcessor = transformers.AutoVideoProcessor = AutoVideoProcessor
    transformers.VideoProcessorMixin = importlib.import_module("transformers.video_processing_utils").VideoProcessorMixin  # what a processor checks against
    family.Qwen3VLVideoProcessor = NoVideos
