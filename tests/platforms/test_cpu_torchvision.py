"""The stand-in for torchvision, in processes of its own: it changes what a process can import."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.families import BY_NAME
from vime.models.twins import make_twin

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="a torchvision is installed")]

NEEDED = """
import vllm.model_executor.models.qwen3_vl
"""
WITH = """
import sys
from vime.platforms.cpu_torchvision import StandIn, stand_in_for_torchvision
stand_in_for_torchvision()
stand_in_for_torchvision()
assert sum(isinstance(finder, StandIn) for finder in sys.meta_path) == 1
import vllm.model_executor.models.qwen3_vl
from transformers.models.qwen3_vl import Qwen3VLProcessor
from transformers.utils import is_torchvision_available
assert not is_torchvision_available()
processor = Qwen3VLProcessor.from_pretrained(sys.argv[1])
assert type(processor.image_processor).__name__.endswith("Pil"), processor.image_processor
assert processor.video_processor.merge_size == 2 and processor.video_processor.size["longest_edge"] == 4096
try:
    processor.video_processor([])
except NotImplementedError as error:
    print(error)
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "ignore", "-c", code, *arguments], capture_output=True, text=True, timeout=100)


def test_vllm_still_needs_it():
    done = run(NEEDED)
    assert done.returncode != 0 and "No module named 'torchvision'" in done.stderr, "vLLM imports Qwen3-VL without torchvision: drop the stand-in"


def test_with_it_pictures_are_cut_and_videos_refused(tmp_path: Path):
    directory = make_twin(BY_NAME["qwen3-vl"].config, tmp_path / "twin")
    done = run(WITH, str(directory))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "videos need torchvision" in done.stdout
