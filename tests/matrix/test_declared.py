"""Every cell that the project's users named is declared, and says honestly how far it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from matrix.declarations import Modes
from matrix.editor_schema import KINDS, schema_of, write_schemas
from matrix.loader import ROOT, load
from matrix.outcome import Disposition
from matrix.prerequisites import caveats
from matrix.resolver import baseline_directory, resolve, science_hash
from matrix.yaml_file import read_yaml
from tests.matrix.test_cli import matrix as run_matrix

MATRIX = load(ROOT)

MISSION = [
    *(f"qwen3-4b.{hardware}.{mode}" for hardware in ("a2", "a3", "h100") for mode in ("non-colocate", "colocate", "non-colocate+tq")),
    *(f"qwen3-4b.{hardware}.non-colocate" for hardware in ("h200", "h800", "a100")),
    *(f"qwen3-4b.a3.non-colocate+{setting}" for setting in ("p2p", "delta", "disk", "opd", "async", "pd")),
    "qwen3-8b.a5.non-colocate",
    "qwen3-32b.a3.non-colocate",
    "qwen3-32b.a3.colocate",
    "qwen3-30b-a3b.a3.colocate",
    "qwen3-30b-a3b.a3.colocate+torch-dist",
    "qwen3-30b-a3b.a3.colocate+r3",
    "qwen3-30b-a3b.h200.colocate",
    "qwen3-vl-8b.a3.non-colocate",
    "qwen3-vl-30b-a3b.a3.non-colocate",
    "qwen3.5-27b.a3.non-colocate",
    "qwen3.5-35b-a3b.a3.non-colocate",
    "minimax-m2.5.a3.non-colocate",
    "glm-4.7-flash.a3.non-colocate",
    "glm-4.7-flash.a3.non-colocate+mtp+eager",
    "glm-4.7-flash.a3.non-colocate+mtp+graph",
    "glm-4.7-flash.a3.non-colocate+cp",
    "glm-4.7-flash.a3.colocate",
    "llama-3.a3.non-colocate",
    "llama-3.h100.non-colocate",
    *(f"{model}.{hardware}.non-colocate" for model in ("deepseek-v3", "deepseek-r1", "glm-5") for hardware in ("a3-superpod", "h200")),
    "glm-4.7.a3.non-colocate",
    "glm-4.7.h200.non-colocate",
    "moonlight-16b-a3b.a3.non-colocate",
    "moonlight-16b-a3b.h100.colocate",
    "qwen3-omni-30b-a3b.a3.non-colocate",
    "qwen3-omni-30b-a3b.a3.non-colocate+dspark",
]
CPU = [
    "qwen3-30b-a3b.cpu.colocate",
    "qwen3-30b-a3b.cpu.colocate+torch-dist",
    "glm-4.7-flash.cpu.non-colocate",
    "glm-4.7-flash.cpu.non-colocate+mtp+eager",
    "glm-4.7-flash.cpu.non-colocate+mtp+graph",
    "qwen3-vl-8b.cpu.non-colocate",
    "qwen3.5-35b-a3b.cpu.non-colocate",
    "minimax-m2.5.cpu.non-colocate",
    "qwen3-32b.cpu.non-colocate@tp2",
    "qwen3-32b.cpu.non-colocate@pp2",
    "llama-3.cpu.non-colocate",
]


@pytest.mark.parametrize("cell", MISSION)
def test_every_hardware_cell_of_the_mission_is_declared_with_both_kinds_of_evidence(cell: str):
    same = [other for other in MATRIX.cells.values() if str(other).split("@")[0] == cell]
    assert cell in MATRIX.cells
    assert {other.recipe.value.judge.evidence for other in same} == {"exactness", "convergence"}


@pytest.mark.parametrize("cell", CPU)
def test_every_cpu_cell_of_the_mission_is_declared(cell: str):
    assert cell in MATRIX.cells


def test_every_hardware_of_the_mission_is_declared():
    assert {"a2", "a3", "a3-superpod", "a5", "h100", "h200", "h800", "a100", "cpu"} <= set(MATRIX.hardware)
    facts = {name: (hardware.value.devices_per_node, hardware.value.device_memory_gib) for name, hardware in MATRIX.hardware.items()}
    assert (facts["a2"], facts["a3"]) == ((8, 64.0), (16, 64.0))
    assert MATRIX.hardware["a3"].value.buildkite.classes == [2, 4, 8, 16]


@pytest.mark.parametrize("name", sorted(name for name, hardware in MATRIX.hardware.items() if hardware.value.platform != "cpu"))
def test_an_accelerator_says_all_that_a_scheduler_and_a_doctor_need(name: str):
    hardware = MATRIX.hardware[name].value
    assert hardware.image.digest == "unbuilt" or hardware.image.digest.startswith("sha256:")
    wanted = {"npu": {"cann", "torch_npu", "vllm-ascend", "ascend-driver"}, "cuda": {"nvidia-driver"}}[hardware.platform]
    assert wanted | {"vllm", "megatron-core", "torch"} <= set(hardware.versions)
    assert hardware.unvalidated
    assert hardware.probe == {"npu": "npu-smi info", "cuda": "nvidia-smi"}[hardware.platform]


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("glm-4.7-flash.a3.colocate", "nobody has reported a colocated run"),
        ("qwen3-omni-30b-a3b.a3.non-colocate", "audio"),
        ("qwen3-omni-30b-a3b.a3.non-colocate+dspark", "DSpark"),
        ("qwen3.5-35b-a3b.a3.non-colocate", "operator stacks"),
    ],
)
def test_what_nobody_has_shown_is_unvalidated_with_its_reason(cell: str, reason: str):
    declared = MATRIX.cell(cell)
    assert reason in (declared.declared.value.unvalidated or "")
    assert declared.disposition is Disposition.EXPERIMENTAL
    assert any(text.startswith("unvalidated: ") for text in caveats(MATRIX, declared))


def test_models_have_ids_of_both_hubs():
    for model in MATRIX.models.values():
        assert model.value.hf_id.count("/") == 1
        assert (model.value.modelscope_id or "").count("/") == 1


def test_a_required_cell_has_a_baseline_and_a_cell_without_one_is_experimental():
    for cell in MATRIX.cells.values():
        if cell.declared.value.disposition == "required":
            assert baseline_directory(cell, MATRIX).is_dir(), cell


def test_the_reference_and_what_is_compared_with_it_learn_the_same():
    for model, npu, gpu in (("qwen3-4b", "a3", "h100"), ("qwen3-4b", "a2", "h100"), ("qwen3-32b", "a3", "h200"), ("glm-4.7-flash", "a3", "h200")):
        mode = "colocate" if model == "qwen3-32b" else "non-colocate"
        for suffix in ("", "@converge"):
            assert science_hash(f"{model}.{npu}.{mode}{suffix}", MATRIX) == science_hash(f"{model}.{gpu}.{mode}{suffix}", MATRIX)


def test_the_smoke_tier_is_what_a_laptop_runs():
    assert [str(cell) for cell in MATRIX.select(tier="smoke")] == ["qwen3-4b.cpu.colocate", "qwen3-4b.cpu.non-colocate"]


def test_the_numbers_of_the_smoke_forms():
    """As users of such systems have reported them."""
    four = resolve("qwen3-4b.a3.non-colocate", 100, MATRIX)
    assert (four["parallel"]["tensor"], four["rollout"]["tensor_parallel"], four["train"]["recompute"]) == (4, 4, "full")
    assert (four["train"]["steps"], four["rollout"]["prompts_per_step"], four["rollout"]["samples_per_prompt"]) == (3, 4, 4)
    assert (four["rollout"]["max_response_tokens"], four["train"]["max_tokens_per_microbatch"], four["train"]["lr"]) == (2048, 8192, 1e-6)
    glm = resolve("glm-4.7-flash.a3.non-colocate+mtp+graph", 100, MATRIX)
    assert (glm["parallel"]["expert"], glm["rollout"]["max_response_tokens"], glm["train"]["mtp"]["loss_weight"]) == (8, 128, 0.2)
    assert glm["vllm"]["cudagraph_capture_sizes"] == [1, 2, 4, 8]
    assert MATRIX.cell("qwen3.5-35b-a3b.a3.non-colocate").limits.wall_s == 360 * 60
    assert MATRIX.cell("qwen3-4b.a3.non-colocate").limits.wall_s == 180 * 60
    long = resolve("qwen3-30b-a3b.h200.colocate@converge", 100, MATRIX)
    assert (long["train"]["steps"], long["rollout"]["max_response_tokens"]) == (200, 20480)


# ---- schemas for editors ----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_editor_s_schema_accepts_what_is_declared(kind: str):
    schema = schema_of(kind)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    files = sorted(ROOT.glob(KINDS[kind][0]))
    for file in files:
        data = json.loads(json.dumps(read_yaml(file).data, default=str))
        assert [error.message for error in validator.iter_errors(data)] == [], file


def test_the_editor_s_schema_refuses_a_misspelt_key():
    data = read_yaml(ROOT / "modes.yaml").data
    assert not list(Draft202012Validator(schema_of("modes")).iter_errors(data))
    data["slots"][0]["requird"] = True
    assert list(Draft202012Validator(schema_of("modes")).iter_errors(data))
    assert "requird" not in Modes.model_fields


def test_schemas_are_written_with_the_editor_s_settings(tmp_path: Path):
    files = write_schemas(tmp_path / "editor")
    mapping = json.loads((tmp_path / "editor" / "settings.json").read_text())["yaml.schemas"]
    assert set(mapping.values()) == {f"matrix/{pattern}" for pattern, _ in KINDS.values()}
    assert all(Path(file).is_file() for file in mapping)
    assert len(files) == len(KINDS) + 1


def test_the_command_lists_the_files(tmp_path: Path):
    done = run_matrix("schema", str(tmp_path / "out"))
    assert done.returncode == 0
    assert "cells.schema.json" in done.stdout
