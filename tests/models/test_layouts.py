"""Load, then export, is the identity bit for bit for every family on every rank of every layout, with Megatron's real modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models.families import CASES, Case
from tests.models.identity import check_identity
from tests.models.simulated import simulated
from vime.models.base import local_weights
from vime.weights.exporter import gather_plan, shards

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


def chosen() -> list[Any]:
    """Every family with the layouts that split it every way; the simpler ones in `make test-all`."""
    out = []
    for case in CASES:
        often = {"ep2etp2", "tp2ep2pp2"} if case.experts else {"tp2pp2dp2"}
        out += [pytest.param(case, layout, id=f"{case.name}-{name}", marks=() if name in often else pytest.mark.slow) for name, layout in layouts(case).items()]
    return out


@pytest.mark.parametrize(("case", "layout"), chosen())
def test_load_then_export_is_the_identity(case, layout):
    check_identity(case.config, layout, mtp=case.mtp > 0)


@pytest.mark.parametrize("case", [case for case in CASES if case.mtp], ids=lambda case: case.name)
def test_without_its_mtp_layers(case):
    check_identity(case.config, {"pipeline": 2}, mtp=False)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_uneven_pipeline_keeps_every_layer(case):
    check_identity(case.deeper(3), {"pipeline": 2}, mtp=case.mtp > 0, megatron={"num_layers_in_first_pipeline_stage": 2})


def test_a_missing_slice_is_noticed_before_anything_is_written():
    """The first of two stages alone."""
    config = CASES[0].config
    with simulated(config, {"pipeline": 2}, 0) as rank:
        held = list(shards([rank.model], rank.table, rank.layout))
    with pytest.raises(ValueError, match=r"no rank holds model\.layers\.1"):
        gather_plan(held, list(rank.table.shapes))


def test_views_write_through_to_the_parameter():
    for case in CASES:
        with simulated(case.config, {}, 0, mtp=case.mtp > 0) as rank, torch.no_grad():
            for name, weight in local_weights(rank.model):
                weight.fill_(float("nan"))
                for piece in rank.table.pieces(name, rank.layout):
                    piece.view(weight).fill_(1.0)
                assert not weight.isnan().any(), f"{case.name} {name}: the views leave elements out"
