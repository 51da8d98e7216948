"""Since which commit a cell is bad: what stored verdicts say of commits, what lies between the last good and the first bad one, and what would settle it.

A verdict says something of a commit when all its runs were made at that one commit, without local changes, under the recipe of the latest bad verdict,
and its outcome is PASS (good) or FAIL or INCOMPLETE (bad). Nothing is run and no file is changed.
"""

from __future__ import annotations

import json
import math
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from reports.errors import ReportError
from reports.heads import Head, Heads
from reports.history import BAD, GOOD, commit_of


@dataclass(frozen=True)
class Commit:
    """One commit between good and bad. `verdicts`: what was judged at it. `touches`: None where it is not known whether it can affect the cell."""

    sha: str
    subject: str
    verdicts: tuple[str, ...] = ()
    touches: bool | None = None

    def line(self) -> str:
        said = f"  [{', '.join(self.verdicts)}]" if self.verdicts else ""
        return f"{self.sha[:12]}  {self.subject}{'' if self.touches is not False else '  (touches nothing of this cell)'}{said}"


@dataclass(frozen=True)
class Bisection:
    """good, bad: the closest commits that are known to be so. suspects: oldest first, after `good` up to `bad`; the culprit is one of them."""

    cell: str
    good: Commit | None
    bad: Commit
    suspects: tuple[Commit, ...]
    remarks: tuple[str, ...]
    next: Commit | None = None
    commands: tuple[str, ...] = field(default=())

    @property
    def settled(self) -> bool:
        return len(self.suspects) == 1

    def lines(self) -> list[str]:
        out = [f"{self.cell}", f"bad   {self.bad.line()}", f"good  {self.good.line()}" if self.good else "good  no commit is known to be"]
        out += [f"note: {remark}" for remark in self.remarks]
        if self.settled:
            return [*out, "", f"first bad commit: {self.suspects[0].line()}"]
        if self.suspects:
            runs = math.ceil(math.log2(len(self.suspects)))
            out += [
                "",
                f"{len(self.suspects)} commits remain, {runs} run{'s' if runs > 1 else ''} of the cell settle it:",
                *(f"  {one.line()}" for one in self.suspects),
            ]
        return [*out, "", "next:" if self.commands else "", *(f"  {command}" for command in self.commands)]

    def json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)


def bisect(root: Path, cell: str, repository: Path, matrix_root: Path | None = None) -> Bisection:
    """Raises ReportError where the cell has no bad verdict at a known commit, or the repository does not know the commits."""
    from matrix.cell_id import key

    try:
        folder = key(cell)
    except ValueError:
        folder = cell
    history = Heads(root).of(folder)
    if not history:
        raise ReportError(f"{root / folder}: no verdicts of {cell}")
    judged, remarks = telling(history)
    bad = next((head for head in reversed(history) if head.outcome in BAD and commit_of(head) in judged), None)
    if bad is None:
        why = f": {remarks[0]}" if remarks else ""
        raise ReportError(f"{cell}: no bad verdict names one clean commit, so there is nothing to bisect{why}")
    last = next(head for head in reversed(history) if head.outcome in GOOD + BAD)
    if last.outcome in GOOD:
        remarks.append(f"the latest verdict is good ({last.created[:16].replace('T', ' ')}): what follows is about the last time it was bad")
    git = Git(repository)
    tip = str(commit_of(bad))
    return _narrowed(cell, root, tip, judged, git, [*remarks], matrix_root)


def telling(history: Sequence[Head]) -> tuple[dict[str, list[str]], list[str]]:
    """(commit -> outcomes that say something of it, remarks on verdicts left out)."""
    latest = next((head for head in reversed(history) if head.outcome in BAD), None)
    judged: dict[str, list[str]] = {}
    left: dict[str, int] = {}
    for head in history:
        if head.outcome not in GOOD + BAD:
            continue
        commit = commit_of(head)
        if commit is None:
            left["naming no single commit"] = left.get("naming no single commit", 0) + 1
        elif head.dirty:
            left["made with local changes"] = left.get("made with local changes", 0) + 1
        elif latest is not None and head.science_hash != latest.science_hash:
            left["of another recipe"] = left.get("of another recipe", 0) + 1
        else:
            judged.setdefault(commit, []).append(head.outcome)
    return judged, [f"{count} verdict{'s' if count > 1 else ''} left out: {why}" for why, count in left.items()]


