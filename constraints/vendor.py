"""Fetches the vendors' packages of every version set in matrix/versions.yaml, to be read, not installed.

`python constraints/vendor.py FOLDER [PACKAGE==VERSION …]`: a wheel where there is one for this Python and machine, else the source distribution, unpacked
without running any of it (`pip download` would run its setup).
Only Python files and metadata are kept. Files are checked against the index's SHA-256. Prints one line a package: its folder.
"""

from __future__ import annotations

import hashlib
import html
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

from ruamel.yaml import YAML

WANTED = ("torch_npu", "vllm", "vllm-ascend", "megatron-core")
SOURCE_ONLY = ("vllm", "vllm-ascend")  # vllm's wheels weigh a gigabyte, and the sources are the same
VERSIONS = Path(__file__).parents[1] / "matrix" / "versions.yaml"


def main(folder: Path, chosen: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for package, version in [named(entry) for entry in chosen] or wanted():
        place = folder / f"{package}-{version}"
        try:
            if not place.is_dir():
                fetch(package, version, place)
        except OSError as error:  # the index's answers too: urllib's errors are of this kind
            sys.exit(f"{package} {version}: could not be fetched ({error}): check pip's index (pip config list)")
        print(place, flush=True)


def named(entry: str) -> tuple[str, str]:
    package, _, version = entry.partition("==")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", package) or not re.fullmatch(r"[0-9][\w.!+-]*", version):
        sys.exit(f"{entry!r}: give PACKAGE==VERSION")
    return package, version


def wanted() -> list[tuple[str, str]]:
    """Packages and versions of all sets that name one."""
    sets = YAML(typ="safe").load(VERSIONS.read_text())["version_sets"]
    pairs = {(package, str(entry["versions"][package])) for entry in sets for package in WANTED if package in entry["versions"]}
    return sorted(pair for pair in pairs if pair[1] != "unpinned")


def fetch(package: str, version: str, place: Path) -> None:
    """Unpack one package into `place`, which appears whole or not at all."""
    url, digest = link(package, version)
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        archive, unpacked = Path(scratch) / "archive", Path(scratch) / "unpacked"
        with urllib.request.urlopen(url, timeout=120) as source, archive.open("wb") as target:
            shutil.copyfileobj(source, target)
        if hashlib.sha256(archive.read_bytes()).hexdigest() != digest:
            sys.exit(f"{package} {version}: what came is not what the index announces (SHA-256 differs)")
        unpack(archive, unpacked, urllib.parse.urlsplit(url).path.endswith(".whl"))
        unpacked.rename(place)


def unpack(archive: Path, place: Path, wheel: bool) -> None:
    place.mkdir()
    if wheel:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(place, [name for name in packed.namelist() if kept(name)])
        return
    with tarfile.open(archive) as packed:
        packed.extractall(place, [member for member in packed if member.isfile() and kept(member.name)], filter="data")


def kept(name: str) -> bool:
    return name.endswith((".py", "/METADATA", "/PKG-INFO"))


def link(package: str, version: str) -> tuple[str, str]:
    """(URL, SHA-256) of the file to read."""
    page = urllib.parse.urljoin(index() + "/", re.sub(r"[-_.]+", "-", package).lower() + "/")
    with urllib.request.urlopen(page, timeout=60) as answer:
        links = [urllib.parse.urljoin(page, html.unescape(found)) for found in re.findall(r'href="([^"]+)"', answer.read().decode())]
    stem = re.compile(rf"{re.sub('[-_.]+', '[-_.]', package)}-{re.escape(version)}[-.]", re.IGNORECASE)
    files = {urllib.parse.urlsplit(found).path.rpartition("/")[2]: found for found in links}
    ours = [name for name in files if stem.match(name)]
    wheels = [name for name in ours if name.endswith(".whl") and ("-py3-none-any" in name or (f"cp3{sys.version_info[1]}-" in name and "x86_64" in name))]
    sources = [name for name in ours if name.endswith(".tar.gz")]
    found = (sources or wheels) if package in SOURCE_ONLY else (wheels or sources)
    if not found:
        sys.exit(f"{package} {version}: the package index has neither a wheel nor a source distribution of it")
    url, _, digest = files[found[0]].partition("#sha256=")
    return url, digest


def index() -> str:
    """The package index that pip uses."""
    configured = (
        os.environ.get("PIP_INDEX_URL")
        or subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False).stdout.strip()
    )
    if configured:
        return configured.rstrip("/")
    from pip._internal.models.index import PyPI

    return PyPI.simple_url.rstrip("/")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
