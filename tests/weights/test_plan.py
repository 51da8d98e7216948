"""Plans: every element travels exactly once to whoever needs it, for any layout, in bounded messages that nobody can wait for in a circle."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.errors import RunError
from vime.weights.connection import Connection
from vime.weights.plan import Unit, buckets, check_coverage, natural, pack, route


def cut(extent: int, parts: int) -> list[tuple[int, int]]:
    edges = [round(index * extent / parts) for index in range(parts + 1)]
    return [(start, stop) for start, stop in itertools.pairwise(edges) if stop > start]


@st.composite
def layouts(draw: st.DrawFn) -> list[Unit]:
    """A few tensors, each cut into a grid over ranks."""
    units = []
    for number in range(draw(st.integers(1, 5))):
        shape = tuple(draw(st.lists(st.integers(1, 9), min_size=0, max_size=2)))
        grids = [cut(extent, draw(st.integers(1, 4))) for extent in shape]
        units += [Unit(f"layers.{number}.weight", shape, tuple(box), draw(st.integers(0, 3))) for box in itertools.product(*grids)]
    return units


def painted(units: list[Unit]) -> dict[str, np.ndarray]:
    """How often each element is covered."""
    counts = {unit.name: np.zeros(unit.shape, int) for unit in units}
    for unit in units:
        counts[unit.name][unit.slices] += 1
    return counts


@given(layouts(), st.integers(1, 200), st.sampled_from([2, 4]))
def test_buckets_carry_every_element_once_within_the_limit(units: list[Unit], limit: int, itemsize: int) -> None:
    plan = buckets(units, itemsize, limit)
    sent = [unit for bucket in plan for message in bucket.messages for unit in message.units]
    assert all((count == 1).all() for count in painted(sent).values())
    assert {unit.name for unit in sent} == {unit.name for unit in units}
    for bucket in plan:
        carried = [unit for message in bucket.messages for unit in message.units]
        one_row = all(len(carried) == 1 and (unit.extent[0] if unit.extent else 1) == 1 for unit in carried)
        small = sum(-(-unit.numel * itemsize // 64) * 64 for unit in carried) <= max(limit, 64)
        assert small or one_row or len(carried) == 1
        assert all(message.owner == unit.owner for message in bucket.messages for unit in message.units)


@given(layouts(), st.data())
def test_a_tensor_that_fits_a_bucket_is_never_spread_over_two(units: list[Unit], data: st.DataObject) -> None:
    plan = buckets(units, 4, 1 << 20)
    assert len(plan) == 1
    assert [message.owner for message in plan[0].messages] == sorted({unit.owner for unit in units})


@given(layouts(), st.data())
def test_each_receiver_gets_exactly_what_its_layout_needs(units: list[Unit], data: st.DataObject) -> None:
    shapes = {unit.name: unit.shape for unit in units}
    needs = []
    for _ in range(data.draw(st.integers(1, 3))):
        need = {}
        for name, shape in shapes.items():
            if data.draw(st.booleans()):
                need[name] = tuple(data.draw(st.sampled_from(cut(extent, data.draw(st.integers(1, 3))))) for extent in shape)
        needs.append(need)
    for need, tensors in zip(needs, route(units, needs), strict=True):
        got = [unit for parts in tensors for unit in parts]
        assert {unit.name for unit in got} == set(need)
        for name, box in need.items():
            wanted = np.zeros(shapes[name], int)
            wanted[tuple(slice(*part) for part in box)] = 1
            assert (painted([unit for unit in got if unit.name == name])[name] == wanted).all()


@settings(max_examples=50)
@given(layouts(), st.integers(1, 3), st.integers(1, 400))
def test_senders_and_receivers_never_wait_in_a_circle(units: list[Unit], receivers: int, limit: int) -> None:
    """Rendezvous sends: run both sides' lists until nobody can move, then nothing may be left."""
    whole = {unit.name: tuple((0, extent) for extent in unit.shape) for unit in units}
    plans = tuple(tuple(pack(tensors, 4, limit)) for tensors in route(units, [whole] * receivers))
    connection = Connection("id", "p2p", "cpu", "float32", False, plans, tuple((index, 0) for index in range(receivers)), 1.0)
    sending = {owner: [(receiver, owner, message) for _, receiver, message in connection.outgoing(owner)] for owner in connection.owners}
    taking = {
        receiver: [(receiver, message.owner, message) for bucket in connection.incoming(receiver) for message in bucket.messages]
        for receiver in range(receivers)
    }
    moved = True
    while moved:
        moved = False
        for queue in sending.values():
            if queue and taking[queue[0][0]] and taking[queue[0][0]][0] == queue[0]:
                taking[queue[0][0]].pop(0)
                queue.pop(0)
                moved = True
    assert not any(sending.values()) and not any(taking.values())


def test_layers_are_ordered_by_number() -> None:
    names = ["model.layers.10.a", "model.layers.2.a", "lm_head.weight", "model.layers.2.b", "model.embed_tokens.weight"]
    assert sorted(names, key=natural) == ["lm_head.weight", "model.embed_tokens.weight", "model.layers.2.a", "model.layers.2.b", "model.layers.10.a"]


def unit(name: str, shape: tuple[int, ...], box: tuple[tuple[int, int], ...], owner: int = 0) -> Unit:
    return Unit(name, shape, box, owner)


def test_a_tensor_without_an_owner_is_named() -> None:
    with pytest.raises(RunError, match=r"export 4 of the 8 elements of w: part of the tensor has no owner"):
        check_coverage([unit("w", (4, 2), ((0, 2), (0, 2)))])


def test_an_expert_exported_twice_is_named() -> None:
    whole = unit("experts.3.w", (4,), ((0, 4),))
    with pytest.raises(RunError, match=r"experts\.3\.w of rank 0 and experts\.3\.w of rank 1 overlap"):
        check_coverage([whole, replace(whole, owner=1)])


def test_ranks_that_disagree_on_a_shape_are_refused() -> None:
    with pytest.raises(RunError, match="disagree on the shape of w"):
        check_coverage([unit("w", (4,), ((0, 2),)), unit("w", (5,), ((2, 4),), 1)])


def test_a_need_that_nobody_exports_is_named() -> None:
    with pytest.raises(RunError, match="engine worker 0 needs lm_head.weight, which no trainer rank exports"):
        route([unit("w", (4,), ((0, 4),))], [{"lm_head.weight": ((0, 4),)}])


def test_a_tensor_larger_than_a_bucket_travels_in_rows() -> None:
    plan = buckets([unit("w", (10, 8), ((0, 10), (0, 8)))], 4, 64)
    extents = [item.extent for bucket in plan for message in bucket.messages for item in message.units]
    assert extents == [(2, 8)] * 5
