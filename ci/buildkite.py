"""The commands of `buildkite-agent` that steps of ours use; on one machine the stand-in of `ci/local` answers to the same name."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ci.settings import Settings

if TYPE_CHECKING:
    from ci.pipeline import Pipeline

AGENT = "buildkite-agent"


class AgentError(Exception):
    """`buildkite-agent` is missing or refused something; the message has its words."""

    exit_code = 3


def call(*arguments: str, text: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Raises AgentError when the command is not there, or fails and `check` is set."""
    try:
        done = subprocess.run([AGENT, *arguments], input=text, capture_output=True, text=True, timeout=600, check=False)
    except FileNotFoundError:
        raise AgentError(f"{AGENT} is not on PATH: this command runs inside a step, of Buildkite or of `python -m ci run`") from None
    if check and done.returncode:
        raise AgentError(f"{AGENT} {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip() or f'exit {done.returncode}'}")
    return done


def set_meta(key: str, value: str) -> None:
    call("meta-data", "set", key, value)


def get_meta(key: str) -> str | None:
    """None where it was never set."""
    done = call("meta-data", "get", key, check=False)
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def meta_keys(prefix: str) -> list[str]:
    return [key for key in call("meta-data", "keys").stdout.split() if key.startswith(prefix)]


IMAGE = "image:"  # + name: the digest of an image that this build pushed


def images() -> dict[str, str]:
    """Digests by name of the images that this build has built."""
    return {key.removeprefix(IMAGE): get_meta(key) or "" for key in meta_keys(IMAGE)}


def annotate(markdown: str, style: str, context: str) -> None:
    call("annotate", "--style", style, "--context", context, text=markdown)


def send(path: str) -> None:
    """Upload artifacts of a glob."""
    call("artifact", "upload", path)


def fetch(pattern: str, into: str = ".") -> bool:
    """Download artifacts of a glob; False where there is none."""
    return call("artifact", "download", pattern, into, check=False).returncode == 0


def outcome(step: str) -> str | None:
    """`passed`, `soft_failed`, `hard_failed`, `errored`; None for a step that the build does not have."""
    done = call("step", "get", "outcome", "--step", step, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def upload(pipeline: Pipeline, settings: Settings, known: set[str] | None = None) -> int:
    """Upload a pipeline in parts. A part whose first step is in the build already was uploaded before (this job was retried): it is left alone. Returns the
    number of parts that were uploaded now."""
    from ci.pipeline import finish, keys_of

    sent = 0
    for part in finish(pipeline, settings, known or ()):
        keys = keys_of(part)
        if keys and call("step", "get", "key", "--step", keys[0], check=False).returncode == 0:
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "pipeline.json"
            file.write_text(json.dumps(part, indent=1), encoding="utf-8")
            call("pipeline", "upload", str(file))
        sent += 1
    return sent
