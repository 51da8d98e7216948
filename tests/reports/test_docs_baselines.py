"""docs/baselines.md: every command of its worked example runs, on files of the shape of the public ones."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from reports.cli import app
from reports.readers import readers

DOCS = Path(__file__).parents[2] / "docs"


def mllog(path, seed):
    """A run as MLPerf logs it: reward and times of a step in two records, 17 steps of 30, an evaluation by samples, a stop with its status."""
    rng = np.random.default_rng(seed)
    lines = [
        ("seed", 2115446333 + seed, {}),
        ("max_steps", 30, {}),
        ("submission_platform", "a platform", {}),
        ("block_start", None, {"samples_count": 4608, "step": 0}),
    ]
    for step in range(1, 18):
        where = {"samples_count": 256 * step, "step": step}
        reward = round((0.3 + 0.25 * step / 17 + rng.normal(0, 0.01)) * 256) / 256
        lines.append(("tracked_stats", {"reduced_train_loss": rng.normal(0, 0.01), "reward": reward, "grad_norm": 0.1 + rng.random() / 10}, where))
        lines.append(("tracked_stats", {"train_step_time": 400 + rng.random(), "weight_sync_time": 15.0}, where))
    lines += [
        ("tracked_stats", {"validation_time": 992.0}, {"step": 18}),
        ("eval_accuracy", 0.71875, {"samples_count": 4608}),
        ("run_stop", None, {"status": "success"}),
    ]
    records = [
        {"namespace": "", "time_ms": 1000 + i, "event_type": "INTERVAL_END" if value is None else "POINT_IN_TIME", "key": key, "value": value, "metadata": meta}
        for i, (key, value, meta) in enumerate(lines)
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f":::MLLOG {json.dumps(record)}\n" for record in records))


def test_every_command_of_the_worked_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in range(1, 7):
        mllog(Path("GBS256") / f"seed_{seed}.out", seed)
    text = (DOCS / "baselines.md").read_text()
    for name, body in re.findall(r"```yaml\n# (\S+)\n(.*?)```", text, re.S):
        Path(name).write_text(body)
    commands = [shlex.split(line)[3:] for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.splitlines()]
    assert [command[:2] for command in commands if command[0] == "baseline"] == [["baseline", name] for name in ("bundle", "import", "show", "list", "fetch")]
    outputs = {}
    for command in commands:
        done = CliRunner().invoke(app, [*command, *(["--trials", "100"] if command[0] == "calibrate" else [])])
        assert done.exit_code == 0, f"{command}: {done.output} {done.exception}"
        outputs[command[1]] = done.output
    assert "PASS" in outputs["GBS256/seed_6.out"]
    assert Path("logs/seed-0/seed_1.out").read_bytes() == Path("GBS256/seed_1.out").read_bytes()
    assert Path("comparison/index.html").is_file()
    assert "claimed licence Apache-2.0" in outputs["show"]


def test_the_page_of_formats_lists_every_reader():
    text = (DOCS / "readers.md").read_text()
    listed = {name for cell in re.findall(r"^\| (`.*?) \|", text, re.M) for name in re.findall(r"`([a-z-]+)`", cell)}
    assert listed - {"--format"} >= set(readers())


@pytest.mark.parametrize("page", ["baselines.md", "readers.md"])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", (DOCS / page).read_text()):
        assert (DOCS / target).exists(), target
