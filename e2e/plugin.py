"""The pytest plugin: `pytest -m cpu_e2e` collects the matrix's cells, one item each. In any other invocation it adds a few options and does nothing.

Cells are collected from matrix/cells/*.yaml, and only when asked for: by a marker (`-m cpu_e2e`, `gpu_e2e`, `npu_e2e`), by an option of the group below, or by
naming such a file. The set collected must equal the set declared for the question; a set cut down by -k or a path is an error, because a cell that silently did
not run looks like one that passed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.markers import MARKERS, mistyped_markers, wanted_markers

if TYPE_CHECKING:
    from e2e.selection import Selection

HYPOTHESIS = "hypothesispytest"


def pytest_addoption(parser: pytest.Parser) -> None:
    title = (
        "cells of the matrix (-m cpu_e2e, gpu_e2e, npu_e2e). Write paths outside the checkout as --results=DIR: pytest takes '--results DIR' for a test path"
    )
    group = parser.getgroup("vime cells", title)
    group.addoption("--cell", action="append", default=[], metavar="ID", help="only this cell; a pattern such as 'qwen3-4b.*' is allowed; may be repeated")
    tier = "only cells of this tier (default: the first that has cells on hardware that is here, all when none is here, any when --cell names cells)"
    group.addoption("--tier", default=None, metavar="TIER", help=tier)
    group.addoption(
        "--seeds", default=None, metavar="K,L", help="these seeds and no others, e.g. 100 or 100-102 (default: the recipe's, more while the verdict asks)"
    )
    group.addoption("--results", default="results", metavar="ROOT", help="where run directories and verdicts go (default: results)")
    group.addoption("--report", default="report", metavar="DIR", help="where the HTML report goes (default: report)")
    group.addoption("--rerun", action="store_true", help="run again what has finished already")
    group.addoption("--no-judge", action="store_true", help="make the runs, do not judge them (one agent's part of a fan-out)")
    group.addoption("--judge-only", action="store_true", help="judge the runs that lie in the results root, run nothing")
    group.addoption("--list-cells", action="store_true", help="print the cells that would run, one a line, and stop")
    group.addoption("--plan", action="store_true", help="print what would run here, with devices, seeds and minutes, and stop")
    group.addoption("--leases", default=None, metavar="DIR", help="where the locks of this machine's devices lie; all who share the devices name one place")
    group.addoption(
        "--train-command", default=None, metavar="CMD", help="the command that makes a run; '<config> --out <run>' is added (default: this Python's vime train)"
    )
    group.addoption("--matrix", default=None, metavar="DIR", help="another declaration tree than this checkout's matrix/")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if not config.getoption("--list-cells") and not config.getoption("--plan"):
        return None
    selection = _selection(config)
    assert selection is not None
    if config.getoption("--list-cells"):
        print(*selection.cells, sep="\n")
        return 0
    from e2e.preview import lines, previews

    print(*lines(previews(selection.matrix, selection.cells, selection.options)), sep="\n")
    return 0


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    registered = _registered(config)
    for marker, meaning in MARKERS.items():
        if marker not in registered:
            config.addinivalue_line("markers", f"{marker}: {meaning}")
    selection = _selection(config)
    if selection is not None:
        from e2e.session import CellSession

        config.pluginmanager.register(CellSession(config, selection), "vime-cells")
        config.pluginmanager.set_blocked(HYPOTHESIS)  # its summary imports all of hypothesis, a second or two, for cells that hold none of it


def _selection(config: pytest.Config) -> Selection | None:
    """The cells this invocation asks for, or None; then nothing of the matrix is even imported."""
    expression = config.getoption("-m") or ""
    if message := mistyped_markers(expression, _registered(config) | MARKERS.keys()):
        raise pytest.UsageError(message)
    markers, named = wanted_markers(expression), _named_files(config)
    if not markers and not named and not _asked_by_option(config):
        return None
    selection = _load_selection(config, markers)
    if not named and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = [str(path) for path in sorted((selection.matrix.root / "cells").glob("*.yaml"))]
    return selection


def _registered(config: pytest.Config) -> set[str]:
    return {line.partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}


def _asked_by_option(config: pytest.Config) -> bool:
    return any(config.getoption(name) for name in ("--cell", "--tier", "--list-cells", "--plan", "--judge-only"))


def _named_files(config: pytest.Config) -> list[Path]:
    paths = [(config.invocation_params.dir / str(argument).partition("::")[0]) for argument in config.args]
    return [path for path in paths if path.suffix == ".yaml" and path.parent.name == "cells"]


def _load_selection(config: pytest.Config, markers: frozenset[str]) -> Selection:
    from e2e.leases import LeaseError
    from e2e.selection import Selection, check_candidates, select, select_default
    from matrix.loader import load
    from matrix.problem import MatrixError, SelectionError

    root, names, tier = config.getoption("--matrix"), config.getoption("--cell"), config.getoption("--tier")
    try:
        matrix = load(Path(root).resolve() if root else None)
        cells = select(matrix, markers, tier, names) if names or tier else select_default(matrix, markers)
        options = _options(config)
        if options.judge:
            check_candidates(cells, options.seeds)
        return Selection(matrix, cells, options)
    except (MatrixError, SelectionError, LeaseError, ValueError) as error:
        raise pytest.UsageError(str(error)) from None


def _options(config: pytest.Config) -> Any:
    import shlex

    from e2e.cell_run import Options
    from e2e.run_plan import TRAIN
    from e2e.selection import seeds_of

    if config.getoption("--no-judge") and config.getoption("--judge-only"):
        raise ValueError("--no-judge and --judge-only together leave nothing to do: give one of them")
    seeds, command, leases = config.getoption("--seeds"), config.getoption("--train-command"), config.getoption("--leases")
    return Options(
        root=(config.invocation_params.dir / config.getoption("--results")).resolve(),
        seeds=seeds_of(seeds) if seeds is not None else (),
        rerun=config.getoption("--rerun"),
        judge=not config.getoption("--no-judge"),
        judge_only=config.getoption("--judge-only"),
        command=tuple(shlex.split(command)) if command else TRAIN,
        lease_directory=(config.invocation_params.dir / leases).resolve() if leases else None,
    )
