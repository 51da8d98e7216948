"""The Megatron bring-up on CPU: scoped to megatron.*, idempotent, absent until asked for, and its rotary embedding equal to Megatron's."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import torch

from vime.platforms import cpu_megatron


def in_a_fresh_process(code: str) -> str:
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_importing_vime_changes_nothing():
    in_a_fresh_process(
        "import torch; before = (torch.Tensor.cuda, torch.Tensor.type, torch.nn.Module.cuda, torch.zeros, torch.device)\n"
        "import vime.platforms.cpu_megatron, vime.platforms.cpu, vime.training.batch, vime.models.registry\n"
        "assert before == (torch.Tensor.cuda, torch.Tensor.type, torch.nn.Module.cuda, torch.zeros, torch.device)\n"
        "import sys; assert not any(name.startswith('megatron') for name in sys.modules)\n"
    )


@pytest.mark.heavy
def test_only_megatron_sees_the_proxy_and_hugging_face_computes_the_same():
    in_a_fresh_process(
        "import torch, transformers, types\n"
        "from vime.platforms import cpu_megatron\n"
        "sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=32, vocab_size=20)\n"
        "config = transformers.Qwen3Config(**sizes)\n"
        "torch.manual_seed(0); model = transformers.AutoModelForCausalLM.from_config(config); ids = torch.arange(12)[None]\n"
        "before = model(ids).logits\n"
        "cpu_megatron.apply(); import sys; first = dict(vars(torch.Tensor)); cpu_megatron.apply()\n"
        "assert first == dict(vars(torch.Tensor)), 'not idempotent'\n"
        "assert torch.equal(before, model(ids).logits)\n"
        "torch.manual_seed(0); assert torch.equal(before, transformers.AutoModelForCausalLM.from_config(config)(ids).logits)\n"
        "import megatron.core.optimizer.optimizer as m\n"
        "assert m.torch is cpu_megatron.TORCH and torch is not cpu_megatron.TORCH\n"
        "wrong = [n for n, x in list(sys.modules.items()) if getattr(x, '__dict__', {}).get('torch') is cpu_megatron.TORCH and not n.startswith('megatron.')]\n"
        "assert not wrong, wrong\n"
        "x = torch.zeros(2); assert x.type() == 'torch.FloatTensor'\n"
        "try: x.cuda()\n"
        "except (AssertionError, RuntimeError): pass\n"
        "else: raise SystemExit('a plain .cuda() must still fail without CUDA')\n"
        "inside = types.ModuleType('megatron.core.probe'); exec('def f(x): return x.type(), x.cuda() is x', inside.__dict__)\n"
        "assert inside.f(x) == ('torch.cuda.FloatTensor', True)\n"
        "exec('import torch\\ndef g(d): return isinstance(d, torch.device)', inside.__dict__); inside.torch = cpu_megatron.TORCH\n"
        "assert inside.g(torch.device('cpu')) and not inside.g('cpu') and inside.torch.device('cuda:0') == torch.device('cpu')\n"
    )


def test_does_nothing_on_a_machine_with_an_accelerator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cpu_megatron.importlib, "import_module", lambda name: pytest.fail("must not touch anything"))
    cpu_megatron.apply()


class OneRank:
    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


@pytest.mark.parametrize("lengths", [[5, 1, 9, 3], [7], [4, 4, 4]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 8])
@pytest.mark.parametrize("pairs", [False, True])
def test_rope_equals_megatrons_loop(lengths, dtype, width, pairs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import megatron.core.models.common.embeddings.rope_utils as rope
    original = getattr(rope._apply_rotary_pos_emb_thd, "__wrapped__", rope._apply_rotary_pos_emb_thd)
    torch.manual_seed(0)
    t = torch.randn(sum(lengths), 3, 16, dtype=dtype, requires_grad=True)
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    angles = torch.outer(torch.arange(max(lengths)).float(), 1.0 / 10000 ** (torch.arange(0, width, 2) / width))
    freqs = torch.cat((angles, angles), -1)[:, None, None, :]
    got, want = cpu_megatron.rope_thd(t, cu, freqs, pairs=pairs), original(t, cu, freqs, multi_latent_attention=pairs, cp_group=OneRank())
    assert torch.equal(got, want)
    weights = torch.randn(t.shape).to(dtype)
    assert torch.equal(torch.autograd.grad((got * weights).sum(), t)[0], torch.autograd.grad((want * weights).sum(), t)[0])
