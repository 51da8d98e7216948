"""vime against TRL's GRPOTrainer (Hugging Face generation): same model, prompts, batch of 16 × 16, sampling, loss, optimizer and cores, in turns.

    python benchmarks/vs_trl.py                      all cases: 4, 32 and 128 response tokens, and the example recipe to its reward target
    python benchmarks/vs_trl.py --case 128 --engines 2
    python benchmarks/vs_trl.py --quick --case 4

TRL runs in an environment of its own, which the first run makes under .cache/trl-env (1.5 GB, a minute or two). Cases:
  4        words of three letters and the end mark; from the warm start; to reward 0.8
  recipe   examples/grpo-spell-backward.yaml at 16 × 16: words of three to five letters; from the warm start; to reward 0.8
  32, 128  a twin of the same shape whose end mark has no probability, so that every answer in both has that many tokens; time only
vime runs twice, with one vLLM engine and with two: an engine's scheduler is Python on one core. While one side works the others are stopped (SIGSTOP).
TRL keeps its defaults except where the recipe says otherwise; vime too.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from common import ROOT, arguments, finish, machine, machine_line, median, ms, say, table
from turns import Turns, receive, vime_driver

TRL_ENV = ROOT / ".cache/trl-env"
TRL_PACKAGES = ("trl==1.16.0", "torch==2.13.0", "transformers==5.19.0", "datasets==5.2.0")
RECIPE = ROOT / "examples/grpo-spell-backward.yaml"
BATCH = ("rollout.prompts_per_step=16", "rollout.samples_per_prompt=16")
THREE = "data.task_args={min_word_len: 3, max_word_len: 3}"
LARGE = "train.max_tokens_per_microbatch=16384"  # TRL runs all 256 answers through the model at once
CASES = {  # overrides of the recipe, blocks, steps a block
    "4": ([THREE, "rollout.max_response_tokens=4"], 8, 10),
    "recipe": ([], 10, 10),
    "32": ([LARGE, "rollout.max_response_tokens=32"], 8, 4),
    "128": ([LARGE, "rollout.max_response_tokens=128"], 4, 3),
}
TRL, SAMPLES = "TRL", 256
TARGET, WINDOW = 0.8, 5  # mean reward over that many steps
FORCED = ("32", "128")


@dataclass(frozen=True)
class Job:
    """What TRL's side needs to do the same work."""

    model: str
    prompts: list[dict[str, Any]]  # {"prompt", "label", "ids": the label's with the end mark}, in the order of consumption
    prompt_ids: dict[str, list[int]]
    reward: str
    steps: int
    block: int
    prompts_per_step: int
    samples_per_prompt: int
    max_response_tokens: int
    lr: float
    lr_factors: list[float]
    clip_grad: float
    betas: tuple[float, float]
    clip_low: float
    clip_high: float
    seed: int
    threads: int
    scratch: str


def endless_twin(directory: Path) -> Path:
    """A twin of the recipe's shape, room for 256 positions, whose end mark is never sampled: hidden states share one large component, which every embedding
    but the end mark's has with the same sign. Both sides read the same files; nothing is forced on their samplers."""
    import torch
    from safetensors.torch import save_file

    from vime.models.hf_io import read_config
    from vime.models.registry import family_for
    from vime.models.twins import EOS_ID, make_twin

    shape = json.loads((ROOT / "matrix/warmstarts/qwen3-4b-spell-backward/config.json").read_text())
    make_twin({**{k: v for k, v in shape.items() if k != "transformers_version"}, "max_position_embeddings": 256}, directory)
    config = read_config(str(directory))
    shapes = family_for(config).weight_table(config).shapes
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.ones(s) if len(s) == 1 else torch.randn(s, generator=generator) * 0.05 for name, s in shapes.items()}
    embedding = weights["model.embed_tokens.weight"]
    embedding[:, 0] = 3.0
    embedding[EOS_ID, 0] = -3.0
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def make_environment() -> Path:
    """TRL's own environment; made once. Returns its Python."""
    import sys

    python, mark = TRL_ENV / "bin/python", TRL_ENV / ".installed"
    if not mark.is_file() or mark.read_text() != " ".join(TRL_PACKAGES):
        say(f"making {TRL_ENV.relative_to(ROOT)}: {' '.join(TRL_PACKAGES)}")
        subprocess.run([sys.executable, "-m", "venv", str(TRL_ENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *TRL_PACKAGES], check=True, stdout=subprocess.DEVNULL)
        mark.write_text(" ".join(TRL_PACKAGES))
    return python


class Spawned:
    """A subprocess with the attributes of a multiprocessing.Process."""

    def __init__(self, popen: subprocess.Popen[bytes]):
        self.popen, self.pid = popen, popen.pid

    def is_alive(self) -> bool:
        return self.popen.poll() is None

    @property
    def exitcode(self) -> int | None:
        return self.popen.poll()

    def join(self, timeout: float) -> None:
        self.popen.wait(timeout)


def start_trl(python: Path, job: Job) -> tuple[Any, Spawned]:
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "OMP_NUM_THREADS": str(job.threads)}
    command = [str(python), str(ROOT / "benchmarks/trl_side.py"), str(theirs.fileno())]
    process = Spawned(subprocess.Popen(command, pass_fds=(theirs.fileno(),), env=environment, cwd=job.scratch))
    theirs.close()
    pipe = Connection(ours.detach())
    pipe.send(asdict(job))
    return pipe, process


