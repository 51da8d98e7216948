"""Models that see, with pictures: logits and gradients as Hugging Face's, packed or alone, and what a frozen tower keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models import hugging_face, pictures
from tests.models.families import BY_NAME, CASES, Case
from tests.models.megatron import config_of
from tests.training.ranks import one_rank
from vime.errors import UserError
from vime.models.vision import Deepstack
from vime.models.vision_family import VisionFamily
from vime.training.batch import TrainBatch, pack
from vime.training.forward import inputs
from vime.training.images import image_batch

CAUGHT = 2e-3
SEEING = [case for case in CASES if case.sees]


@pytest.fixture(scope="module", params=SEEING, ids=lambda case: case.name)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Path]:
    return request.param, hugging_face.write(request.param.config, tmp_path_factory.mktemp("vision") / request.param.name)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hugging_face.write(BY_NAME["qwen3-vl"].config, tmp_path_factory.mktemp("vision") / "dense")


def forward(actor: Any, prompts: list[Any], processor: Any) -> list[torch.Tensor]:
    """float32[len, V] of each prompt, from one pack."""
    batch = TrainBatch.of([prompt.ids for prompt in prompts], [[0] + [1] * (len(prompt.ids) - 1) for prompt in prompts])
    images = image_batch(prompts, batch.lengths.tolist(), processor)
    micro = pack(TrainBatch(**{**batch.to_dict(), "images": images}), list(range(batch.size)), torch.device("cpu"))
    return list(actor.trained.model(**inputs(micro))[0].split(batch.lengths.tolist()))


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_logits_and_gradients_equal_hugging_faces(model, recompute):
    case, directory = model
    processor = pictures.processor_of(directory)
    prompts, theirs = pictures.prompts_of(processor), pictures.reference(directory, case.config)
    weights = [torch.randn(len(prompt.ids), 64, generator=torch.Generator().manual_seed(prompt.prompt_id)) for prompt in prompts]
    expected = [pictures.logits(theirs, prompt, processor) for prompt in prompts]
    sum((values * weight).sum() for values, weight in zip(expected, weights, strict=True)).backward()
    with one_rank(config_of(directory, train={"recompute": recompute})) as actor:
        ours = forward(actor, prompts, processor)
        for mine, value in zip(ours, expected, strict=True):
            assert (mine - value).abs().max() < case.tolerance
        sum((values * weight).sum() for values, weight in zip(ours, weights, strict=True)).backward()
        gradients = {name: parameter.main_grad for name, parameter in actor.trained.model.named_parameters()}
        for name, parameter in theirs.named_parameters():
            if name.startswith("model.visual."):
                mine = gradients["vision.module." + name.removeprefix("model.visual.")]
                assert (mine - parameter.grad).norm() <= 1e-3 * parameter.grad.norm() + 1e-5, name


def test_a_pack_is_its_sequences_alone(model):
    case, directory = model
    processor = pictures.processor_of(directory)
    prompts = pictures.prompts_of(processor)
    with one_rank(config_of(directory)) as actor:
        together = forward(actor, prompts, processor)
        for prompt, values in zip(prompts, together, strict=True):
            assert (forward(actor, [prompt], processor)[0] - values).abs().max() < case.tolerance


def test_another_picture_gives_other_logits(dense):
    processor = pictures.processor_of(dense)
    first = pictures.prompts_of(processor)[0]
    other = type(first)(0, "", first.ids, None, {}, (processor.image(pictures.png(32, 32, seed=9), "test"),))
    with one_rank(config_of(dense)) as actor:
        one, two = forward(actor, [first, other], processor)
    assert (one - two)[first.ids.index(processor.token_id) :].abs().max() > 0.01
    assert (one - two)[: first.ids.index(processor.token_id)].abs().max() == 0


def test_micro_batches_do_not_change_the_update(dense):
    processor = pictures.processor_of(dense)
    batch = pictures.batch_of(pictures.prompts_of(processor), processor)
    metrics = []
    for limit in (40, 4096):
        with one_rank(config_of(dense, train={"max_tokens_per_microbatch": limit, "lr": 1e-3})) as actor:
            metrics.append(actor.train(batch, 0))
    assert metrics[0]["train/grad_norm"] == pytest.approx(metrics[1]["train/grad_norm"], rel=1e-5)
    assert metrics[0]["train/loss"] == pytest.approx(metrics[1]["train/loss"], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("frozen", [False, True])
def test_what_an_update_moves(dense, frozen):
    processor = pictures.processor_of(dense)
    batch = pictures.batch_of(pictures.prompts_of(processor), processor)
    with one_rank(config_of(dense, model={"freeze_vision": frozen}, train={"lr": 1e-3})) as actor:
        before = {name: parameter.detach().clone() for name, parameter in actor.trained.model.named_parameters()}
        actor.train(batch, 0)
        moved = {name: not torch.equal(before[name], parameter) for name, parameter in actor.trained.model.named_parameters()}
    assert all(changed for name, changed in moved.items() if not name.startswith("vision."))
    tower = {name: changed for name, changed in moved.items() if name.startswith("vision.")}
    assert tower and (not any(tower.values()) if frozen else all(tower.values()))


def test_a_batch_of_text_leaves_the_tower_where_it_is_and_trains(dense):
    processor = pictures.processor_of(dense)
    text = [prompt for prompt in pictures.prompts_of(processor) if not prompt.images]
    for overlap in (False, True):
        ddp = {"ddp": {"overlap_grad_reduce": True}} if overlap else {}
        with one_rank(config_of(dense, megatron=ddp)) as actor:
            before = {name: parameter.detach().clone() for name, parameter in actor.trained.model.named_parameters() if name.startswith("vision.")}
            batch = pictures.batch_of(text, processor)
            assert batch.images is None
            assert np.isfinite(actor.train(batch, 0)["train/grad_norm"])
            assert all(torch.equal(before[name], parameter) for name, parameter in actor.trained.model.named_parameters() if name in before)


def test_freezing_a_tower_that_is_not_there_is_refused(tmp_path):
    directory = hugging_face.write(BY_NAME["qwen3"].config, tmp_path / "text")
    with pytest.raises(UserError, match="no vision tower"), one_rank(config_of(directory, model={"freeze_vision": True})):
        pass


def test_a_first_stage_without_room_for_deepstack_is_refused():
    from tests.models.simulated import simulated

    with (
        pytest.raises(UserError, match="first stage has 1 layers, but the vision tower's features go into the first 2"),
        simulated(BY_NAME["qwen3-vl"].config, {"pipeline": 4}, 0),
    ):
        pass


def test_context_parallelism_with_images_is_refused():
    from tests.models.simulated import simulated

    with pytest.raises(UserError, match="model with images is not supported"), simulated(BY_NAME["qwen3-vl"].config, {"context": 2}, 0):
        pass


def test_a_resumed_run_is_bit_exact(tmp_path):
    """Tower, gated delta net and experts are in a checkpoint."""
    directory = hugging_face.write(BY_NAME["qwen3-5-moe-vl"].config, tmp_path / "model")
    processor = pictures.processor_of(directory)
    batch = pictures.batch_of(pictures.prompts_of(processor), processor)
    with one_rank(config_of(directory, train={"lr": 1e-3})) as actor:
        actor.train(batch, 0)
        actor.save(str(tmp_path / "step-1"), {})
        expected = actor.train(batch, 1)
        weights = {name: parameter.detach().clone() for name, parameter in actor.trained.model.named_parameters()}
    with one_rank(config_of(directory, train={"lr": 1e-3})) as actor:
        actor.load(str(tmp_path / "step-1"))
        assert actor.train(batch, 1) == expected
        assert all(torch.equal(weights[name], parameter) for name, parameter in actor.trained.model.named_parameters())


def exchanged(rules: dict[str, Any], one: str, other: str) -> dict[str, Any]:
    """Two tensors of the tower in each other's place."""
    first, second = (f"vision.module.{name}" for name in (one, other))
    return {**rules, first: rules[second], second: rules[first]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("deepstack_merger_list.0.linear_fc2.weight", "deepstack_merger_list.1.linear_fc2.weight"),
        ("merger.linear_fc2.weight", "deepstack_merger_list.0.linear_fc2.weight"),
        ("blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.weight"),
        ("blocks.0.norm1.weight", "blocks.0.norm2.weight"),
    ],
)
def test_tensors_of_the_tower_exchanged_show(one, other, dense, monkeypatch):
    original = VisionFamily.tower_rules
    monkeypatch.setattr(VisionFamily, "tower_rules", lambda self, hf_config: exchanged(original(self, hf_config), one, other))
    assert gap(dense) > CAUGHT


def test_axes_of_the_rotary_embedding_in_runs_show(dense, monkeypatch):
    """Qwen2-VL's order, in which each axis has a run of frequencies."""
    monkeypatch.setattr("vime.models.mrope._axes", lambda count, sections: torch.repeat_interleave(torch.arange(3), torch.tensor(sections)))
    assert gap(dense) > CAUGHT


def test_deepstack_features_one_layer_late_show(dense, monkeypatch):
    original = Deepstack.add
    monkeypatch.setattr(Deepstack, "add", lambda self, hidden, layer: original(self, hidden, layer - 1) if layer else hidden)
    assert gap(dense) > CAUGHT


def gap(directory: Path) -> float:
    """Largest difference from Hugging Face's logits, with pictures."""
    processor = pictures.processor_of(directory)
    prompts, theirs = pictures.prompts_of(processor), pictures.reference(directory, BY_NAME["qwen3-vl"].config)
    with one_rank(config_of(directory)) as actor, torch.no_grad():
        ours = forward(actor, prompts, processor)
        return max(float((mine - pictures.logits(theirs, prompt, processor)).abs().max()) for mine, prompt in zip(ours, prompts, strict=True))
