"""`vime doctor --probe`: every device computes, all of them talk to each other, and two processes on one device share its memory; each in processes of its own.

What `vime/doctor.py` reads off a machine is cheap and certain; this takes seconds a device and needs the platform's packages, so it is asked for.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from vime.doctor import Check
from vime.platforms import registry
from vime.platforms.visible import VisibleDevices

START_S, PING_S = 120.0, 60.0
HUB_S = 5.0
BYTES = 2**20
WORLD = 2  # processes on a platform whose devices are only slots


def probe(name: str) -> list[Check]:
    """The checks of platform `name` (computing, collectives, shared memory), in that order."""
    platform = registry.get(name)
    only = frozenset({platform.name})
    devices = devices_of(platform)
    if not devices:
        return [Check("device probe", "missing", "no device", only, "see the devices' own line above")]
    with contextlib.ExitStack() as stack:
        meeting = stack.enter_context(store())
        members = [stack.enter_context(Member(platform.name, shown, rank, len(devices), meeting)) for rank, shown in enumerate(devices)]
        twin = stack.enter_context(Member(platform.name, devices[0], len(devices), len(devices), meeting))
        return [computing(members, only), talking(members, platform.collective_backend, only), sharing(members[0], twin, only), hub(only)]


def devices_of(platform: Any) -> list[dict[str, str]]:
    """For each process the variables that show it its device."""
    variable = platform.visible_devices_variable
    if variable is None:
        return [{}] * min(WORLD, platform.device_count())
    visible = VisibleDevices.read(variable, os.environ, platform.device_count())
    return [{variable: name} for name in visible.physical]


@contextlib.contextmanager
def store() -> Iterator[tuple[str, int]]:
    """Where the processes meet: a store in this process on the loopback interface."""
    from torch.distributed import TCPStore

    made = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=PING_S), False)
    yield "127.0.0.1", made.port


def computing(members: list[Member], only: frozenset[str]) -> Check:
    answers = ask_all(members, "health", START_S)
    failed = [f"{index}: {text}" for index, (right, text) in enumerate(zip_answers(answers)) if not right]
    if failed:
        return Check("device probe", "missing", "; ".join(failed), only, "reset the device, or take it out of the visible ones")
    slowest = max(float(text) for _, text in zip_answers(answers))
    return Check("device probe", "ok", f"{len(members)} computed rightly, the slowest in {slowest:.2f} s", only)


def talking(members: list[Member], backend: str, only: frozenset[str]) -> Check:
    answers = zip_answers(ask_all(members, "ping", 2 * PING_S))  # the group's own limit first: it says more
    failed = [f"{index}: {text}" for index, (right, text) in enumerate(answers) if not right]
    if failed:
        return Check(f"{backend} ping", "missing", "; ".join(failed), only, "check the links between the devices, firewall and port ranges (docs/npu.md)")
    return Check(f"{backend} ping", "ok", f"all {len(members)} reach each other, in {max(float(text) for _, text in answers):.2f} s", only)


def sharing(first: Member, second: Member, only: frozenset[str]) -> Check:
    right, handed = first.ask("export")
    right, text = second.ask("import", handed) if right else (right, handed)
    if not right:
        return Check(
            "shared memory of a device", "missing", str(text), only, "colocated weight sync needs it: use weights.transport broadcast or disk until then"
        )
    return Check("shared memory of a device", "ok", f"{BYTES} bytes written by one process were read by another", only)


def hub(only: frozenset[str]) -> Check:
    """Whether the model hub that huggingface_hub is configured for answers. Runs need it only where somebody fetches models: a note, not a fault."""
    import urllib.error
    import urllib.request

    from huggingface_hub.constants import ENDPOINT

    try:
        urllib.request.urlopen(urllib.request.Request(ENDPOINT, method="HEAD"), timeout=HUB_S).close()
    except urllib.error.HTTPError as answer:
        return Check("model hub", "ok", f"{ENDPOINT} answers ({answer.code})", only)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Check("model hub", "note", f"{ENDPOINT}: {reason}", only, "fetch models elsewhere and copy their directories, or set HF_ENDPOINT to a mirror")
    return Check("model hub", "ok", f"{ENDPOINT} answers", only)


def ask_all(members: list[Member], what: str, timeout_s: float, *arguments: Any) -> list[tuple[bool, Any]]:
    """Ask all at once; one limit for all together, so that devices that hang cost it only once."""
    until = time.monotonic() + timeout_s
    for member in members:
        member.send(what, *arguments)
    return [member.receive(what, max(0.0, until - time.monotonic())) for member in members]


def zip_answers(answers: list[tuple[bool, Any]]) -> list[tuple[bool, str]]:
    return [(right, str(value)) for right, value in answers]


class Member:
    """A process on one device that does what it is asked; a context manager that ends it."""

    def __init__(self, platform: str, shown: dict[str, str], rank: int, world: int, meeting: tuple[str, int]):
        context = multiprocessing.get_context("spawn")
        self.requests, self.answers = context.Queue(), context.Queue()
        self.process = context.Process(target=serve, args=(platform, shown, rank, world, meeting, self.requests, self.answers), daemon=True)

    def __enter__(self) -> Member:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.requests.put(None)
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(5)

    def send(self, what: str, *arguments: Any) -> None:
        self.requests.put((what, *arguments))

    def receive(self, what: str, timeout_s: float) -> tuple[bool, Any]:
        """(whether it worked, result or message) of the request `what`. An answer to an earlier request, which came too late, is not this one's."""
        begin, ended = time.monotonic(), False
        while True:
            try:
                answered, right, value = self.answers.get(timeout=0.2)
            except queue.Empty:
                if ended:
                    return False, f"the process ended with code {self.process.exitcode}"
                if time.monotonic() - begin > timeout_s:
                    return False, f"no answer to {what!r} in time"
                ended = not self.process.is_alive()  # what it said last may still be on its way: look once more
            else:
                if answered == what:
                    return right, value

    def ask(self, what: str, *arguments: Any) -> tuple[bool, Any]:
        return ask_all([self], what, START_S, *arguments)[0]


