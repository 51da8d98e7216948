"""A declaration tree, loaded whole: every file read and typed, every reference resolved, every fault of the tree reported together."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel

from matrix.cell_id import CellId, key, parse
from matrix.declarations import (
    Cell,
    Cells,
    Framework,
    Hardware,
    Limits,
    Model,
    Modes,
    Quarantine,
    Quarantined,
    Recipe,
    Tags,
    Tier,
    Tiers,
    VersionSet,
    VersionSets,
)
from matrix.mode_rules import ModeRules
from matrix.outcome import Disposition
from matrix.problem import MatrixError, Problem, SelectionError, Where, nearest, shown
from matrix.rule import JudgeRule
from matrix.science import ScienceRules, ScienceTable
from matrix.typed import typed
from matrix.vime_schema import Catalogue, VimeSchema
from matrix.yaml_file import Document, Path_, read_yaml

if TYPE_CHECKING:
    from matrix.affected import Selection

ROOT = Path(__file__).resolve().parent  # the checkout's own declarations

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Declared(Generic[M]):
    """A declaration and where it stands."""

    value: M
    document: Document = field(repr=False)
    at: Path_ = ()

    def where(self, *path: str | int) -> Where:
        return self.document.where((*self.at, *path))


@dataclass(frozen=True)
class DeclaredCell:
    """A cell with everything it names."""

    id: CellId
    declared: Declared[Cell]
    model: Declared[Model]
    hardware: Declared[Hardware]
    recipe: Declared[Recipe]
    quarantined: Quarantined | None = None
    framework: Declared[Framework] | None = None  # None: vime

    @property
    def key(self) -> str:
        return key(self.id)

    @property
    def marker(self) -> str:
        return self.hardware.value.marker

    @property
    def tiers(self) -> tuple[str, ...]:
        return tuple(self.declared.value.tiers)

    @property
    def limits(self) -> Limits:
        """The runner's deadlines: the hardware's, with the cell's own limit of a run."""
        limits, minutes = self.hardware.value.limits, self.declared.value.wall_minutes
        return limits.model_copy(update={"wall_s": minutes * 60.0}) if minutes else limits

    @property
    def minutes(self) -> float:
        """Expected of one run."""
        return self.declared.value.minutes or self.recipe.value.minutes

    @property
    def unvalidated(self) -> str | None:
        """Why nothing has shown yet that it runs: its own reason, or its hardware's."""
        return self.declared.value.unvalidated or self.hardware.value.unvalidated

    @property
    def rule(self) -> JudgeRule:
        """How its runs are judged: the recipe's rule, with the exactness bands that another framework's output can show."""
        rule = self.recipe.value.judge
        return rule.model_copy(update={"exactness": self.framework.value.exactness}) if self.framework else rule

    @property
    def disposition(self) -> Disposition:
        return Disposition.QUARANTINED if self.quarantined else Disposition(self.declared.value.disposition)

    def __str__(self) -> str:
        return str(self.id)


