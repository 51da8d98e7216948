"""A trainer's memory is given back and whole again: also of an optimizer that a checkpoint was loaded into."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vime.errors import RunError
from vime.platforms.cpu import CpuPlatform
from vime.training.residency import Residency


def trained() -> Any:
    model = torch.nn.Linear(8, 4)
    inner = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    inner.step()
    ddp = SimpleNamespace(buffers=[SimpleNamespace(grad_data=torch.ones(36))], expert_parallel_buffers=[])
    return SimpleNamespace(model=model, optimizer=SimpleNamespace(optimizer=inner), ddp=ddp)


def moments(one: Any) -> list[torch.Tensor]:
    return [state[key] for state in one.optimizer.optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]


def held(one: Any) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in [*one.model.parameters(), *moments(one), *(buffer.grad_data for buffer in one.ddp.buffers)])


def test_all_is_given_back_and_whole_again() -> None:
    one = trained()
    before = [tensor.detach().clone() for tensor in [*one.model.parameters(), *moments(one)]]
    size, residency = held(one), Residency(one, CpuPlatform())
    assert residency.park("all") == size
    assert held(one) == 0
    residency.restore()
    assert all(torch.equal(left, right) for left, right in zip(before, [*one.model.parameters(), *moments(one)], strict=True))
    assert not one.ddp.buffers[0].grad_data.any()


def test_what_a_checkpoint_replaced_is_parked_too() -> None:
    one = trained()
    residency = Residency(one, CpuPlatform())
    one.optimizer.optimizer.load_state_dict({**one.optimizer.optimizer.state_dict()})
    for state in one.optimizer.optimizer.state.values():
        state |= {key: state[key].clone() for key in ("exp_avg", "exp_avg_sq")}
    residency.replaced()
    residency.park("all")
    assert held(one) == 0


def test_parked_memory_is_not_read() -> None:
    one = trained()
    residency = Residency(one, CpuPlatform())
    residency.park("optimizer")
    residency.require("optimizer", "weight sync")
    with pytest.raises(RunError, match="parked for a colocated engine"):
        residency.require("all", "checkpoint")
    residency.park("all")
    with pytest.raises(RunError, match="parked for a colocated engine"):
        residency.require("optimizer", "export")


def test_what_to_park_must_be_known() -> None:
    one = trained()
    with pytest.raises(ValueError, match="'weights' is neither 'optimizer' nor 'all'"):
        Residency(one, CpuPlatform()).park("weights")  # type: ignore[arg-type]
    assert held(one) > 0