def serve(platform: str, shown: dict[str, str], rank: int, world: int, meeting: tuple[str, int], requests: Any, answers: Any) -> None:
    """The process' side: one answer a request; nothing a device does wrong ends it."""
    os.environ.update(shown)
    kept: dict[str, Any] = {}  # what must live until the end: groups, shared memory
    while (request := requests.get()) is not None:
        try:
            answers.put((request[0], True, ACTIONS[request[0]](registry.get(platform), rank, world, meeting, kept, *request[1:])))
        except Exception as error:  # noqa: BLE001  the answer is the report
            answers.put((request[0], False, (str(error).splitlines() or [type(error).__name__])[0]))


def health(platform: Any, rank: int, world: int, meeting: tuple[str, int], kept: dict[str, Any]) -> float:
    platform.set_device(0)
    return platform.health_probe(0)


def ping(platform: Any, rank: int, world: int, meeting: tuple[str, int], kept: dict[str, Any]) -> float:
    """Every process contributes its number to a sum; seconds with the group's making."""
    import torch
    from torch.distributed import TCPStore

    begin = time.perf_counter()
    own = TCPStore(*meeting, None, False, timedelta(seconds=PING_S), False)
    kept["group"] = group = platform.new_process_group(own, rank, world, timedelta(seconds=PING_S))
    value = torch.full((4,), float(rank + 1), device=platform.device(0))
    group.allreduce([value]).wait()
    total = float(value.cpu()[0])
    if total != world * (world + 1) / 2:
        raise ArithmeticError(f"the sum over {world} devices came out as {total:g}, not {world * (world + 1) / 2:g}")
    return time.perf_counter() - begin


def export(platform: Any, rank: int, world: int, meeting: tuple[str, int], kept: dict[str, Any]) -> tuple[bytes, Any, str]:
    """(handle, a duplicate of the descriptor, digest) of shared memory with known contents."""
    from multiprocessing.reduction import DupFd

    import torch

    kept["shared"] = shared = platform.share(BYTES)
    shared.tensor.copy_(torch.arange(BYTES, dtype=torch.int64).remainder(251).to(torch.uint8))
    platform.synchronize()
    descriptor = None if shared.descriptor is None else DupFd(shared.descriptor)
    return shared.handle, descriptor, platform.tensor_digest(shared.tensor)


def attach(platform: Any, rank: int, world: int, meeting: tuple[str, int], kept: dict[str, Any], handed: tuple[bytes, Any, str]) -> str:
    handle, descriptor, digest = handed
    platform.set_device(0)
    kept["attached"] = attached = platform.attach(handle, None if descriptor is None else descriptor.detach(), BYTES)
    found = platform.tensor_digest(attached.tensor)
    if found != digest:
        raise ValueError("another process reads other bytes than were written")
    return found


ACTIONS: dict[str, Callable[..., Any]] = {"health": health, "ping": ping, "export": export, "import": attach}
