"""Random first weights leave alone what no checkpoint holds. In a process of its own: importing vLLM changes the one it is in."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.heavy
LOAD = """
import torch
from types import SimpleNamespace
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        torch.nn.init.ones_(self.linear.weight)
        self.register_buffer("mean", torch.full((3,), 7.0))

model = Model()
DummyModelLoader(SimpleNamespace(model_loader_extra_config=None)).load_weights(model, None)
print(bool((model.mean == 7).all()), bool((model.linear.weight == 1).all()))
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


def test_vllm_still_randomises_buffers():
    assert run(LOAD) == "False False", "vLLM leaves buffers alone by itself: drop vime/rollout/vllm_compat/dummy.py"


def test_buffers_are_kept_and_weights_are_not():
    assert run("from vime.rollout.vllm_compat.dummy import keep_buffers\nkeep_buffers()\nkeep_buffers()\n" + LOAD) == "True False"
