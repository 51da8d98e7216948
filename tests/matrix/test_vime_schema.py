"""What the matrix knows of vime and the libraries is what they are."""

from __future__ import annotations

import json
from pathlib import Path

from matrix.loader import ROOT, load
from matrix.vime_schema import VimeSchema

SCHEMA = ROOT / "schema" / "vime-config.schema.json"


def test_the_committed_schema_is_vime_s():
    from vime.config.resolve import schema

    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(schema())), "write it anew: make schema"


def test_its_defaults_are_vime_s():
    import dataclasses

    from vime.config.tree import Config, DataConfig, ModelConfig

    config = json.loads(json.dumps(dataclasses.asdict(Config(model=ModelConfig(path="x"), data=DataConfig()))))
    defaults = VimeSchema(SCHEMA).defaults
    assert len(defaults) > 80
    for key, default in defaults.items():
        value = config
        for part in key:
            value = value[part]
        assert value == default, key


def test_every_leaf_of_vime_is_decided_about():
    matrix = load()
    assert matrix.science.undecided(key for key, _ in matrix.vime.leaves()) == []


def test_unknown_keys_are_found_at_any_depth(tmp_path: Path):
    schema = VimeSchema(SCHEMA)
    values = {"trian": {"lr": 1}, "train": {"Ir": 1, "lr": 1}, "vllm": {"anything": 1}, "data": {"task_args": {"anything": 1}}}
    assert [key for key, _ in schema.unknown_keys(values)] == [("trian",), ("train", "Ir")]
