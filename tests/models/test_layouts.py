"""Load, then export, is the identity bit for bit for every family on every rank of every layout, with Megatron's real modules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.families import CASES, Case
from tests.models.identity import check_identity

LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": {"tensor": 2, "sequence_parallel": True},
    "pp2": {"pipeline": 2},
    "dp2cp2": {"data": 2, "context": 2},
    "tp2pp2dp2": {"tensor": 2, "sequence_parallel": True, "pipeline": 2, "data": 2},
}
WITH_EXPERTS: dict[str, dict[str, Any]] = {
    "ep2": {"data": 2, "expert": 2},
    "ep4": {"data": 2, "context": 2, "expert": 4},
    "etp2": {"tensor": 2, "sequence_parallel": True, "expert_tensor": 2},
    "etp2-tp1": {"data": 2, "expert_tensor": 2},
    "ep2etp2": {"tensor": 2, "sequence_parallel": True, "data": 2, "expert": 2, "expert_tensor": 2},
    "tp2ep2pp2": {"tensor": 2, "sequence_parallel": True, "data": 2, "expert": 2, "pipeline": 2},
}


def layouts(case: Case) -> dict[str, dict[str, Any]]:
    given = {**LAYOUTS, **(WITH_EXPERTS if case.experts else {})}
    return {name: layout for name, layout in given.items() if not (case.sees and layout.get("context", 1) > 1)}


@pytest.mark.parametrize(("case", "layout"), [pytest.param(case, value, id=f"{case.name}-{name}") for case in CASES for name, value in layouts(case).items()])
def test_load_then_export_is_the_identity(case, layout):
    check_identity(case.config, layout, mtp=case.mtp > 0)


@pytest.mark.parametrize("case", [case for case in CASES if case.mtp], ids=lambda case: case.name)
def test_without_its_mtp_layers(case):
    check_identity(case.config, {"pipeline": 2}, mtp=False)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_uneven_pipeline_keeps_every_layer(case):
    check_identity(case.deeper(3), {"pipeline": 2}, mtp=case.mtp > 0, megatron={"num_layers_in_first_pipeline_stage": 2})
