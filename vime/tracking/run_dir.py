"""The run directory: the only thing a run leaves for others to read (docs/architecture.md gives its layout)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from vime.config.resolve import Resolved
from vime.errors import RunError, UserError

SCHEMA_VERSION = 1


class RunDir:
    """Writer of one run directory. Each record is one `write` of one whole line, so a kill can tear at most the last one; readers skip a torn last line."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._files: dict[str, int] = {}

    @classmethod
    def create(cls, path: Path, resolved: Resolved, manifest: Mapping[str, Any]) -> RunDir:
        """Start a run in a new or empty directory. Raises UserError if `path` already holds a run."""
        if (path / "manifest.json").exists():
            raise UserError(f"{path} already holds a run: continue it with --resume {path}, or choose another --out")
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path)
        run._prepare()
        write_yaml(path / "config.yaml", {"hash": resolved.hash, **resolved.as_dict()})
        run._write_json("manifest.json", {"schema_version": SCHEMA_VERSION, **manifest, "config_hash": resolved.hash, "attempts": []})
        return run

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """Go on with an existing run."""
        if not (path / "manifest.json").exists():
            raise UserError(f"{path} holds no run (no manifest.json)")
        run = cls(path)
        run._prepare()
        run._end_torn_lines()
        return run

    def _prepare(self) -> None:
        for name in ("samples", "checkpoints"):
            (self.path / name).mkdir(exist_ok=True)

    def manifest(self) -> dict[str, Any]:
        return json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))

    def begin_attempt(self, reason: str) -> None:
        """Add an attempt (`start`, or `resume from step N`) whose end is not known yet."""
        manifest = self.manifest()
        manifest["attempts"].append({"start": time.time(), "end": None, "reason": reason})
        self._write_json("manifest.json", manifest)
        self.event("start" if len(manifest["attempts"]) == 1 else "resume", reason=reason, pid=os.getpid())

    def end_attempt(self, reason: str) -> None:
        manifest = self.manifest()
        manifest["attempts"][-1].update(end=time.time(), reason=f"{manifest['attempts'][-1]['reason']}; {reason}")
        self._write_json("manifest.json", manifest)
        self.event("end", reason=reason)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one step's metrics; they are on their way to the disk when this returns."""
        self._append("metrics.jsonl", {"step": step, "time": time.time(), "metrics": {key: _number(value) for key, value in sorted(metrics.items())}})

    def event(self, kind: str, **fields: Any) -> None:
        self._append("events.jsonl", {"time": time.time(), "event": kind, **fields})

    def samples(self, step: int, records: Iterable[Mapping[str, Any]]) -> None:
        """A few decoded samples for a person to read: samples/step-000012.jsonl."""
        lines = "".join(json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in records)
        (self.path / "samples" / f"step-{step:06d}.jsonl").write_text(lines, encoding="utf-8")

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        if name not in self._files:
            self._files[name] = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        line = (json.dumps(record, default=str) + "\n").encode()
        try:
            if os.write(self._files[name], line) != len(line):
                raise OSError("only a part of the line could be written")
        except OSError as error:
            raise RunError("run directory", f"cannot write {self.path / name}: {error}: free some space, then --resume {self.path}") from None

    def _end_torn_lines(self) -> None:
        """A killed run may have left half a line; end it, so that the next record starts on its own."""
        for name in ("metrics.jsonl", "events.jsonl"):
            file = self.path / name
            if file.exists() and file.stat().st_size and not file.read_bytes().endswith(b"\n"):
                with file.open("ab") as out:
                    out.write(b"\n")

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(json.dumps(value, indent=1, default=str) + "\n", encoding="utf-8")
        temporary.replace(self.path / name)


def write_yaml(path: Path, value: Mapping[str, Any]) -> None:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    with path.open("w", encoding="utf-8") as out:
        yaml.dump(dict(value), out)


def _number(value: float | None) -> float | None:
    """A plain number for JSON. None, where there was nothing to measure, stays null and never becomes 0; NaN stays NaN."""
    return value if value is None or isinstance(value, int) else float(value)
