"""Another framework's run as the runner keeps it: a manifest.json whose `curves` names the file and format of what the framework wrote.

`curves: {"file": "stdout.log", "format": null, "metrics": {"critic/score": "rollout/reward_mean"}}`; a null format is recognised by content.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reports.errors import ReportError, UnreadableRun
from reports.model import Run
from reports.readers.base import Reading, Source
from reports.readers.json_text import json_value

MANIFEST = "manifest.json"


class ForeignRunReader:
    name = "foreign"
    priority = 5

    def sniff(self, source: Source) -> bool:
        return source.is_dir and bool(_curves(_object(source, MANIFEST)))

    def read(self, source: Source, how: Reading) -> list[Run]:
        from reports.readers import one_run, parse

        manifest = _object(source, MANIFEST)
        curves = _curves(manifest)
        if not curves:
            raise UnreadableRun(source.path, f"no {MANIFEST} in it that names the file of its curves")
        file = source.child(str(curves["file"]))
        if file is None:
            raise UnreadableRun(source.path, f"no {curves['file']} in it: the framework wrote none")
        names = {ours: theirs for theirs, ours in (curves.get("metrics") or {}).items()}
        try:
            run = one_run(parse(file, replace(how, format=curves.get("format"), names={**names, **how.names})), file.url)
        except UnreadableRun:
            raise
        except ReportError as error:  # a name that is not there, or several runs: what the runner declared does not fit what the framework wrote
            raise UnreadableRun(source.path, str(error)) from None
        return [replace(run, path=source.path, manifest={**run.manifest, **manifest}, runner=_object(source, "runner.json"))]


def _curves(manifest: dict[str, Any]) -> dict[str, Any]:
    curves = manifest.get("curves")
    return curves if isinstance(curves, dict) and isinstance(curves.get("file"), str) else {}


def _object(folder: Source, name: str) -> dict[str, Any]:
    source = folder.child(name)
    if source is None:
        return {}
    try:
        with source.open() as file:
            value = json_value(file.read().decode("utf-8-sig"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


READER = ForeignRunReader()
