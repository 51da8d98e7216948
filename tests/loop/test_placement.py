import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.config.check import engine_devices, world_size
from vime.config.resolve import from_dict
from vime.errors import UserError
from vime.loop.placement import check_devices, devices_needed, plan


def config(mode="non-colocate", data=1, tensor=1, engines=1, width=1):
    return from_dict(
        {
            "model": {"path": "/m"},
            "data": {"task": "t"},
            "placement": {"mode": mode},
            "parallel": {"data": data, "tensor": tensor},
            "rollout": {"engines": engines, "tensor_parallel": width},
        }
    ).config


def test_more_ranks_than_devices_names_both_numbers_and_the_mend():
    with pytest.raises(UserError, match=r"3 devices are needed \(1 trainer ranks, 2 engine devices, non-colocate\).*have 2: lower .*devices_per_node"):
        check_devices(config(engines=2), 2, "cpu")


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
