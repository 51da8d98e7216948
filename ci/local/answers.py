"""What steps ask of `buildkite-agent`, answered out of a local build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ci.local.graph import Graph
from ci.local.interpolate import interpolated
from ci.local.steps import DONE, Refused, Step
from ci.local.store import Store
from ci.validate import PipelineError

Reply = dict[str, Any]


class Answers:
    def __init__(self, graph: Graph, store: Store):
        self.graph, self.store = graph, store

    def answer(self, request: dict[str, Any], asker: Step | None) -> Reply:
        """The reply to one command of the step `asker`; a mistake is the command's error, and the build goes on."""
        command = request["command"]
        try:
            return self._do(command, request["arguments"], request["options"], request, asker)
        except (PipelineError, Refused, ValueError, OSError) as error:
            return {"exit": 1, "error": f"{command}: {error}"}
        except IndexError:
            return {"exit": 1, "error": f"{command}: an argument is missing"}

    def _do(self, command: str, arguments: list[str], options: dict[str, str], request: dict[str, Any], asker: Step | None) -> Reply:
        cwd, store = Path(request["cwd"]), self.store
        if command == "annotate":
            store.annotate(options.get("context", "default"), options.get("style", "default"), request["text"], "append" in options)
        elif command == "artifact upload":
            if not store.send(arguments[0], cwd):
                return {"exit": 1, "error": f"no file matches {arguments[0]}"}
        elif command == "artifact download":
            if not store.fetch(arguments[0], cwd / (arguments[1] if len(arguments) > 1 else ".")):
                return {"exit": 1, "error": f"no artifact matches {arguments[0]}"}
        elif command == "meta-data set":
            store.set(arguments[0], arguments[1])
        elif command in ("meta-data get", "meta-data exists"):
            return self._meta(command, arguments[0], options.get("default"))
        elif command == "meta-data keys":
            return {"out": "\n".join(store.meta)}
        elif command == "pipeline upload":
            self._upload(request, asker)
        else:
            return self._step(arguments[0], options.get("step", ""))
        return {}

    def _meta(self, command: str, key: str, default: str | None) -> Reply:
        found = self.store.meta.get(key, default)
        if found is None:
            return {"exit": 100, "error": "" if command.endswith("exists") else f"no meta-data {key}"}
        return {} if command.endswith("exists") else {"out": found}

    def _upload(self, request: dict[str, Any], asker: Step | None) -> None:
        import yaml

        told = yaml.safe_load(request["text"])
        if not isinstance(told, dict):
            raise PipelineError("no pipeline: a mapping with steps is wanted")
        pipeline = told if "no-interpolation" in request["options"] else interpolated(told, request["environment"])
        self.graph.add(pipeline, after=asker)
        number = len(list(self.store.folder.glob("upload-*.json"))) + 1
        (self.store.folder / f"upload-{number:03d}.json").write_text(json.dumps(pipeline, indent=1) + "\n")

    def _step(self, attribute: str, key: str) -> Reply:
        step = self.graph.find(key)
        if step is None:
            return {"exit": 1, "error": f"no step has the key {key}"}
        values = {"key": step.key or "", "label": str(step.told.get("label", "")), "state": "finished" if step.state in DONE else str(step.state)}
        values["outcome"] = str(step.state) if step.state in DONE else ""
        return {"out": values[attribute]} if attribute in values else {"exit": 1, "error": f"no attribute {attribute} here"}
