"""One tested-together set of versions (a `version_sets:` entry of a YAML file, such as matrix/versions.yaml) against what a machine has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from vime.doctor import Check
from vime.errors import UserError
from vime.machine import Machine, normal

UNPINNED = "unpinned"
RANGE = tuple("<>=!~")
OUTSIDE = {"cann", "ascend-driver", "ascend-firmware", "nvidia-driver"}  # not Python distributions


def read(path: Path, name: str) -> dict[str, str]:
    """The versions of set `name` in `path`. Raises UserError naming the sets there are."""
    from ruamel.yaml import YAML, YAMLError

    try:
        loaded = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
        sets = {str(entry["name"]): entry["versions"] for entry in loaded["version_sets"]}
    except OSError as error:
        raise UserError(f"--versions {path}: {error.strerror}") from None
    except (YAMLError, TypeError, KeyError, UnicodeDecodeError) as error:
        raise UserError(f"--versions {path}: no list `version_sets` of entries with name and versions ({str(error).splitlines()[0]})") from None
    if name not in sets:
        raise UserError(f"--set {name}: {path} has {', '.join(sets)}")
    if not isinstance(sets[name], Mapping):
        raise UserError(f"--versions {path}: versions of set {name} are {sets[name]!r}: give package: version, one for each")
    for package, version in sets[name].items():
        if not isinstance(version, str):
            raise UserError(f"--versions {path}: {package}: {version} of set {name} is a number to YAML, which drops zeros at its end: put it in quotes")
    return {str(package): version for package, version in sets[name].items()}


def compare(wanted: Mapping[str, str], facts: Machine, outside: Mapping[str, str], only: frozenset[str]) -> Iterator[Check]:
    """A line for each package of the set. `outside`: versions of what is no Python package (`cann`, drivers), where they could be found out.

    A package that is absent is another check's business; here it is missing too, as the set is not there without it.
    """
    for package, version in wanted.items():
        have = outside.get(package) if package in OUTSIDE else facts.packages.get(normal(package))
        name = f"{package} {version}" if version != UNPINNED else package
        if version == UNPINNED:
            yield Check(name, "note" if have is None else "ok", have or "not found", only, "" if have else "needed; nobody has recorded which version")
        elif have is None:
            yield Check(name, "missing", "not found", only, f"install {package} {version}")
        else:
            right = same(have, version)
            yield Check(name, "ok" if right else "missing", have, only, "" if right else f"the tested set has {version}: install that one")


def same(have: str, wanted: str) -> bool:
    """Equal but for the local part (`+cpu`), or within a range (`>=25.2,<26`); texts that are no versions are compared as such."""
    try:
        left = Version(have)
        return SpecifierSet(wanted).contains(left, prereleases=True) if wanted[:1] in RANGE else left.public == Version(wanted).public
    except (InvalidVersion, InvalidSpecifier):
        return have == wanted


def outside_versions(facts: Machine, platforms: Mapping[str, Any]) -> dict[str, str]:
    """Versions of drivers and toolkits: from the vendors' tools (`facts`), then from their version files (`platforms[…].versions()`)."""
    found = {name: version for platform in platforms.values() for name, version in platform.versions().items()}
    if facts.npu.driver:
        found["ascend-driver"] = facts.npu.driver
    return found