def job_of(config: Any, reward: str, block: int, scratch: Path) -> Job:
    """The recipe in TRL's terms, with the prompts in the order in which vime will consume them."""
    from vime.data import PromptSource, load_prompts, load_tokenizer
    from vime.platforms.cpu import threads
    from vime.training.schedule import lr_at

    rollout, train = config.rollout, config.train
    tokenizer = load_tokenizer(config.model.path)
    source = PromptSource(load_prompts(config.data, tokenizer, rollout.max_prompt_tokens), config.seed, config.data.shuffle)
    taken = [prompt for _, prompt in source.take(rollout.prompts_per_step * train.steps)]
    labels = [[*tokenizer.encode(prompt.label, add_special_tokens=False), tokenizer.eos_token_id] for prompt in taken]
    return Job(
        model=str(Path(config.model.path).resolve()),
        prompts=[{"prompt": prompt.text, "label": prompt.label, "ids": ids} for prompt, ids in zip(taken, labels, strict=True)],
        prompt_ids={prompt.text: list(prompt.ids) for prompt in taken},
        reward=reward,
        steps=train.steps,
        block=block,
        prompts_per_step=rollout.prompts_per_step,
        samples_per_prompt=rollout.samples_per_prompt,
        max_response_tokens=rollout.max_response_tokens,
        lr=train.lr,
        lr_factors=[lr_at(step, train) / train.lr for step in range(train.steps)],
        clip_grad=train.clip_grad,
        betas=(train.beta1, train.beta2),
        clip_low=config.algo.clip_low,
        clip_high=config.algo.clip_high,
        seed=config.seed,
        threads=threads("trainer", config),
        scratch=str(scratch),
    )


class Side:
    """One process tree of a case: TRL, or vime with a number of engines."""

    def __init__(self, name: str, process: Any, pipe: Any, word: Any):
        self.name, self.process, self.pipe, self.word = name, process, pipe, word

    def wait(self, wanted: str) -> list[dict[str, Any]]:
        return receive(self.pipe, self.process, self.name, wanted)[1]


def overrides_of(name: str, options: Any, scratch: Path) -> tuple[list[str], int, int]:
    """The case's overrides of the recipe, its number of blocks, and steps a block."""
    overrides, blocks, block = CASES[name]
    blocks, block = (2, 3) if options.quick else (options.blocks or blocks, block)
    planned = blocks * block if options.quick or name in FORCED else max(blocks * block, 100)  # the recipe's own schedule of the learning rate
    extra = [*BATCH, *overrides, f"train.steps={planned}", "eval.every=0", "checkpoint.every=0", f"tracking.log_every={planned}"]
    if options.quick or name in FORCED:
        extra.append("train.warmup_steps=0")
    if name in FORCED:
        extra += [f"model.path={endless_twin(scratch / 'twin')}", "reward.name=benchmarks.share_reward:share_of_label"]
    return [*extra, *options.set], blocks, block


def start_sides(extra: list[str], engines: Sequence[int], job: Job, python: Path, held: int, sides: list[Side], turns: Turns) -> None:
    """Start one side after the other, each stopped when it is ready for its first step; fills `sides`."""
    pipe, trl = start_trl(python, job)
    turns.watch(trl.pid)
    sides.append(Side(TRL, trl, pipe, None))
    context = multiprocessing.get_context("spawn")
    for count in engines:
        ours, theirs = context.Pipe()
        arguments = (theirs, str(RECIPE), [*extra, f"rollout.engines={count}"], str(Path(job.scratch) / f"run-{count}"), job.block)
        sides.append(Side(side_name(count), context.Process(target=vime_driver, args=arguments), ours, held))
    for side in sides:
        say(f"starting {side.name}")
        if side.name == TRL:
            side.wait("ready")
        else:
            side.process.start()
            turns.watch(side.process.pid)
        side.wait("turn")
        turns.stop(side.process.pid)


