"""Vision-language models in vLLM without torchvision.

vLLM's Qwen-VL models import torchvision, by way of Hugging Face's, although they cut pictures with PIL where it is absent: one name at import, and a video
processor that they want to have. The package index has torchvision for CUDA alone, which does not load beside a CPU build of torch (docs/install.md). So
where torchvision is not installed, an engine process gets a module of that name that can do nothing, and a video processor that knows its sizes and refuses
videos. Where a torchvision is installed, nothing is changed.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

MODULES = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2", "torchvision.transforms.v2.functional")
REASON = "videos need torchvision, which is not installed"


def stand_in_for_torchvision() -> None:
    """Idempotent; called before vLLM builds an engine."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return
    import transformers.processing_utils  # decides what is available before the stand-in can be taken for the real one
    from transformers.utils import is_torchvision_available

    assert not is_torchvision_available()
    for name in MODULES:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=name != MODULES[-1])
        module.__path__ = []  # type: ignore[attr-defined]
        sys.modules[name] = module
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
    _video_processor(transformers.processing_utils)


def _video_processor(processing_utils: Any) -> None:
    from transformers.models.auto import video_processing_auto
    from transformers.models.qwen3_vl import video_processing_qwen3_vl

    class NoVideos(video_processing_qwen3_vl.Qwen3VLVideoProcessor):  # type: ignore[misc]
        """Knows its sizes; refuses videos."""

        def __init__(self, **settings: Any):
            for key in ("patch_size", "temporal_patch_size", "merge_size", "min_frames", "max_frames", "fps", "do_sample_frames"):
                setattr(self, key, settings.get(key, getattr(type(self), key, None)))
            size = settings.get("size") or type(self).size
            self.size = dict(size)
            self._processor_class = None

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(REASON)

        def preprocess(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(REASON)

    class AutoVideoProcessor:
        @classmethod
        def from_pretrained(cls, path: str, *args: Any, **kwargs: Any) -> NoVideos:
            file = Path(path) / "video_preprocessor_config.json"
            return NoVideos(**(json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}))

    video_processing_auto.AutoVideoProcessor = AutoVideoProcessor  # type: ignore[misc, assignment]
    import transformers

    transformers.AutoVideoProcessor = AutoVideoProcessor  # type: ignore[misc, assignment]
