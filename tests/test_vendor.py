"""constraints/vendor.py, which fetches the vendors' packages to be read: against an index of our own, and against none."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "constraints" / "vendor.py"


def fetch(folder: Path, *chosen: str, index: str = "http://127.0.0.1:9/simple") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PIP_INDEX_URL": index, "no_proxy": "127.0.0.1"}
    return subprocess.run([sys.executable, str(SCRIPT), str(folder), *chosen], capture_output=True, text=True, env=environment, timeout=60, check=False)


def archive() -> bytes:
    """A source distribution with a module, metadata and something large."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as packed:
        for name, text in {"toy-1.0/toy.py": "x = 1\n", "toy-1.0/PKG-INFO": "Name: toy\nVersion: 1.0\n", "toy-1.0/big.bin": "0" * 100}.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


@contextmanager
def index(digest: str | None = None) -> Iterator[str]:
    body = archive()
    digest = digest or hashlib.sha256(body).hexdigest()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path in ("/simple/toy/", "/files/toy-1.0.tar.gz")
            self.send_response(200 if known else 404)
            self.end_headers()
            if known:
                self.wfile.write(body if self.path.startswith("/files") else f'<a href="../../files/toy-1.0.tar.gz#sha256={digest}">toy</a>'.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


def test_python_files_and_metadata_are_kept(tmp_path: Path) -> None:
    with index() as url:
        done = fetch(tmp_path, "toy==1.0", index=url)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "toy-1.0").rglob("*") if path.is_file()) == ["PKG-INFO", "toy.py"]


def test_what_is_not_what_the_index_announces_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    with index("0" * 64) as url:
        done = fetch(tmp_path, "toy==1.0", index=url)
        absent = fetch(tmp_path, "toy==2.0", index=url)
    assert (done.returncode, absent.returncode) == (1, 1)
    assert "SHA-256 differs" in done.stderr
    assert "has neither a wheel nor a source distribution" in absent.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("entry", "says"), [("toy", "'toy': give PACKAGE==VERSION"), ("toy==", "give PACKAGE==VERSION"), ("../x==1", "give PACKAGE==VERSION")])
def test_a_package_is_named_with_its_version(entry: str, says: str, tmp_path: Path) -> None:
    done = fetch(tmp_path, entry)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_an_index_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    done = fetch(tmp_path, "toy==1.0")
    assert done.stderr.startswith("toy 1.0: could not be fetched (")
    assert len(done.stderr.splitlines()) == 1
