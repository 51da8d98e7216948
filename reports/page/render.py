"""Templates with the style sheet and the script inlined."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from matrix.outcome import Outcome
from reports.results import age
from reports.show import MARKS

FOLDER = Path(__file__).parent / "templates"

MEANINGS = {
    Outcome.PASS: "every statistic's interval lies inside its margin",
    Outcome.FAIL: "a check is broken, or an interval lies wholly outside its margin",
    Outcome.INCONCLUSIVE: "undecided: more seeds wanted",
    Outcome.INCOMPLETE: "the planned steps were not reached",
    Outcome.INVALID: "not comparable, or a broken file",
    Outcome.INFRA: "lost before or outside training",
    Outcome.NO_BASELINE: "nothing to compare with",
    Outcome.NOT_RUN: "declared, no result",
}


@cache
def _environment() -> Environment:
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {
        "style": Markup((FOLDER / "style.css").read_text(encoding="utf-8")),
        "script": Markup((FOLDER / "hover.js").read_text(encoding="utf-8")),
        "marks": MARKS,
        "meanings": MEANINGS,
        "age": age,
        "breakable": breakable,
        "ranges": ranges,
        "css_of": lambda outcome: str(outcome).lower().replace("_", "-"),
    }
    return environment


def render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


def breakable(cell_id: str) -> Markup:
    """A cell id that may break after a dot or a plus."""
    return Markup(str(escape(cell_id)).replace(".", ".<wbr>").replace("+", "+<wbr>"))


def ranges(numbers: Sequence[int]) -> str:
    """`100–102, 105` for 100, 101, 102, 105."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts)
