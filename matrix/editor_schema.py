"""JSON Schemas of the declaration files, for editors that complete and check YAML while it is written. The loader says more (`python -m matrix check`)."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from matrix.affected import Selection
from matrix.declarations import Cells, Framework, Hardware, Model, Modes, Quarantine, Recipe, Tags, Tiers, VersionSets
from matrix.science import ScienceRules

# The kind of file -> the files it is for, as editors map them, and its model.
KINDS: dict[str, tuple[str, type[BaseModel]]] = {
    "model": ("models/*.yaml", Model),
    "hardware": ("hardware/*.yaml", Hardware),
    "recipe": ("recipes/*.yaml", Recipe),
    "framework": ("frameworks/*.yaml", Framework),
    "cells": ("cells/*.yaml", Cells),
    "modes": ("modes.yaml", Modes),
    "tiers": ("tiers.yaml", Tiers),
    "tags": ("tags.yaml", Tags),
    "versions": ("versions.yaml", VersionSets),
    "quarantine": ("quarantine.yaml", Quarantine),
    "science": ("science.yaml", ScienceRules),
    "selection": ("selection.yaml", Selection),
}


def schema_of(kind: str) -> dict[str, object]:
    """The JSON Schema (draft 2020-12) of one kind of file. Raises KeyError for a kind there is not."""
    pattern, model = KINDS[kind]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": f"for matrix/{pattern}", **model.model_json_schema()}


def write_schemas(out: Path) -> list[Path]:
    """Write `<kind>.schema.json` of every kind, and `settings.json` as VS Code's YAML extension reads it. Returns the files."""
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for kind in KINDS:
        file = out / f"{kind}.schema.json"
        file.write_text(json.dumps(schema_of(kind), indent=1) + "\n", encoding="utf-8")
        files.append(file)
    settings = out / "settings.json"
    settings.write_text(
        json.dumps({"yaml.schemas": {str(file.resolve()): f"matrix/{KINDS[kind][0]}" for kind, file in zip(KINDS, files, strict=True)}}, indent=1) + "\n"
    )
    return [*files, settings]
