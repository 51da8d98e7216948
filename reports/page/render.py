"""Templates, with the style sheet and the scripts either inlined (a page of its own) or shared by the pages of a site."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import xxhash
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from matrix.outcome import Outcome
from reports.page.names import breakable, css_of, day, ranges
from reports.show import MARKS

TEMPLATES = Path(__file__).parent / "templates"
ASSETS = Path(__file__).parent.parent / "site" / "assets"

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


@dataclass(frozen=True)
class Assets:
    """How a page gets its style sheet and script: `prefix` is the path to the site's root, or None where they stand in the page itself."""

    prefix: str | None = None

    @property
    def style(self) -> Markup:
        if self.prefix is None:
            return Markup("<style>{}</style>").format(Markup(_style()))
        return Markup('<link rel="stylesheet" href="{}">').format(f"{self.prefix}{files()['css'][0]}")

    @property
    def script(self) -> Markup:
        if self.prefix is None:
            return Markup("<script>{}</script>").format(Markup(_script()))
        return Markup('<script src="{}"></script>').format(f"{self.prefix}{files()['js'][0]}")


@cache
def files() -> dict[str, tuple[str, bytes]]:
    """Kind -> (path in a site, content). The name holds the content's hash: a site that is written again never mixes two versions."""
    parts = {"css": _style().encode(), "js": _script().encode()}
    return {kind: (f"assets/site-{xxhash.xxh3_64_hexdigest(data)[:10]}.{kind}", data) for kind, data in parts.items()}


@cache
def _style() -> str:
    return "\n".join(_read(name) for name in ("uPlot.min.css", "site.css"))


@cache
def _script() -> str:
    licence = _read("uPlot.LICENSE").replace("*/", "* /")
    return f"/* uPlot\n{licence}*/\n{_read('uPlot.iife.min.js')}\n{_read('site.js')}".replace("</", "<\\/")


def _read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"marks": MARKS, "meanings": MEANINGS, "breakable": breakable, "ranges": ranges, "css_of": css_of, "day": day}
    return environment


def render(template: str, assets: Assets = Assets(), **values: Any) -> str:
    """Raises jinja2.UndefinedError for a value that the template names and nobody gave."""
    return _environment().get_template(template).render(assets=assets, **values)