@dataclass
class Matrix:
    """Every declaration of one tree."""

    root: Path
    models: dict[str, Declared[Model]] = field(default_factory=dict)
    hardware: dict[str, Declared[Hardware]] = field(default_factory=dict)
    recipes: dict[str, Declared[Recipe]] = field(default_factory=dict)
    frameworks: dict[str, Declared[Framework]] = field(default_factory=dict)
    cells: dict[str, DeclaredCell] = field(default_factory=dict)
    modes: ModeRules = field(default_factory=ModeRules)
    tiers: tuple[str, ...] = ()
    tier_rules: dict[str, Tier] = field(default_factory=dict)
    science: ScienceTable = field(default_factory=ScienceTable)
    version_sets: dict[str, VersionSet] = field(default_factory=dict)
    tags: tuple[str, ...] = ()

    @cached_property
    def selection(self) -> Declared[Selection] | None:
        """The map from paths to cells, read when it is asked for; None in a tree without one. Raises MatrixError for what is wrong with the file."""
        from matrix.affected import FILE, Selection

        reader = _Reader(self.root)
        found = reader.optional(FILE, Selection)
        if reader.problems:
            raise MatrixError(reader.problems)
        return found

    @cached_property
    def vime(self) -> VimeSchema:
        return VimeSchema(self.root / "schema" / "vime-config.schema.json")

    def catalogue(self, package: str, version: str) -> Catalogue | None:
        """The options of a package's version, or None when no catalogue of it is committed."""
        path = self.root / "schema" / "options" / f"{package}-{version}.json"
        return Catalogue(path) if path.is_file() else None

    def cell(self, cell_id: str) -> DeclaredCell:
        """The cell of that id. Raises SelectionError with the nearest ids."""
        if cell_id not in self.cells:
            raise SelectionError(f"no cell '{cell_id}' is declared{nearest(cell_id, self.cells)}")
        return self.cells[cell_id]

    def select(self, tier: str | None = None, hardware: str | None = None, markers: Iterable[str] | None = None) -> list[DeclaredCell]:
        """Cells of a tier, a hardware and a set of pytest markers, in the order of their ids.

        Raises SelectionError for a tier or hardware that is not declared.
        """
        for name, known, what in ((tier, self.tiers, "tier"), (hardware, self.hardware, "hardware")):
            if name is not None and name not in known:
                raise SelectionError(f"no {what} '{name}' is declared{nearest(name, known)}")
        wanted = None if markers is None else set(markers)
        return [
            cell
            for _, cell in sorted(self.cells.items())
            if (tier is None or tier in cell.tiers) and (hardware is None or hardware == cell.id.hardware) and (wanted is None or cell.marker in wanted)
        ]


def load(root: Path | None = None, today: date | None = None) -> Matrix:
    """The tree under `root` (default: the checkout's). Raises MatrixError holding every fault; compositions are checked by `matrix.checks.check`."""
    matrix, problems = read_tree(root or ROOT, today)
    if problems:
        raise MatrixError(problems)
    return matrix


def read_tree(root: Path, today: date | None = None) -> tuple[Matrix, list[Problem]]:
    """What could be loaded of a tree, and what is wrong with the rest."""
    with collector_paused():
        return _read_tree(root, today)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Work that makes many objects and drops few: Python's cycle collector would take two thirds of the time and find nothing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _read_tree(root: Path, today: date | None) -> tuple[Matrix, list[Problem]]:
    reader = _Reader(root)
    if not root.is_dir():
        return reader.matrix, [Problem(Where(str(root)), "no such directory")]
    matrix = reader.matrix
    sets, tags = reader.optional("versions.yaml", VersionSets), reader.optional("tags.yaml", Tags)
    matrix.version_sets = {entry.name: entry for entry in sets.value.version_sets} if sets else {}
    reader.versions_unread = sets is None and (root / "versions.yaml").is_file()
    matrix.tags = tuple(tag.name for tag in tags.value.tags) if tags else ()
    matrix.models = reader.folder("models", Model)
    matrix.hardware = {name: reader.with_versions(declared) for name, declared in reader.folder("hardware", Hardware).items()}
    matrix.recipes = reader.folder("recipes", Recipe)
    matrix.frameworks = reader.folder("frameworks", Framework)
    modes, tiers, science = reader.file("modes.yaml", Modes), reader.file("tiers.yaml", Tiers), reader.file("science.yaml", ScienceRules)
    if modes:
        matrix.modes = ModeRules(modes.value, modes.document)
        reader.problems += [Problem(modes.where(*path), message) for path, message in matrix.modes.faults()]
        reader.exclusions(modes)
    matrix.tier_rules = {tier.name: tier for tier in tiers.value.tiers} if tiers else {}
    matrix.tiers = tuple(matrix.tier_rules)
    matrix.science = ScienceTable(science.value) if science else ScienceTable()
    reader.cells()
    reader.quarantine(today or date.today())
    return matrix, reader.problems


