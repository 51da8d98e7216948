"""Adapters: the right one, the options vime owns, and both generations held to their packages."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

import vime.rollout.engine
from vime.errors import UserError
from vime.rollout.vllm_compat import GENERATIONS, adapter_for, contracts, installed_version
from vime.rollout.vllm_compat.base import OWNED, EngineSpec, VllmAdapter, check_options
from vime.rollout.vllm_compat.llm_engine import engine_arguments

SPEC = EngineSpec("/models/x", "bfloat16", 64, 32, options={"max-num-seqs": 8, "gpu_memory_utilization": 0.5})


def package_root() -> Path:
    """The folder that holds the installed `vllm/`, without importing it."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.parent


@pytest.mark.parametrize(("version", "generation"), [("0.32.0", "0.32"), ("0.32.1+cpu", "0.32"), ("0.23.0.post1", "0.23"), ("0.22.1", "0.23")])
def test_the_adapter_goes_by_generation(version: str, generation: str) -> None:
    adapter = adapter_for(version)
    assert adapter.generation == generation
    public = [name for name in vars(VllmAdapter) if not name.startswith("_") and name != "generation"]
    assert [name for name in public if not callable(getattr(adapter, name, None))] == []


@pytest.mark.parametrize("version", ["0.33.0", "0.3.2", "1.0", "unknown"])
def test_another_generation_is_refused_with_the_ones_there_are(version: str) -> None:
    with pytest.raises(UserError, match=rf"vllm {version}: vime has adapters for 0.32.x, 0.23.x, 0.22.x. Install one of these"):
        adapter_for(version)


def test_the_installed_vllm_has_an_adapter() -> None:
    assert adapter_for(installed_version()).generation == "0.32"
    assert "vllm" in packages_distributions()


def test_the_vllm_block_passes_through_in_either_spelling() -> None:
    arguments = engine_arguments(SPEC, "x.Extension")
    assert arguments["max_num_seqs"] == 8
    assert arguments["gpu_memory_utilization"] == 0.5
    assert arguments["logprobs_mode"] == "processed_logprobs"
    assert arguments["load_format"] == "auto"


@pytest.mark.parametrize("key", sorted(OWNED))
def test_a_key_that_vime_owns_is_refused_with_the_reason(key: str) -> None:
    spelled = key.replace("_", "-")
    with pytest.raises(UserError) as failure:
        check_options({spelled: 1})
    assert str(failure.value) == f"vllm.{spelled}: cannot be set: {OWNED[key]}. Remove it."


def test_every_owned_key_and_default_is_an_option_of_both_generations() -> None:
    live = contracts.extract(package_root())
    for catalogue in (live, contracts.load("0.23")):
        fields = set(catalogue["vllm.engine.arg_utils.EngineArgs"]["fields"])
        assert set(engine_arguments(SPEC, "x")) <= fields
        assert set(OWNED) - fields == set()


def test_the_installed_generation_fits_its_adapter() -> None:
    assert contracts.violations("0.32", contracts.extract(package_root())) == []


def test_the_other_generation_fits_its_adapter_statically() -> None:
    assert contracts.violations("0.23", contracts.load("0.23")) == []


def test_the_contract_tells_the_generations_apart() -> None:
    """A check that passes whatever it is given checks nothing."""
    crossed = contracts.violations("0.32", contracts.load("0.23"))
    assert any("no method start_draft_weight_update" in problem for problem in crossed)
    assert any("does not implement trainer_send_weights" in problem for problem in crossed)
    assert any("receive_weights takes ['update_info'], vLLM passes ['update_info', 'load_weights']" in problem for problem in crossed)
    back = contracts.violations("0.23", contracts.extract(package_root()))
    assert any("start_weight_update has no argument is_checkpoint_format" in problem for problem in back)
    assert any("does not implement finish_weight_update" in problem for problem in back)


@pytest.mark.parametrize(
    ("symbol", "change", "problem"),
    [
        (
            "vllm.v1.engine.llm_engine.LLMEngine",
            ("methods", "add_request", {"args": ["request_id", "prompt"], "required": 2}),
            "takes 2 positional arguments, 3 are given",
        ),
        ("vllm.v1.engine.llm_engine.LLMEngine", ("methods", "reset_prefix_cache", {"args": [], "required": 0}), "has no argument reset_running_requests"),
        ("vllm.v1.engine.llm_engine.LLMEngine", ("methods", "step", None), "has no method step"),
        ("vllm.outputs.CompletionOutput", ("fields", "token_ids", None), "CompletionOutput has no token_ids"),
        ("vllm.sampling_params.SamplingParams", ("fields", "flat_logprobs", None), "SamplingParams has no argument flat_logprobs"),
        ("vllm.v1.worker.gpu_worker.Worker", ("methods", "update_weights", None), "the worker has no method update_weights"),
    ],
)
def test_a_change_in_the_package_is_seen(symbol: str, change: tuple, problem: str) -> None:
    catalogue = json.loads(json.dumps(contracts.load("0.23")))
    kind, name, new = change
    members = catalogue[symbol][kind]
    if isinstance(members, dict):
        members.pop(name)
        if new is not None:
            members[name] = new
    else:
        members.remove(name)
    assert any(problem in found for found in contracts.violations("0.23", catalogue))


def test_extraction_from_a_wheel_equals_extraction_from_its_folder(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0.wheel.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for entry in contracts.MODULES:
            path = entry.partition(":")[0]
            archive.writestr(path, (package_root() / path).read_text())
    output = tmp_path / "catalogue.json"
    subprocess.run([sys.executable, "-m", "vime.rollout.vllm_compat.contracts", "extract", str(wheel), "-o", str(output)], check=True, timeout=60)
    assert json.loads(output.read_text()) == contracts.extract(package_root())


def test_worker_methods_that_the_engine_calls_by_name_exist() -> None:
    folder = Path(contracts.__file__).parent
    sources = {file.name: file.read_text() for file in folder.glob("*.py")} | {"engine.py": Path(vime.rollout.engine.__file__).read_text()}
    called = {
        node.args[0].value
        for text in sources.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "call_workers" and isinstance(node.args[0], ast.Constant)
    }
    defined = {
        node.name for text in sources.values() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name.startswith("vime_")
    }
    assert called <= defined
    assert "vime_connect" in called


def test_only_the_adapters_touch_vllms_internals() -> None:
    """`platforms` may: it mends the CPU build."""
    root = Path(vime.rollout.engine.__file__).parents[1]
    users = set()
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "vllm" for name in names):
                users.add(file.relative_to(root).as_posix())
    assert {path for path in users if not path.startswith(("rollout/vllm_compat/", "platforms/"))} == set()
    assert set(GENERATIONS) == {"0.32", "0.23", "0.22"}
