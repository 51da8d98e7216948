"""The run directory: the only thing a run leaves for others to read (docs/architecture.md gives its layout)."""

from __future__ import annotations

import fcntl
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
COMPLETED = "completed"  # how the reason of an attempt that came to the planned end ends


class RunDir:
    """Writer of one run directory. Each record is one `write` of one whole line, so a kill can tear at most the last one; readers skip a torn last line."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._files: dict[str, int] = {}

    @classmethod
    def create(cls, path: Path, resolved: Resolved, manifest: Mapping[str, Any]) -> RunDir:
        """Start a run in a new or empty directory. Raises UserError if `path` already holds a run or cannot be written."""
        if (path / "manifest.json").exists():
            raise UserError(f"{path} already holds a run: continue it with --resume {path}, or choose another --out")
        run = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            run._prepare()
        except OSError as error:
            raise UserError(f"run directory {path}: cannot be written: {error.strerror}: choose another with --out") from None
        write_yaml(path / "config.yaml", {"hash": resolved.hash, **resolved.as_dict()})
        run._write_json("manifest.json", {"schema_version": SCHEMA_VERSION, **manifest, "config_hash": resolved.hash, "attempts": []})
        return run

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """Go on with an existing run. Raises UserError for a directory that holds none, or one that another process is writing."""
        if not (path / "manifest.json").is_file():
            lack = "holds no run (no manifest.json)" if path.is_dir() else "no such directory"
            raise UserError(f"--resume {path}: {lack}: name the directory that a run was written to")
        run = cls(path)
        run.manifest()
        try:
            run._prepare()
        except OSError as error:
            raise UserError(f"--resume {path}: cannot be written: {error.strerror}") from None
        run._end_torn_lines()
        return run

    def _prepare(self) -> None:
        for name in ("samples", "checkpoints"):
            (self.path / name).mkdir(exist_ok=True)
        self._lock()

    def _lock(self) -> None:
        """One writer at a time; the kernel gives the lock back however the process ends."""
        descriptor = os.open(self.path / ".lock", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(f"run directory {self.path}: another vime process is writing it: wait for its end, or end it") from None
        self._files[".lock"] = descriptor

    def manifest(self) -> dict[str, Any]:
        """manifest.json. Raises UserError when it is none."""
        file = self.path / "manifest.json"
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
            return {**manifest, "config_hash": str(manifest["config_hash"]), "attempts": list(manifest["attempts"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file}: not the manifest of a run ({type(error).__name__}: {error}): bring it back, or start a new run") from None

    @property
    def finished(self) -> bool:
        """Whether the last attempt came to the planned end."""
        attempts = self.manifest()["attempts"]
        return bool(attempts) and str(attempts[-1]["reason"]).endswith(f"; {COMPLETED}")

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
        file = self.path / "samples" / f"step-{step:06d}.jsonl"
        try:
            file.write_text(lines, encoding="utf-8")
        except OSError as error:
            raise self._unwritable(file, error) from None

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        if name not in self._files:
            self._files[name] = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        line, size = (json.dumps(record, default=str) + "\n").encode(), os.fstat(self._files[name]).st_size
        try:
            if os.write(self._files[name], line) != len(line):
                os.ftruncate(self._files[name], size)
                raise OSError("only a part of the line could be written")
        except OSError as error:
            raise self._unwritable(self.path / name, error) from None

    def _unwritable(self, file: Path, error: OSError) -> RunError:
        return RunError("run directory", f"cannot write {file}: {error}: free some space, then --resume {self.path}")

    def _end_torn_lines(self) -> None:
        """A killed run may have left half a line; end it, so that the next record starts on its own."""
        for name in ("metrics.jsonl", "events.jsonl"):
            file = self.path / name
            if file.exists() and file.stat().st_size and not file.read_bytes().endswith(b"\n"):
                with file.open("ab") as out:
                    out.write(b"\n")

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        temporary = self.path / f".{name}.tmp"
        try:
            temporary.write_text(json.dumps(value, indent=1, default=str) + "\n", encoding="utf-8")
            temporary.replace(self.path / name)
        except OSError as error:
            raise self._unwritable(self.path / name, error) from None


def write_yaml(path: Path, value: Mapping[str, Any]) -> None:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    with path.open("w", encoding="utf-8") as out:
        yaml.dump(dict(value), out)


def _number(value: float | None) -> float | None:
    """A plain number for JSON. None, where there was nothing to measure, stays null and never becomes 0; NaN stays NaN."""
    return value if value is None or isinstance(value, int) else float(value)
