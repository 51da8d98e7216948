"""The benchmarks still run and compare the same work. How fast anything is, is never a test's business."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


def run(script: str, *arguments: str, timeout: float = 170) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARKS / script), *arguments], capture_output=True, text=True, timeout=timeout, cwd=ROOT)


@pytest.fixture
def vs_trl(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import vs_trl

    return vs_trl


@pytest.mark.parametrize("script", ["step_overhead.py", "weight_sync.py", "vs_trl.py"])
def test_help_says_how_to_run_it(script: str) -> None:
    done = run(script, "--help")
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout
    assert "--json" in done.stdout
    assert f"benchmarks/{script}" in done.stdout


@pytest.mark.heavy
def test_weight_sync_moves_all_bytes_over_both_transports(tmp_path: Path) -> None:
    done = run("weight_sync.py", "--quick", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stderr
    (case,) = json.loads((tmp_path / "out.json").read_text())["cases"]
    for way in ("ipc", "broadcast"):
        sent = {record["bytes"] for record in case["records"] if record["way"] == way}
        assert len(sent) == 1
        assert abs(sent.pop() - 10e6) < 0.1e6
    assert "| 10 MB of float32 |" in done.stdout


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.timeout(400)  # half a minute on an idle machine
def test_step_overhead_compares_the_same_work(tmp_path: Path) -> None:
    done = run("step_overhead.py", "--quick", "--json", str(tmp_path / "out.json"), timeout=380)
    assert done.returncode == 0, done.stderr
    records = json.loads((tmp_path / "out.json").read_text())["records"]
    rewards = {side: {r["step"]: r["reward_mean"] for r in records if r["side"] == side} for side in ("vime", "bare")}
    assert sorted(rewards["vime"]) == sorted(rewards["bare"]) == list(range(10))
    gaps = [abs(rewards["vime"][step] - rewards["bare"][step]) for step in range(10)]
    assert max(gaps) <= 0.05, gaps  # the same samples until rounding of two ways to add up a loss flips one
    assert gaps[0] == 0


def test_both_sides_get_the_same_prompts_schedule_and_sizes(vs_trl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vime.config.resolve import resolve
    from vime.data import PromptSource, load_prompts, load_tokenizer
    from vime.training.schedule import lr_at

    monkeypatch.chdir(ROOT)
    config = resolve(vs_trl.RECIPE, [*vs_trl.BATCH, "train.steps=20", "eval.every=0"]).config
    job = vs_trl.job_of(config, "exact", 10, tmp_path)
    tokenizer = load_tokenizer(config.model.path)
    source = PromptSource(load_prompts(config.data, tokenizer, config.rollout.max_prompt_tokens), config.seed, config.data.shuffle)
    taken = [prompt for _, prompt in source.take(20 * 16)]
    assert [row["prompt"] for row in job.prompts] == [prompt.text for prompt in taken]
    assert all(job.prompt_ids[prompt.text] == prompt.ids for prompt in taken)
    assert [round(job.lr * factor, 12) for factor in job.lr_factors] == [round(lr_at(step, config.train), 12) for step in range(20)]
    first = job.prompts[0]
    assert tokenizer.decode(first["ids"][:-1]) == first["prompt"].removesuffix("=")[::-1]
    assert first["ids"][-1] == tokenizer.eos_token_id


def test_the_endless_twin_never_ends_an_answer(vs_trl: Any, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from vime.models.twins import EOS_ID

    model = AutoModelForCausalLM.from_pretrained(vs_trl.endless_twin(tmp_path / "twin"), dtype=torch.float32)
    ids = torch.randint(3, 48, (4, 120), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        probabilities = model(ids).logits.softmax(-1)
    assert probabilities[..., EOS_ID].max() < 1e-9
    assert probabilities.max() < 0.9  # the others are still sampled


@pytest.mark.parametrize(("text", "paid"), [("tac", 1.0), ("tax", 2 / 3), ("<unused50>", 0.0), ("", 0.0)])
def test_trls_side_pays_as_vime_does(vs_trl: Any, text: str, paid: float) -> None:
    import share_reward
    import trl_side

    assert trl_side.share(text, "tac") == share_reward.share_of_label(text, "tac", {}) == pytest.approx(paid)


def test_a_target_is_reached_when_a_window_of_steps_is_there(vs_trl: Any) -> None:
    records = [{"side": "vime", "step": step, "block": 0, "reward_mean": reward} for step, reward in enumerate([0.5, 0.9, 0.7, 0.8, 0.8, 0.8, 0.9])]
    assert vs_trl.reached(records, "vime") == 6
    assert vs_trl.reached(records[:5], "vime") is None


PARENT = """
import psutil, subprocess, time
import turns
both = turns.Turns(True)
tree = subprocess.Popen(["sh", "-c", "sleep 300 & sleep 301 & wait"], start_new_session=True)
both.watch(tree.pid)
while len(psutil.Process(tree.pid).children()) < 2:
    time.sleep(0.01)
both.stop(tree.pid)
print(tree.pid, flush=True)
time.sleep(300)
"""


def test_a_killed_benchmark_leaves_no_stopped_process_behind() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(BENCHMARKS)})
    try:
        assert parent.stdout is not None
        top = psutil.Process(int(parent.stdout.readline()))
        tree = [top, *top.children(recursive=True)]
        assert len(tree) == 3
        until = time.monotonic() + 20
        while any(process.status() != psutil.STATUS_STOPPED for process in tree):  # the kernel stops each when it runs next
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        parent.kill()
        parent.wait()
    _, left = psutil.wait_procs(tree, timeout=30)
    assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]


def test_site_scale_measures_three_builds(tmp_path: Path) -> None:
    done = run("site_scale.py", "--cells", "3", "--nights", "2", "--json", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert {"cold", "night", "same", "largest"} <= row.keys()
    assert 0 < row["largest"] < 1_500_000
