"""Measure how well every family agrees with Hugging Face and with vLLM on this machine, and write it where `vime models` and docs/models.md read it.

`python -m tests.models.measure [NAME …] [--engine]`: the named cases (default: all); with --engine also vLLM, 15 s a case. Results not measured again are kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.models import hugging_face
from tests.models.families import BY_NAME, Case
from tests.models.megatron import SEQUENCES, gap
from vime.models import checked
from vime.models.registry import family_for

WITH_DRAFT = ("glm4-moe", "glm4-moe-lite", "deepseek-v3")  # families whose draft layer transformers has too


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BY_NAME], metavar="NAME")
    parser.add_argument("--engine", action="store_true", help="vLLM too")
    options = parser.parse_args(arguments)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for name in options.names or BY_NAME:
        record = measure(BY_NAME[name], engine=options.engine)
        checked.write(name, record)
        print(name, record, flush=True)


def measure(case: Case, *, engine: bool) -> dict[str, Any]:
    """One case: its family, the largest difference of logits, and what the engine says."""
    from tests.models.test_layouts import layouts

    record: dict[str, Any] = {"family": family_for(case.config).name, "mtp": case.mtp, "layouts": len(layouts(case)), "date": str(datetime.now(UTC).date())}
    with tempfile.TemporaryDirectory() as place:
        directory = hugging_face.write(case.config, Path(place) / case.name)
        record["hf_logits"] = gap(directory, hugging_face.logits(directory, SEQUENCES))
        if case.mtp and family_for(case.config).name in WITH_DRAFT:
            record["draft_logits"] = draft_gap(case, Path(place) / "draft")
        if engine:
            record |= in_engine(directory, case.engine_dtype)
    return record


def in_engine(directory: Path, dtype: str) -> dict[str, Any]:
    from tests.models.engine import compare

    try:
        return dataclasses.asdict(compare(directory, dtype)) | {"engine_dtype": dtype}
    except Exception as error:  # noqa: BLE001  (what vLLM cannot serve is a result)
        last = traceback.extract_tb(error.__traceback__)[-1]
        return {"engine_error": f"{type(error).__name__} in {Path(last.filename).name}: {' '.join(str(error or last.line).split())[:400]}"}


def draft_gap(case: Case, place: Path) -> float:
    """Largest difference of the draft layer's logits from transformers' own."""
    from tests.models.test_mtp import draft_of_hugging_face, draft_of_vime

    directory = hugging_face.write(case.config, place, mtp=True)
    sequences = [list(sequence) for sequence in SEQUENCES if len(sequence) > 1]
    pairs = zip(sequences, draft_of_vime(directory, sequences), strict=True)
    return max(float((ours - draft_of_hugging_face(directory, sequence)).abs().max()) for sequence, ours in pairs)


if __name__ == "__main__":
    main(sys.argv[1:])
