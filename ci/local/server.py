"""The executor's ear: requests of the stand-in `buildkite-agent`, one a connection, handed to the executor's loop and answered by it."""

from __future__ import annotations

import json
import queue
import shutil
import socketserver
import stat
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from ci.local import agent

ANSWER_S = 120.0


class Server:
    """Listens on a socket of its own; `path` holds the stand-in. Close it, or use it in a `with`."""

    def __init__(self, events: queue.Queue[tuple[str, Any, Any]]):
        self.folder = Path(tempfile.mkdtemp(prefix="vime-ci-"))
        self.socket = self.folder / "build"
        self.path = self.folder / "bin"
        self._stand_in()
        self.server = _Listener(str(self.socket), events)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def _stand_in(self) -> None:
        self.path.mkdir()
        script = self.path / "buildkite-agent"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {Path(agent.__file__).resolve()} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    def __enter__(self) -> Server:
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.server.shutdown()
        self.server.server_close()
        shutil.rmtree(self.folder)


class _Listener(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: str, events: queue.Queue[tuple[str, Any, Any]]):
        self.events = events
        super().__init__(address, _Handler)


class _Handler(socketserver.StreamRequestHandler):
    server: _Listener

    def handle(self) -> None:
        request = json.loads(self.rfile.readline())
        answer: queue.Queue[dict[str, Any]] = queue.Queue()
        self.server.events.put(("request", request, answer))
        try:
            reply = answer.get(timeout=ANSWER_S)
        except queue.Empty:
            reply = {"exit": 1, "error": f"the local build did not answer {request['command']} within {ANSWER_S:g} s"}
        self.wfile.write(json.dumps(reply).encode())