def measure(name: str, options: Any, python: Path) -> dict[str, Any]:
    """One case, in turns; records of every step of every side."""
    from vime.config.resolve import resolve

    scratch = Path(tempfile.mkdtemp(prefix="vime-bench-"))
    sides: list[Side] = []
    turns = Turns(freeze=True)
    try:
        extra, blocks, block = overrides_of(name, options, scratch)
        config = resolve(RECIPE, extra).config
        job = job_of(config, "share" if name in FORCED else "exact", block, scratch)
        start_sides(extra, options.engines, job, python, config.weights.verify_held_every, sides, turns)
        records: list[dict[str, Any]] = []
        for number in range(job.steps // block):
            last = (number + 1) * block == job.steps
            for side in sides[number % len(sides) :] + sides[: number % len(sides)]:  # who begins changes
                turns.go(side.process.pid)
                side.pipe.send(side.word)
                done = side.wait("end" if last else "turn")
                if not last:
                    turns.stop(side.process.pid)
                records += [{"side": side.name, "block": number, **record} for record in done if "reward_mean" in record]
            say(f"case {name}: block {number + 1}: {progress(records, number)}")
            if number + 1 >= blocks and (name in FORCED or all(reached(records, side.name) for side in sides)):
                break
        return {"case": name, "overrides": extra, "sides": [side.name for side in sides], "records": records}
    finally:
        turns.close()
        shutil.rmtree(scratch, ignore_errors=True)


def side_name(engines: int) -> str:
    return f"vime, {engines} engine{'s' if engines > 1 else ''}"


def steps_of(records: Sequence[dict[str, Any]], side: str) -> list[dict[str, Any]]:
    """Steps whose time counts: all but the first of each block (caches are cold) and those whose end was not seen."""
    own = [r for r in records if r["side"] == side]
    first = {number: min(r["step"] for r in own if r["block"] == number) for number in {r["block"] for r in own}}
    return [r for r in own if "wall" in r and r["step"] > first[r["block"]]]


def progress(records: Sequence[dict[str, Any]], number: int) -> str:
    here = [r for r in records if r["block"] == number]
    names = sorted({r["side"] for r in here})
    return "; ".join(f"{name} {ms(median(r['wall'] for r in steps_of(here, name)))} ms, reward {here_reward(here, name):.2f}" for name in names)


def here_reward(records: Sequence[dict[str, Any]], side: str) -> float:
    return median(r["reward_mean"] for r in records if r["side"] == side)


def reached(records: Sequence[dict[str, Any]], side: str) -> int | None:
    """Steps until the mean reward of the last few steps was at the target; None: never."""
    rewards = [r["reward_mean"] for r in sorted((r for r in records if r["side"] == side), key=lambda r: r["step"])]
    for count in range(WINDOW, len(rewards) + 1):
        if sum(rewards[count - WINDOW : count]) / WINDOW >= TARGET:
            return count
    return None


def numbers_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each side of a case."""
    rows: list[dict[str, Any]] = []
    for name in sorted(result["sides"], key=lambda name: name != TRL):
        found = steps_of(result["records"], name)
        row: dict[str, Any] = {"case": result["case"], "side": name, "step_s": median(r["wall"] for r in found)}
        row |= {"generate_s": median(r["rollout"] for r in found), "tokens": median(r["tokens"] for r in found) / SAMPLES}
        row["steps_to_target"] = None if result["case"] in FORCED else reached(result["records"], name)
        row["to_target_s"] = row["steps_to_target"] and row["steps_to_target"] * row["step_s"]
        base = rows[0] if rows else row
        row["ratio"] = row["step_s"] / base["step_s"]
        row["generate_ratio"] = row["generate_s"] / base["generate_s"]
        row["to_target_ratio"] = row["to_target_s"] / base["to_target_s"] if row["to_target_s"] and base["to_target_s"] else None
        rows.append(row)
    return rows


def report(results: Sequence[dict[str, Any]], about: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """The table, and its numbers."""
    numbers = [row for result in results for row in numbers_of(result)]
    rows = []
    for row in numbers:
        target = [None, None] if row["to_target_s"] is None else [f"{row['to_target_s']:.1f} ({row['steps_to_target']})", two(row["to_target_ratio"])]
        rest = row["step_s"] - row["generate_s"]
        cells = [f"{row['tokens']:.1f}", ms(row["step_s"]), f"**{row['ratio']:.2f}**", ms(row["generate_s"]), two(row["generate_ratio"]), ms(rest)]
        rows.append([f"{row['case']}: {row['side']}", *cells, *target])
    head = ["case", "tokens an answer", "step ms", "÷ TRL", "generate ms", "÷ TRL", "all else ms", f"s to reward {TARGET} (steps)", "÷ TRL"]
    return "\n".join([machine_line(about), f"TRL's environment: {', '.join(TRL_PACKAGES)}", "", table(head, rows)]), numbers


def two(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def main() -> None:
    parser = arguments(__doc__, "two blocks of three steps, no reward target")
    parser.add_argument("--case", action="append", choices=list(CASES), help="one or several; default: all")
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 2], help="vime with that many vLLM engines, each a side of its own (default 1 2)")
    parser.add_argument("--blocks", type=int, help="turns of each side; default: per case")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of vime's recipe")
    options = parser.parse_args()
    os.chdir(ROOT)
    about, python = machine(), make_environment()
    results = [measure(name, options, python) for name in options.case or CASES]
    text, numbers = report(results, about)
    finish({"machine": about, "summary": numbers, "results": results}, text, options.json)


if __name__ == "__main__":
    main()
