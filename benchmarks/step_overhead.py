"""What vime's loop costs over the bare work: `vime train` (Ray, actors, reward workers, verified weight sync, run directory) against direct calls of vLLM and
Megatron-Core in one process (bare_step.py), on the same prompts, seeds and weights, in turns of a few steps each.

    python benchmarks/step_overhead.py                                     the example recipe: 16 × 16 short answers, broadcast over gloo
    python benchmarks/step_overhead.py --set placement.mode=colocate       shared memory instead
    python benchmarks/step_overhead.py --quick --json step.json

The driver is the one of `vime train`; only the turns are added. While one side works the other is stopped (SIGSTOP), so idle daemons of a cluster cost the
bare side nothing. Blocks alternate between `weights.verify_held_every` as configured and 1. The rewards of both sides are compared: the work is the same.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bare_step
from common import ROOT, arguments, finish, machine, machine_line, median, ms, ratio, say, table
from turns import STAGES, Turns, receive, vime_driver

SKIPPED = 2  # steps at the start of a block: caches are cold after the other side's turn


def measure(options: Any) -> dict[str, Any]:
    """Both sides in turns; the records of every step that counts, by side."""
    from vime.config.resolve import resolve
    from vime.platforms import registry

    os.chdir(ROOT)
    steps = options.blocks * options.steps
    overrides = [f"train.steps={steps + 1}", "eval.every=0", "checkpoint.every=0", f"tracking.log_every={steps + 1}", *options.set]
    resolved = resolve(options.recipe, overrides)
    configured = resolved.config.weights.verify_held_every
    environment = registry.get(resolved.config.platform).environment("engine", resolved.config)
    scratch = Path(tempfile.mkdtemp(prefix="vime-bench-"))
    context = multiprocessing.get_context("spawn")
    bare_pipe, bare_end = context.Pipe()
    vime_pipe, vime_end = context.Pipe()
    bare = context.Process(target=bare_step.serve, args=(bare_end, resolved.as_dict(), environment))
    vime = context.Process(target=vime_driver, args=(vime_end, str(options.recipe), overrides, str(scratch / "run"), options.steps))
    turns = Turns(options.freeze)
    try:
        say("starting the bare process")
        bare.start()
        turns.watch(bare.pid)
        receive(bare_pipe, bare, "the bare process", wanted="ready")
        turns.stop(bare.pid)
        say("starting vime")
        vime.start()
        turns.watch(vime.pid)
        records = alternate(options, configured, bare, vime, bare_pipe, vime_pipe, turns)
        receive(vime_pipe, vime, "vime", wanted="end")
        vime.join(60)
        turns.go(bare.pid)
        bare_pipe.send(None)
        bare.join(30)
    finally:
        turns.close()
        shutil.rmtree(scratch, ignore_errors=True)
    return {"machine": options.about, "recipe": str(options.recipe), "set": options.set, "configured_verify_held_every": configured, "records": records}


def alternate(options: Any, configured: int, bare: Any, vime: Any, bare_pipe: Any, vime_pipe: Any, turns: Turns) -> list[dict[str, Any]]:
    """Block after block, vime first in odd ones and the bare side first in even ones."""
    records: list[dict[str, Any]] = []
    receive(vime_pipe, vime, "vime", wanted="turn")
    for block in range(options.blocks):
        held = configured if block % 2 == 0 else 1
        turns.stop(vime.pid)

        def bare_block(block: int = block, held: int = held) -> None:
            turns.go(bare.pid)
            bare_pipe.send((block * options.steps, options.steps, True))
            _, done = receive(bare_pipe, bare, "the bare process", wanted="done")
            records.extend({"side": "bare", "block": block, "held": held, **record} for record in done)
            turns.stop(bare.pid)

        def vime_block(block: int = block, held: int = held) -> None:
            turns.go(vime.pid)
            vime_pipe.send(held)
            _, done = receive(vime_pipe, vime, "vime", wanted="turn")
            turns.stop(vime.pid)
            records.extend({"side": "vime", "block": block, "held": held, **record} for record in done)

        for part in (vime_block, bare_block) if block % 2 else (bare_block, vime_block):
            part()
        say(f"block {block + 1}/{options.blocks}: {summary(records, block)}")
    turns.go(vime.pid)
    vime_pipe.send(configured)
    return records


def counted(records: Sequence[dict[str, Any]], side: str, held: int | None = None) -> list[dict[str, Any]]:
    """Records of a side without the first steps of each block; `held` None: of all blocks."""
    first = {block: min(r["step"] for r in records if r["block"] == block) for block in {r["block"] for r in records}}
    return [r for r in records if r["side"] == side and r["step"] >= first[r["block"]] + SKIPPED and held in (None, r["held"])]


def summary(records: Sequence[dict[str, Any]], block: int) -> str:
    here = [r for r in records if r["block"] == block]
    walls = {side: median(r["wall"] for r in counted(here, side)) for side in ("vime", "bare")}
    return f"vime {ms(walls['vime'])} ms, bare {ms(walls['bare'])} ms, ratio {ratio(walls['vime'], walls['bare'])} (verify_held_every {here[0]['held']})"


def report(result: dict[str, Any]) -> str:
    """Tables of medians, one for each setting of verify_held_every."""
    records = result["records"]
    text = [machine_line(result["machine"]), "", same_work(records)]
    settings = sorted({r["held"] for r in records}, reverse=True)
    result["ratio"] = {}
    for held in settings:
        vime, bare = counted(records, "vime", held), counted(records, "bare", held)
        rows = []
        for name in (*STAGES, "rest", "wall"):
            ours, theirs = stage(vime, name), stage(bare, name)
            rows.append((name if name != "wall" else "**step**", ms(ours), ms(theirs), ms(ours - theirs), ratio(ours, theirs) if theirs > 0.002 else None))
        result["ratio"][str(held)] = stage(vime, "wall") / stage(bare, "wall")
        text += ["", f"weights.verify_held_every: {held} ({len(vime)} steps of vime, {len(bare)} bare)", ""]
        text.append(table(("median ms", "vime", "bare", "difference", "ratio"), rows))
    return "\n".join(text)


def stage(records: Sequence[dict[str, Any]], name: str) -> float:
    if name == "rest":
        return median(r["wall"] - sum(r[part] for part in STAGES) for r in records)
    return median(r[name] for r in records)


def same_work(records: Sequence[dict[str, Any]]) -> str:
    """How far the two sides' rewards and token counts are apart, step by step."""
    sides: dict[str, dict[int, dict[str, Any]]] = {side: {r["step"]: r for r in records if r["side"] == side} for side in ("vime", "bare")}
    both = sorted(sides["vime"].keys() & sides["bare"].keys())
    gap = max(abs(sides["vime"][step]["reward_mean"] - sides["bare"][step]["reward_mean"]) for step in both)
    tokens = [sum(sides[side][step]["tokens"] for step in both) for side in ("vime", "bare")]
    equal = sum(sides["vime"][step]["reward_mean"] == sides["bare"][step]["reward_mean"] for step in both)
    return f"same work: mean reward equal in {equal} of {len(both)} steps (largest difference {gap:.4f}); sampled tokens {tokens[0]:.0f} and {tokens[1]:.0f}"


def main() -> None:
    parser = arguments(__doc__, "2 blocks of 5 steps")
    parser.add_argument("--recipe", type=Path, default=ROOT / "examples/grpo-spell-backward.yaml", help="default: %(default)s")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the recipe, on both sides")
    parser.add_argument("--blocks", type=int, default=10, help="turns of each side (default %(default)s)")
    parser.add_argument("--steps", type=int, default=12, help="steps a turn (default %(default)s); the first two of each are not counted")
    parser.add_argument("--no-freeze", dest="freeze", action="store_false", help="leave the side that waits running idle")
    options = parser.parse_args()
    if options.quick:
        options.blocks, options.steps = 2, 5
    options.recipe = options.recipe.resolve()
    options.about = machine()
    result = measure(options)
    finish(result, report(result), options.json)


if __name__ == "__main__":
    main()
