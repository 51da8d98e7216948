"""Models that see, with pictures, in parallel layouts: what one process gives. The tower is whole on every tensor rank and must stay the same on each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.models import hugging_face, pictures
from tests.models.families import BY_NAME
from tests.training.ranks import on_ranks, one_rank
from tests.training.test_layouts import free_ports, run_config, same, tensors

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(170)]

MODELS = ("qwen3-vl", "qwen3-vl-moe", "qwen3-5-vl")
LAYOUTS: dict[str, tuple[int, dict[str, Any], tuple[str, ...]]] = {
    "dp2": (2, {"data": 2}, MODELS),
    "tp2sp": (2, {"tensor": 2, "sequence_parallel": True}, MODELS),
}
LONG: dict[str, tuple[int, dict[str, Any], tuple[str, ...]]] = {
    "tp2": (2, {"tensor": 2}, ("qwen3-vl", "qwen3-5-vl")),
    "pp2": (2, {"pipeline": 2}, MODELS),
    "dp2tp2": (4, {"data": 2, "tensor": 2, "sequence_parallel": True}, MODELS),
    "ep2dp2": (2, {"data": 2, "expert": 2}, ("qwen3-vl-moe",)),
    "tp2pp2": (4, {"tensor": 2, "pipeline": 2, "sequence_parallel": True}, MODELS),
}


def work(actor: Any, path: str, out: Path) -> dict[str, Any]:
    processor = pictures.processor_of(Path(path))
    batch = pictures.batch_of(pictures.prompts_of(processor), processor)
    sequences = [batch.ids[a:b].tolist() for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]
    logprobs = actor.logprobs(sequences, batch.images)
    metrics = actor.train(batch, 0)
    actor.export_hf(str(out))
    return {"logprobs": logprobs, "metrics": metrics, "reports": actor.reports, "apart": apart(actor)}


def apart(actor: Any) -> float:
    """Largest difference between this rank's tower and the first one's."""
    tower = [parameter for name, parameter in actor.trained.model.named_parameters() if name.startswith("vision.")]
    if not tower or dist.get_world_size() == 1 or actor.layout.pp_size > 1:
        return 0.0
    flat = torch.cat([parameter.detach().flatten().float() for parameter in tower])
    first = flat.clone()
    dist.broadcast(first, 0)
    return float((flat - first).abs().max())


def rank_main(rank: int, world: int, port: int, paths: dict[str, str], ports: list[int], parallel: dict[str, Any], out: Path) -> dict[str, Any]:
    from vime.training.actor import TrainerActor

    results = {}
    for name, path in paths.items():
        actor = TrainerActor()
        actor.start(run_config(path, parallel, {}, True), rank, world, "127.0.0.1", ports.pop())
        results[name] = work(actor, path, out / name)
        actor.stop()
    return results


@pytest.fixture(scope="module")
def singles(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By name: (directory, results of one process, directory after the step)."""
    made: dict[str, Any] = {}

    def get(name: str) -> tuple[Path, dict[str, Any], Path]:
        if name not in made:
            root = tmp_path_factory.mktemp("single")
            directory = hugging_face.write(BY_NAME[name].config, root / name)
            with one_rank(run_config(str(directory), {}, {}, True)) as actor:
                made[name] = directory, work(actor, str(directory), root / "after"), root / "after"
        return made[name]

    return get


def check(singles: Any, case: tuple[int, dict[str, Any], tuple[str, ...]], tmp_path: Path) -> None:
    world, parallel, names = case
    paths = {name: str(singles(name)[0]) for name in names}
    results = on_ranks(world, rank_main, paths, free_ports(len(paths)), parallel, tmp_path / "out", directory=tmp_path / "results")
    for name in names:
        _, want, after = singles(name)
        (got,) = [result[name] for result in results if result[name]["reports"]]
        for one, other in zip(got["logprobs"], want["logprobs"], strict=True):
            assert abs(one - other).max() < 5e-5, name
        assert got["metrics"]["train/grad_norm"] == pytest.approx(want["metrics"]["train/grad_norm"], rel=1e-4), name
        assert got["metrics"]["train/loss"] == pytest.approx(want["metrics"]["train/loss"], rel=1e-3, abs=1e-5), name
        same(f"{name} after the step", tensors(tmp_path / "out" / name), tensors(after), atol=1e-4)
        assert all(result[name]["apart"] == 0.0 for result in results), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_equals_one_process(singles, layout, tmp_path):
    check(singles, LAYOUTS[layout], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LONG)
def test_a_combination_equals_one_process(singles, layout, tmp_path):
    check(singles, LONG[layout], tmp_path)