class _Reader:
    """Collects declarations and problems of one tree."""

    def __init__(self, root: Path):
        self.root = root
        self.matrix = Matrix(root)
        self.problems: list[Problem] = []
        self.untyped: dict[str, set[str]] = {}  # folder -> names of files that did not load: what refers to them is left out, not a fault of its own
        self.left_out: set[str] = set()  # cells that were
        self.versions_unread = False  # versions.yaml is there and did not load

    def file(self, name: str, model: type[M]) -> Declared[M] | None:
        path = self.root / name
        if not path.is_file():
            said = "is not a file that can be read" if path.exists() or path.is_symlink() else "is missing: every tree has one"
            self.problems.append(Problem(Where(str(path)), said))
            return None
        document = read_yaml(path)
        value = typed(document, model)
        self.problems += document.problems
        return Declared(value, document) if value is not None else None

    def optional(self, name: str, model: type[M]) -> Declared[M] | None:
        """A file that a tree may do without."""
        return self.file(name, model) if (self.root / name).is_file() else None

    def with_versions(self, hardware: Declared[Hardware]) -> Declared[Hardware]:
        """The hardware with the versions that its set of versions.yaml names."""
        value, sets = hardware.value, self.matrix.version_sets
        for at, name in (("version_set", value.version_set), *(("alternatives", other) for other in value.alternatives)):
            if name is not None and name not in sets and not self.versions_unread:
                self.problems.append(Problem(hardware.where(at), f"versions.yaml has no set '{name}'{nearest(name, sets)}"))
        if value.version_set not in sets:
            return hardware
        return replace(hardware, value=value.model_copy(update={"versions": sets[value.version_set].versions}))

    def files(self, name: str) -> list[Path]:
        """`<root>/<name>/*.yaml`. Editors' hidden files are passed over; what is called .yml is a fault, because it would be left out in silence."""
        found = sorted(path for path in (self.root / name).glob("*.y*ml") if not path.name.startswith("."))
        self.problems += [Problem(Where(shown(path)), f"declarations end in .yaml: rename it to {path.stem}.yaml") for path in found if path.suffix == ".yml"]
        return [path for path in found if path.suffix == ".yaml"]

    def folder(self, name: str, model: type[M]) -> dict[str, Declared[M]]:
        """The declarations of `<root>/<name>/*.yaml`; each file is named after what it declares, so that a name has one place."""
        found: dict[str, Declared[M]] = {}
        for path in self.files(name):
            declared = self.file(f"{name}/{path.name}", model)
            if declared is None:
                self.untyped.setdefault(name, set()).add(path.stem)
                continue
            own = str(getattr(declared.value, "name"))  # noqa: B009 - every model of a folder has a name
            if own != path.stem:
                self.problems.append(Problem(declared.where("name"), f"name: '{own}' in a file called {path.name}: call one like the other"))
            found[own] = declared
        return found

    def exclusions(self, modes: Declared[Modes]) -> None:
        """An exclusion for a model or hardware that nobody declares excludes nothing."""
        for index, exclusion in enumerate(modes.value.excludes):
            for field_name, known in (("models", self.matrix.models), ("hardware", self.matrix.hardware)):
                for name in getattr(exclusion, field_name):
                    if name not in known and name not in self.untyped.get(field_name, ()):
                        where = modes.where("excludes", index, field_name)
                        self.problems.append(Problem(where, f"the exclusion matches nothing: {field_name}/{name}.yaml is not declared{nearest(name, known)}"))

    def cells(self) -> None:
        for path in self.files("cells"):
            declared = self.file(f"cells/{path.name}", Cells)
            for index, cell in enumerate(declared.value.cells if declared else []):
                assert declared is not None
                self._cell(Declared(cell, declared.document, ("cells", index)))
        if not self.matrix.cells and not self.left_out and not self.problems:
            self.problems.append(Problem(Where(str(self.root / "cells")), "no cell is declared: an empty matrix proves nothing"))

    def _cell(self, declared: Declared[Cell]) -> None:
        where = declared.where("id")
        try:
            cell_id = parse(declared.value.id)
            key(cell_id)
        except ValueError as error:
            self.problems.append(Problem(where, str(error)))
            return
        faults = [*self.matrix.modes.mode_faults(cell_id), *self._unknown(declared.value, cell_id)]
        self.problems += [Problem(declared.where(field_name), message) for field_name, message in faults]
        canonical = str(self.matrix.modes.canonical(cell_id))
        if canonical in self.matrix.cells:
            first = self.matrix.cells[canonical].declared.where("id")
            self.problems.append(Problem(where, f"'{cell_id}' and the cell at {first} are both '{canonical}': remove one, or give one a variant (@name)"))
        elif faults or self._names_untyped(declared.value, cell_id):
            self.left_out.add(canonical)
        else:
            self.matrix.cells[canonical] = DeclaredCell(
                cell_id,
                declared,
                self.matrix.models[cell_id.model],
                self.matrix.hardware[cell_id.hardware],
                self.matrix.recipes[declared.value.recipe],
                framework=self.matrix.frameworks.get(declared.value.framework or ""),
            )

    def _names_untyped(self, cell: Cell, cell_id: CellId) -> bool:
        named = (("models", cell_id.model), ("hardware", cell_id.hardware), ("recipes", cell.recipe), ("frameworks", cell.framework or ""))
        return any(name in self.untyped.get(folder, ()) for folder, name in named) or not self.matrix.modes.slots

    def _unknown(self, cell: Cell, cell_id: CellId) -> Iterator[tuple[str, str]]:
        named: list[tuple[str, str, str, Mapping[str, Any]]] = [
            ("id", "models", cell_id.model, self.matrix.models),
            ("id", "hardware", cell_id.hardware, self.matrix.hardware),
            ("recipe", "recipes", cell.recipe, self.matrix.recipes),
        ]
        if cell.framework:
            named.append(("framework", "frameworks", cell.framework, self.matrix.frameworks))
        for at, folder, name, known in named:
            if name not in known and name not in self.untyped.get(folder, ()):
                yield at, f"{folder}/{name}.yaml is not declared{nearest(name, known)}"
        lists: tuple[tuple[str, list[str], tuple[str, ...]], ...] = (("tiers", cell.tiers, self.matrix.tiers), ("tags", cell.tags, self.matrix.tags))
        for field_name, names, vocabulary in lists:
            for name in names:
                if name not in vocabulary:
                    yield field_name, f"no {field_name[:-1]} '{name}'{nearest(name, vocabulary)}"
            if len(set(names)) < len(names):
                yield field_name, f"{field_name}: {', '.join(sorted({name for name in names if names.count(name) > 1}))} stands there twice: keep one"

    def quarantine(self, today: date) -> None:
        declared = self.file("quarantine.yaml", Quarantine)
        seen: set[str] = set()
        for index, entry in enumerate(declared.value.quarantined if declared else []):
            assert declared is not None
            at = ("quarantined", index)
            cell = self.matrix.cells.get(entry.cell)
            if entry.cell in self.left_out:
                continue
            if cell is None:
                self.problems.append(Problem(declared.where(*at, "cell"), f"no cell '{entry.cell}' is declared{nearest(entry.cell, self.matrix.cells)}"))
                continue
            if entry.cell in seen:
                self.problems.append(Problem(declared.where(*at, "cell"), f"'{entry.cell}' is quarantined twice: keep one entry"))
            if entry.expires < today:
                who = f"owner {entry.owner}, issue {entry.issue}"
                message = f"the quarantine of '{entry.cell}' expired on {entry.expires} ({who}): mend the cell, or renew it with a reason"
                self.problems.append(Problem(declared.where(*at, "expires"), message))
            seen.add(entry.cell)
            self.matrix.cells[entry.cell] = replace(cell, quarantined=entry)
