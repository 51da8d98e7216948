import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.config.check import engine_devices, world_size
from vime.config.resolve import from_dict
from vime.errors import UserError
from vime.loop.placement import Located, check_devices, devices_needed, order, plan, seat
from vime.platforms.npu import NpuPlatform


def config(mode="non-colocate", data=1, tensor=1, engines=1, width=1, nodes=1):
    return from_dict(
        {
            "model": {"path": "/m"},
            "data": {"task": "t"},
            "placement": {"mode": mode, "nodes": nodes, "ray_address": "10.0.0.1:6379" if nodes > 1 else None},
            "parallel": {"data": data, "tensor": tensor},
            "rollout": {"engines": engines, "tensor_parallel": width},
        }
    ).config


def test_more_ranks_than_devices_names_both_numbers_and_the_mend():
    with pytest.raises(UserError, match=r"3 devices are needed \(1 trainer ranks, 2 engine devices, non-colocate\).*have 2: lower .*devices_per_node"):
        check_devices(config(engines=2), 2, "cpu")


@pytest.mark.parametrize(
    ("engines", "width", "data", "per_node", "nodes", "room"),
    [(1, 8, 4, 6, 2, 0), (3, 3, 1, 5, 2, 2), (2, 4, 8, 8, 2, 2), (2, 3, 4, 5, 2, 2)],
)
def test_an_engine_is_placed_within_one_node(engines, width, data, per_node, nodes, room):
    case = config(engines=engines, width=width, data=data, nodes=nodes)
    if room < engines:
        with pytest.raises(UserError, match=rf"{engines} engine\(s\) of {width} devices .*of one node, .*have room for {room}: lower rollout"):
            check_devices(case, per_node, "npu")
    else:
        assert check_devices(case, per_node, "npu") == per_node * nodes


def test_colocated_workers_share():
    assert devices_needed(config("colocate", data=2, engines=2)) == 2
    assert devices_needed(config("non-colocate", data=2, engines=2)) == 4


@given(st.integers(1, 4), st.integers(1, 2), st.integers(1, 4), st.integers(1, 4))
def test_every_rank_and_engine_is_placed_exactly_once(data, tensor, engines, width):
    separate = config("non-colocate", data, tensor, engines, width)
    shared = config("colocate", data=engines * width, engines=engines, width=width)
    for case in (separate, shared):
        bundles = plan(case)
        assert sorted(rank for bundle in bundles for rank in bundle.trainer_ranks) == list(range(world_size(case)))
        assert sorted(engine for bundle in bundles for engine in bundle.engines) == list(range(case.rollout.engines))
        assert sum(bundle.devices for bundle in bundles) == (engine_devices(case) if case is shared else world_size(case) + engine_devices(case))


def located(*places):
    return [Located(node, tuple(ids)) for node, *ids in places]


def test_neighbouring_ranks_get_neighbouring_devices_whatever_order_ray_gave_them_in():
    bundles = plan(config(data=2, tensor=2, engines=1, width=2))
    found = located(("10.0.0.2", "2"), ("10.0.0.1", "10"), ("10.0.0.1", "9"), ("10.0.0.2", "1"), ("10.0.0.2", "4", "5"))
    assert order(bundles, found) == [2, 1, 3, 0, 4]
    seats = seat(config(data=2, tensor=2, engines=1, width=2), NpuPlatform(), None, bundles, found)
    assert [seats.trainers[rank].environment["ASCEND_RT_VISIBLE_DEVICES"] for rank in range(4)] == ["9", "10", "1", "2"]
    assert seats.engines[0].environment == {"ASCEND_RT_VISIBLE_DEVICES": "4,5"}


def test_colocated_workers_see_the_same_devices():
    case = config("colocate", data=4, engines=2, width=2)
    seats = seat(case, NpuPlatform(), None, plan(case), located(("a", "6", "7"), ("a", "0", "1")))
    assert [seats.trainers[rank].environment["ASCEND_RT_VISIBLE_DEVICES"] for rank in range(4)] == ["0", "1", "6", "7"]
    assert [seats.engines[engine].environment["ASCEND_RT_VISIBLE_DEVICES"] for engine in range(2)] == ["0,1", "6,7"]


def test_without_devices_to_tell_apart_nothing_is_reordered():
    bundles = plan(config(data=2))
    assert order(bundles, None) == [0, 1, 2]