def _narrowed(cell: str, root: Path, tip: str, judged: Mapping[str, Sequence[str]], git: Git, remarks: list[str], matrix_root: Path | None) -> Bisection:
    line = git.line(tip)  # newest first
    place = {sha: number for number, sha in enumerate(line)}
    known = {sha: states for sha, states in judged.items() if sha in place}
    if len(known) < len(judged):
        remarks.append(f"{len(judged) - len(known)} judged commit(s) are not on the first-parent line of {tip[:12]}: left out")
    mixed = [sha for sha, states in known.items() if _good(states) and not all(state in GOOD for state in states)]
    remarks += [f"{sha[:12]} was judged good and bad: it counts as bad; a flaky cell cannot be bisected by single runs" for sha in mixed]
    bads = [sha for sha, states in known.items() if any(state in BAD for state in states)]
    goods = [sha for sha, states in known.items() if all(state in GOOD for state in states)]
    first_bad, good = _edge(place, bads, goods)
    later = [sha for sha in goods if place[sha] < place[first_bad]]
    remarks += (
        [f"good again at {', '.join(sha[:12] for sha in later)}, after it was bad: the fault comes and goes, or was mended and came back"] if later else []
    )
    between = line[place[first_bad] : place[good] if good else len(line)]
    affects = _affects(cell, between, git, matrix_root) if good else {}
    suspects = [sha for sha in reversed(between) if affects.get(sha) is not False] if good else []
    if good and not suspects:
        remarks.append("no commit between touches what selection.yaml says the cell is made of: look at machines, data and the environment")
    if len(suspects) < len(between) and good:
        remarks.append(f"{len(between) - len(suspects)} commit(s) between touch nothing of this cell (matrix/selection.yaml): not suspected")
    subjects = git.subjects([*between, *([good] if good else [])])

    def commit(sha: str) -> Commit:
        return Commit(sha, subjects[sha], tuple(known.get(sha, ())), affects.get(sha))

    chosen = tuple(commit(sha) for sha in suspects)
    following = chosen[(len(chosen) - 1) // 2] if len(chosen) > 1 else None
    if good is None:
        remarks.append("no older commit was judged good: judge one, and bisect again")
    return Bisection(
        cell, commit(good) if good else None, commit(first_bad), chosen, tuple(remarks), following, commands(cell, root, following.sha) if following else ()
    )


def _good(states: Sequence[str]) -> bool:
    return any(state in GOOD for state in states)


def _edge(place: Mapping[str, int], bads: Sequence[str], goods: Sequence[str]) -> tuple[str, str | None]:
    """The oldest bad commit of the streak that lasts until the newest bad one, and the newest good commit before it. Places grow with age."""
    newest = min(bads, key=lambda sha: place[sha])
    older_goods = [sha for sha in goods if place[sha] > place[newest]]
    good = min(older_goods, key=lambda sha: place[sha], default=None)
    streak = [sha for sha in bads if good is None or place[sha] < place[good]]
    return max(streak, key=lambda sha: place[sha]), good


def commands(cell: str, root: Path, sha: str) -> tuple[str, ...]:
    """Run the cell at a commit, in a checkout of its own, with its verdict among the others. Then bisect again."""
    place, results = f"../bisect-{sha[:12]}", shlex.quote(str(root.resolve()))
    return (
        f"git worktree add {place} {sha[:12]}",
        f"cd {place} && make env && .venv/bin/python -m e2e run {shlex.quote(cell)} --results {results} --rerun",
        f"python -m reports bisect {results} {shlex.quote(cell)}",
    )


def _affects(cell: str, commits: Iterable[str], git: Git, matrix_root: Path | None) -> dict[str, bool | None]:
    """Whether each commit can affect the cell, by the map of paths that the declarations hold now. None where a path is in no area."""
    from matrix import load
    from matrix.affected import affected
    from matrix.problem import MatrixError, SelectionError

    try:
        matrix = load(matrix_root)
        if cell not in matrix.cells:
            return {}
        found: dict[str, bool | None] = {}
        for sha in commits:
            told = affected(matrix, git.paths(sha))
            found[sha] = True if cell in told.reasons else None if told.unknown else False
        return found
    except (MatrixError, SelectionError):
        return {}


class Git:
    """A few questions to the repository."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository

    def _ask(self, *words: str) -> str:
        try:
            done = subprocess.run(["git", "-C", str(self.repository), *words], capture_output=True, text=True, timeout=60)
        except FileNotFoundError:
            raise ReportError("git is not installed: bisecting needs the history of the commits") from None
        if done.returncode:
            raise ReportError(f"{self.repository}: git {' '.join(words[:2])}: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
        return done.stdout

    def line(self, tip: str) -> list[str]:
        """The first-parent line that ends at a commit, newest first."""
        return self._ask("rev-list", "--first-parent", tip).split()

    def subjects(self, commits: Sequence[str]) -> dict[str, str]:
        text = self._ask("show", "--no-patch", "--no-color", "--format=%H %s", *commits)
        return {sha: subject for sha, _, subject in (line.partition(" ") for line in text.splitlines() if line)}

    def paths(self, sha: str) -> list[str]:
        """Files a commit changed against its first parent."""
        text = self._ask("diff-tree", "--root", "-r", "-m", "--first-parent", "--no-commit-id", "--name-only", "-z", sha)
        return [path for path in text.split("\0") if path]
