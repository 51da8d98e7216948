"""vime against TRL's GRPOTrainer (Hugging Face generation): same model, prompts, batch of 16 × 16, sampling, loss, optimizer and cores, in turns.

    python benchmarks/vs_trl.py                      all cases: 4, 32 and 128 response tokens, and the example recipe to its reward target
    python benchmarks/vs_trl.py --case 128 --set train.max_tokens_per_microbatch=16384
    python benchmarks/vs_trl.py --quick --case 4

TRL runs in an environment of its own, which the first run makes under .cache/trl-env (1.5 GB, a minute or two). Cases:
  4        words of three letters and the end mark; from the warm start; to reward 0.8
  recipe   examples/grpo-spell-backward.yaml at 16 × 16: words of three to five letters; from the warm start; to reward 0.8
  32, 128  a twin of the same shape whose end mark has no probability, so that every answer in both has that many tokens; time only
While one side works the other is stopped (SIGSTOP). TRL keeps its defaults except where the recipe says otherwise; vime too.
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

from common import ROOT, arguments, finish, machine, machine_line, median, ms, ratio, say, table
from turns import Turns, end, receive, vime_driver

TRL_ENV = ROOT / ".cache/trl-env"
TRL_PACKAGES = ("trl==1.16.0", "torch==2.13.0", "transformers==5.19.0", "datasets==5.2.0")
RECIPE = ROOT / "examples/grpo-spell-backward.yaml"
BATCH = ("rollout.prompts_per_step=16", "rollout.samples_per_prompt=16")
THREE = "data.task_args={min_word_len: 3, max_word_len: 3}"
CASES = {  # overrides of the recipe, blocks, steps a block
    "4": ([THREE, "rollout.max_response_tokens=4"], 8, 10),
    "recipe": ([], 10, 10),
    "32": (["rollout.max_response_tokens=32", "train.warmup_steps=0"], 8, 4),
    "128": (["rollout.max_response_tokens=128", "train.warmup_steps=0"], 6, 3),
}
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


def measure(name: str, options: Any, python: Path) -> dict[str, Any]:
    """One case, in turns. Records of every step of both sides, and the seconds both took to start."""
    from vime.config.resolve import resolve

    overrides, blocks, block = CASES[name]
    blocks, block = (2, 3) if options.quick else (options.blocks or blocks, block)
    scratch = Path(tempfile.mkdtemp(prefix="vime-bench-"))
    planned = blocks * block if options.quick or name in FORCED else max(blocks * block, 100)  # the recipe's own schedule of the learning rate
    extra = [*BATCH, *overrides, f"train.steps={planned}", "eval.every=0", "checkpoint.every=0", f"tracking.log_every={planned}", "train.warmup_steps=0"]
    if not options.quick and name not in FORCED:
        extra.pop()
    if name in FORCED:
        extra += [f"model.path={endless_twin(scratch / 'twin')}", "reward.name=benchmarks.share_reward:share_of_label"]
    extra += options.set
    config = resolve(RECIPE, extra).config
    job = job_of(config, "share" if name in FORCED else "exact", block, scratch)
    vime_pipe, vime_end = multiprocessing.get_context("spawn").Pipe()
    vime = multiprocessing.get_context("spawn").Process(target=vime_driver, args=(vime_end, str(RECIPE), extra, str(scratch / "run"), block))
    turns, trl = Turns(freeze=True), None
    try:
        say(f"case {name}: starting TRL, then vime")
        trl_pipe, trl = start_trl(python, job)
        receive(trl_pipe, trl, "TRL", wanted="ready")
        receive(trl_pipe, trl, "TRL", wanted="turn")
        turns.stop(trl.pid)
        vime.start()
        receive(vime_pipe, vime, "vime", wanted="turn")
        turns.stop(vime.pid)
        records: list[dict[str, Any]] = []
        for number in range(planned // block):
            go = {"vime": (vime, vime_pipe, config.weights.verify_held_every), "trl": (trl, trl_pipe, None)}
            for side in ("vime", "trl") if number % 2 else ("trl", "vime"):
                process, pipe, word = go[side]
                turns.go(process.pid)
                pipe.send(word)
                last = (number + 1) * block == planned
                _, done = receive(pipe, process, side, wanted="end" if last else "turn")
                if not last:
                    turns.stop(process.pid)
                records += [{"side": side, "block": number, **record} for record in done if "reward_mean" in record]
            say(f"case {name}: block {number + 1}/{planned // block}: {progress(records, number)}")
            if not options.quick and number + 1 >= blocks and (name in FORCED or all(reached(records, side) for side in ("vime", "trl"))):
                break
        return {"case": name, "overrides": extra, "records": records}
    finally:
        for process in (vime, trl):
            if process is not None:
                end(process)
        shutil.rmtree(scratch, ignore_errors=True)


def steps_of(records: Sequence[dict[str, Any]], side: str) -> list[dict[str, Any]]:
    """Steps whose time counts: all but the first of each block (caches are cold) and those whose end was not seen."""
    own = [r for r in records if r["side"] == side]
    first = {number: min(r["step"] for r in own if r["block"] == number) for number in {r["block"] for r in own}}
    return [r for r in own if "wall" in r and r["step"] > first[r["block"]]]


def progress(records: Sequence[dict[str, Any]], number: int) -> str:
    here = [r for r in records if r["block"] == number]
    ours, theirs = (median(r["wall"] for r in steps_of(here, side)) for side in ("vime", "trl"))
    rewards = [median(r["reward_mean"] for r in here if r["side"] == side) for side in ("vime", "trl")]
    return f"vime {ms(ours)} ms, TRL {ms(theirs)} ms, ratio {ratio(ours, theirs)}; rewards {rewards[0]:.2f}, {rewards[1]:.2f}"


def reached(records: Sequence[dict[str, Any]], side: str) -> int | None:
    """Steps until the mean reward of the last few steps was at the target; None: never."""
    rewards = [r["reward_mean"] for r in sorted((r for r in records if r["side"] == side), key=lambda r: r["step"])]
    for count in range(WINDOW, len(rewards) + 1):
        if sum(rewards[count - WINDOW : count]) / WINDOW >= TARGET:
            return count
    return None


def report(results: Sequence[dict[str, Any]], about: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """The tables, and their numbers."""
    numbers, rows, parts = [], [], []
    for result in results:
        records = result["records"]
        sides = {side: steps_of(records, side) for side in ("vime", "trl")}
        wall = {side: median(r["wall"] for r in found) for side, found in sides.items()}
        generate = {side: median(r["rollout"] for r in found) for side, found in sides.items()}
        tokens = {side: median(r["tokens"] for r in found) / 256 for side, found in sides.items()}
        steps = {side: None if result["case"] in FORCED else reached(records, side) for side in sides}
        to_target = {side: count and count * wall[side] for side, count in steps.items()}
        numbers.append({"case": result["case"], "step_s": wall, "generate_s": generate, "tokens": tokens, "steps_to_target": steps, "to_target_s": to_target})
        numbers[-1]["ratio"] = wall["vime"] / wall["trl"]
        row = [result["case"], f"{tokens['vime']:.1f}, {tokens['trl']:.1f}", ms(wall["vime"]), ms(wall["trl"]), f"**{ratio(wall['vime'], wall['trl'])}**"]
        if all(to_target.values()):
            row += [f"{to_target['vime']:.1f} ({steps['vime']})", f"{to_target['trl']:.1f} ({steps['trl']})", ratio(to_target["vime"], to_target["trl"])]
        else:
            row += [None, None, None]
        rows.append(row)
        rest = {side: wall[side] - generate[side] for side in sides}
        cells = [ms(generate["vime"]), ms(generate["trl"]), ratio(generate["vime"], generate["trl"])]
        parts.append([result["case"], *cells, ms(rest["vime"]), ms(rest["trl"]), ratio(rest["vime"], rest["trl"])])
    head = ["case", "tokens an answer", "vime ms", "TRL ms", "ratio", f"vime s to reward {TARGET} (steps)", "TRL s (steps)", "ratio"]
    text = [machine_line(about), f"TRL's environment: {', '.join(TRL_PACKAGES)}", "", table(head, rows), "", "Of a step:", ""]
    text.append(table(["case", "generate: vime ms", "TRL ms", "ratio", "all else: vime ms", "TRL ms", "ratio"], parts))
    return "\n".join(text), numbers


def main() -> None:
    parser = arguments(__doc__, "two blocks of three steps, no reward target")
    parser.add_argument("--case", action="append", choices=list(CASES), help="one or several; default: all")
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
