"""What a contributor says about runs whose files do not say it: a short YAML file, complete or refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from reports.errors import ReportError
from reports.model import Run

Text = Field(min_length=1)


class Claim(BaseModel):
    """Where curves come from. All of it is required but `url`, `notes`, and what the runs' own manifests say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Text  # project, file or folder
    commit: str = Text  # of the code that trained, or of the repository that holds the curves
    licence: str = Text  # under which the curves may be kept
    hardware: str = Text
    framework: str = Text  # with its version
    contributor: str = Text
    date: str = Text  # when the runs were made
    versions: dict[str, str] = {}
    url: str = ""
    notes: str = ""


def read_claim(path: Path) -> Claim:
    """Raises ReportError, with the line, for a file that is not whole."""
    from matrix.typed import typed
    from matrix.yaml_file import read_yaml

    if not path.is_file():
        raise ReportError(f"--provenance {path}: no such file")
    document = read_yaml(path)
    claim = typed(document, Claim)
    if document.problems or claim is None:
        raise ReportError(str(document.problems[0]) if document.problems else f"--provenance {path}: the file is empty")
    return claim


NEEDED = ("commit", "host", "versions")


def gaps(runs: Sequence[Run], claim: Claim | None) -> list[str]:
    """Why the provenance is not complete, one line a run; empty if it is."""
    if claim is not None:
        return []
    lines = []
    for run in runs:
        missing = [name for name in NEEDED if not run.manifest.get(name)]
        if missing:
            lines.append(
                f"{run.name}: its provenance is not complete: no {', '.join(missing)}; say where it comes from with --provenance FILE (docs/baselines.md)"
            )
    return lines
