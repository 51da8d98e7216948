"""Write docs/models.md's table from what was measured: `python -m tests.models.docs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matrix.loader import load
from tests.models.families import BY_NAME, Case
from vime.models import checked

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- measured -->", "<!-- end measured -->"
HEAD = (
    "model (twin of)",
    "family",
    "logits vs Hugging Face, largest",
    "log-probs vs vLLM, mean (largest)",
    "after a sync",
    "layouts",
    "MTP",
    "images",
    "cells on CPU (in brackets: declared, not yet run)",
)


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


def table() -> str:
    """A Markdown table, one line a case."""
    records, cells = checked.read(), cpu_cells()
    lines = [HEAD, ("---",) * len(HEAD), *(line(BY_NAME[name], records[name], cells) for name in BY_NAME if name in records)]
    notes = [f"- {name}: `{record['engine_error']}`" for name, record in records.items() if "engine_error" in record]
    return "\n".join("| " + " | ".join(entry) + " |" for entry in lines) + (
        "\n\nWhat vLLM's CPU build said where it did not serve:\n\n" + "\n".join(notes) if notes else ""
    )


def line(case: Case, record: dict[str, Any], cells: dict[str, list[str]]) -> tuple[str, ...]:
    published = case.published if isinstance(case.published, str) else "Llama-3.2-1B"
    served = "synced_mean" in record
    loaded = f"{record['loaded_mean']:.1e} ({record['loaded_max']:.0e})" if served else ("not served" if "engine_error" in record else "not measured")
    draft = f"{record['mtp']} layer, {record['draft_logits']:.0e}" if record.get("draft_logits") is not None else (str(record["mtp"]) if record["mtp"] else "-")
    return (
        published + (" (text alone)" if case.text else ""),
        record["family"],
        f"{record['hf_logits']:.0e}",
        loaded,
        f"{record['synced_mean']:.1e} ({record['held']})" if served else "-",
        str(record["layouts"]),
        draft,
        "yes" if case.sees else "-",
        ", ".join(cells.get(published, [])) or "-",
    )


def cpu_cells() -> dict[str, list[str]]:
    """Cells on CPU by model; in brackets where none has run yet."""
    out: dict[str, list[str]] = {}
    for cell in load().cells.values():
        if cell.hardware.value.platform == "cpu":
            mode = str(cell).split(".cpu.")[-1]
            out.setdefault(cell.model.value.name, []).append(f"({mode})" if cell.declared.value.unvalidated else mode)
    return out


if __name__ == "__main__":
    main()
