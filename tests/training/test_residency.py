"""A trainer's memory is given back and whole again: also of an optimizer that a checkpoint was loaded into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vime.errors import RunError
from vime.platforms.cpu import CpuPlatform
from vime.training import actor
from vime.training.checkpoint_writer import snapshot
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


def test_a_step_after_it_gives_the_same_bits() -> None:
    torch.manual_seed(3)
    plain = trained()
    torch.manual_seed(3)
    parked = trained()
    residency = Residency(parked, CpuPlatform())
    for _ in range(3):
        residency.park("optimizer")
        residency.park("all")
        residency.restore()
        for one in (plain, parked):
            one.optimizer.optimizer.zero_grad()
            one.model(torch.arange(16.0).reshape(2, 8)).square().sum().backward()
            one.optimizer.optimizer.step()
    assert all(torch.equal(left, right) for left, right in zip(plain.model.parameters(), parked.model.parameters(), strict=True))
    assert all(torch.equal(left, right) for left, right in zip(moments(plain), moments(parked), strict=True))


def test_a_checkpoint_that_is_still_written_does_not_read_parked_memory() -> None:
    one = trained()
    kept = [tensor.detach() for tensor in [*one.model.parameters(), *moments(one)]]
    before = [tensor.clone() for tensor in kept]
    bucket = ("file", "key", ([], [(index, tensor) for index, tensor in enumerate(kept)]))
    ((_, _, (_, copied)),) = snapshot([bucket], [bucket])  # what a background save hands to its writer
    Residency(one, CpuPlatform()).park("all")
    assert held(one) == 0
    assert all(torch.equal(tensor, value) for (_, tensor), value in zip(copied, before, strict=True))


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


def test_model_and_optimizer_state_are_made_in_the_platforms_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Platform(CpuPlatform):
        @contextmanager
        def training_memory(self) -> Iterator[None]:
            calls.append("enter")
            yield
            calls.append("leave")

    optimizer = SimpleNamespace(get_grad_norm=lambda: 0.0)
    built = SimpleNamespace(optimizer=optimizer, layout=None, model=torch.nn.Linear(2, 2), family=SimpleNamespace(name="toy"))
    monkeypatch.setattr("vime.platforms.registry.get", lambda _: Platform())
    monkeypatch.setattr(actor, "initialise", lambda *_: None)
    monkeypatch.setattr(actor, "build", lambda *_: calls.append("model") or built)
    monkeypatch.setattr(actor.checkpoint, "prepare_optimizer_state", lambda _: calls.append("optimizer state"))
    monkeypatch.setattr(actor, "Runner", lambda _: None)
    config = SimpleNamespace(platform="cpu", model=SimpleNamespace(load="hf"), algo=SimpleNamespace(kl_coef=0.0))
    actor.TrainerActor().start(config, 0, 1, "127.0.0.1", 1)  # type: ignore[arg-type]
    assert calls == ["enter", "model", "optimizer state", "leave"]
