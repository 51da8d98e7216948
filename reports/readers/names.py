"""Names of metrics in other programs' files, and which of ours they are: a declared table that a user can extend (names.toml)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from reports.errors import ReportError
from reports.model import Curve, Note, NoteKind, Run
from reports.readers.base import Reading

TABLE = Path(__file__).with_name("names.toml")


@dataclass(frozen=True)
class Names:
    """ours: source name in lower case -> our name. steps, counts: keys that hold a step, best first. bookkeeping, clocks, runs: see names.toml."""

    ours: Mapping[str, str]
    steps: tuple[str, ...]
    counts: tuple[str, ...]
    bookkeeping: frozenset[str]
    clocks: tuple[str, ...]
    runs: tuple[str, ...]


@cache
def names(extra: Path | None = None) -> Names:
    """The table, with the user's file on top. Raises ReportError for a file that is no such table, or one name under two of ours."""
    base = _load(TABLE)
    more = _load(extra) if extra else {}
    ours: dict[str, str] = {}
    for place, table in ((TABLE, base), (extra, more)):
        mine: dict[str, str] = {}
        for target, sources in table.get("names", {}).items():
            for source in sources:
                if mine.setdefault(source.lower(), target) != target:
                    raise ReportError(f"{place}: {source!r} stands under {mine[source.lower()]!r} and under {target!r}: give it to one of them")
        ours |= mine
    steps, book = base["steps"], base["bookkeeping"]
    return Names(
        ours,
        tuple(name.lower() for name in [*more.get("steps", {}).get("names", []), *steps["names"]]),
        tuple(steps["counts"]),
        frozenset(name.lower() for name in [*book["names"], *more.get("bookkeeping", {}).get("names", [])]),
        tuple(book["clocks"]),
        tuple(book["runs"]),
    )


def _load(path: Path) -> dict[str, dict[str, list[str]]]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"--names {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ReportError(f"--names {path}: {error}") from None
    for section, content in found.items():
        lists = isinstance(content, dict) and all(isinstance(v, list) and all(isinstance(s, str) for s in v) for v in content.values())
        if section not in ("names", "steps", "bookkeeping") or not lists:
            raise ReportError(f"--names {path}: section [{section}] is not lists of names under [names], [steps] or [bookkeeping] (see {TABLE.name})")
    return found


def apply(run: Run, how: Reading) -> Run:
    """The run with its metrics under our names. Several source metrics that could be one of ours stay as they are, with a note."""
    table = names(how.table).ours
    wanted: dict[str, list[str]] = {}
    for source in run.curves:
        target = table.get(source.lower())
        if target is not None and target != source and target not in run.curves and how.names.get(target) not in run.curves:
            wanted.setdefault(target, []).append(source)
    wanted |= {target: [source] for target, source in how.names.items() if source in run.curves and source != target}
    _all_found(run, how, wanted)
    aliases: dict[str, str] = {}
    ambiguous: dict[str, tuple[str, ...]] = {}
    for target, sources in wanted.items():
        if len(sources) == 1 or _all_equal([run.curves[source] for source in sources]):
            aliases[sources[0]] = target
        else:
            ambiguous[target] = tuple(sources)
    if not aliases and not ambiguous:
        return run
    notes = tuple(Note(NoteKind.AMBIGUOUS, ambiguous_words(target, sources), run.path.name, target) for target, sources in ambiguous.items())
    curves = {aliases.get(source, source): curve for source, curve in run.curves.items() if source in aliases or source not in aliases.values()}
    renamed = tuple(replace(note, metric=aliases.get(note.metric, note.metric)) if note.metric else note for note in run.notes)
    return replace(run, curves=curves, notes=renamed + notes, aliases=aliases, ambiguous=ambiguous)


def ambiguous_words(target: str, sources: Sequence[str]) -> str:
    choices = " or ".join(f"--name '{target}={source}'" for source in sources)
    return f"{target} could be {' or '.join(map(repr, sources))}: say which with {choices}"


def _all_found(run: Run, how: Reading, wanted: Mapping[str, Sequence[str]]) -> None:
    """A name that is given for several files must mean something in each: theirs, ours already, or another name of ours."""
    for target, source in how.names.items():
        if source not in run.curves and target not in run.curves and target not in wanted:
            raise ReportError(f"--name {target}={source}: {run.path} holds no metric {source!r}; it has {', '.join(sorted(run.curves)[:12])}")


def _all_equal(curves: Sequence[Curve]) -> bool:
    first = curves[0]
    return all(np.array_equal(first.steps, one.steps) and np.array_equal(first.values, one.values, equal_nan=True) for one in curves[1:])


def resolve_metric(metric: str, runs: Iterable[Run]) -> str:
    """The name under which the runs hold the metric a person asked for: their own name for it counts too.

    Raises ReportError with the choices where it is ambiguous in one of the runs. A metric no run has comes back as it is.
    """
    runs = list(runs)
    found = {run.aliases[metric] for run in runs if metric in run.aliases and metric not in run.curves}
    name = metric if any(metric in run.curves for run in runs) or len(found) != 1 else found.pop()
    for run in runs:
        if name in run.ambiguous and name not in run.curves:
            raise ReportError(f"{run.path}: {ambiguous_words(name, run.ambiguous[name])}")
    return name


def pick_step(keys: Iterable[str], table: Names, wanted: str | None) -> str | None:
    """The key of a record or column of a table that holds the step, or None. `wanted`: the caller's."""
    present = list(keys)
    if wanted is not None:
        return wanted if wanted in present else None
    lower = {key.lower(): key for key in reversed(present)}
    return next((lower[name] for name in (*table.steps, *table.counts) if name in lower), None)
