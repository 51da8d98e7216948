"""Training the draft layers of multi-token prediction: their loss, what it moves, and what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.families import DRAFTING, MODELS
from tests.training.ranks import configured, one_rank, random_batch, twin
from vime.config.tree import MtpConfig
from vime.errors import UserError

pytestmark = pytest.mark.heavy

SGD = {"optimizer": {"optimizer": "sgd", "sgd_momentum": 0.0}}
EXACT = {"lr": 0.5, "clip_grad": 0.0, "distributed_optimizer": False}
FAMILIES = list(DRAFTING)


def model(directory: Path, name: str = "glm4-moe", depths: int = 1) -> str:
    return twin(directory / "twin", **(MODELS[name] if depths == 1 else {**MODELS[name], "num_nextn_predict_layers": depths}))


def weights(actor: Any) -> dict[str, torch.Tensor]:
    return {shard.hf_name: shard.tensor.clone() for shard in actor.shards()}


def moved(path: str, **mtp: Any) -> tuple[dict[str, torch.Tensor], set[str], dict[str, float]]:
    """One SGD step: what each tensor changed by, the draft's own tensors, and the metrics."""
    with one_rank(configured(path, train={**EXACT, "mtp": MtpConfig(**mtp)}, megatron=SGD)) as actor:
        before = weights(actor)
        metrics = actor.train(random_batch(), 0)
        after = weights(actor)
        table = actor.trained.table
        return {name: before[name] - after[name] for name in before}, set(table.draft) - set(table.aliases), metrics


@pytest.mark.parametrize("name", FAMILIES)
def test_mtp_only_moves_the_draft_alone_and_the_rest_as_without_it(tmp_path, name):
    path = model(tmp_path, name)
    plain, _, without = moved(path)
    detached, draft, metrics = moved(path, loss_weight=0.3)
    assert not draft & plain.keys(), "a run without them does not hold the draft layers"
    for tensor in plain:
        torch.testing.assert_close(detached[tensor], plain[tensor], atol=1e-7, rtol=0, msg=tensor)
    still = [tensor for tensor in draft if not detached[tensor].abs().max() > 0 and "experts." not in tensor and "e_score" not in tensor]
    assert draft and not still, "every draft tensor gets a gradient (an expert that nothing chose may not)"
    assert metrics["train/loss"] == pytest.approx(without["train/loss"], abs=1e-6)  # the policy's loss, the draft's apart
    assert 3 < metrics["train/mtp_loss"] < 6 and "train/mtp_loss" not in without


def test_joint_moves_trunk_embedding_and_head_too(tmp_path):
    path = model(tmp_path)
    detached, draft, _ = moved(path, loss_weight=0.3)
    joint, _, _ = moved(path, loss_weight=0.3, gradient="joint")
    for tensor in ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"):
        assert (joint[tensor] - detached[tensor]).abs().max() > 1e-4, tensor
    for tensor in draft:
        torch.testing.assert_close(joint[tensor], detached[tensor], atol=1e-6, rtol=0, msg=tensor)


def test_the_weight_scales_the_draft_gradient(tmp_path):
    path = model(tmp_path)
    (one, draft, _), (three, _, _) = moved(path, loss_weight=0.1), moved(path, loss_weight=0.3)
    for tensor in draft:
        torch.testing.assert_close(3 * one[tensor], three[tensor], atol=2e-6, rtol=1e-4, msg=tensor)


@pytest.mark.parametrize("depths", [1, 2])
def test_the_loss_is_what_the_formula_says(tmp_path, depths):
    """Against each sample alone through the same modules: depth k predicts token t + k + 1 from position t, within its sample, and only tokens in the loss."""
    from vime.training.batch import TrainBatch, pack
    from vime.training.forward import inputs

    batch = random_batch(samples=9, temperature=0.7)
    config = configured(model(tmp_path, depths=depths), temperature=0.7, train={"lr": 1e-9, "mtp": MtpConfig(loss_weight=1.0)})
    with one_rank(config) as actor:
        sums, counts = np.zeros(depths), np.zeros(depths)
        for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
            ids, mask = batch.ids[start:stop], batch.loss_mask[start:stop]
            micro = pack(TrainBatch.of([ids.tolist()], [[0] * len(ids)]), [0], actor.device)
            _, drafts = actor.trained.model(**inputs(micro, draft=True))
            for depth, logits in enumerate(drafts):
                logprobs = (logits[0, :, : actor.trained.shape.vocab_size].float() / 0.7).log_softmax(-1)
                for position in range(2 + depth, len(ids)):
                    if mask[position]:
                        sums[depth] -= float(logprobs[position - 2 - depth, ids[position]])
                        counts[depth] += 1
        metrics = actor.train(batch, 0)
    assert metrics["train/mtp_loss"] == pytest.approx(sums.sum() / counts.sum(), rel=1e-5)


def test_the_draft_learns(tmp_path):
    batch = random_batch()
    with one_rank(configured(model(tmp_path), train={"lr": 1e-2, "mtp": MtpConfig(loss_weight=1.0)})) as actor:
        losses = [actor.train(batch, step)["train/mtp_loss"] for step in range(8)]
    assert losses[-1] < 0.6 * losses[0]


def test_micro_batching_recompute_and_a_reference_change_nothing(tmp_path):
    path, batch = model(tmp_path), random_batch()
    results = []
    for train, algo in (({}, {}), ({"max_tokens_per_microbatch": 40}, {}), ({"recompute": "full"}, {}), ({}, {"kl_coef": 1e-12})):
        settings = {**EXACT, "mtp": MtpConfig(loss_weight=0.3, gradient="joint"), **train}
        with one_rank(configured(path, train=settings, algo=algo, megatron=SGD)) as actor:
            metrics = actor.train(batch, 0)
            results.append((weights(actor), metrics))
    for other, metrics in results[1:]:
        assert metrics["train/mtp_loss"] == pytest.approx(results[0][1]["train/mtp_loss"], rel=1e-5)
        for tensor, value in results[0][0].items():
            torch.testing.assert_close(other[tensor], value, atol=5e-6, rtol=0, msg=tensor)


def test_load_export_and_checkpoints_keep_the_draft(tmp_path):
    from safetensors.torch import load_file

    from vime.convert import hf_to_torch_dist, torch_dist_to_hf

    with_draft = {"mtp": MtpConfig(loss_weight=0.3), "lr": 1e-2}
    with one_rank(configured(model(tmp_path), train=with_draft)) as actor:
        actor.train(random_batch(), 0)
        actor.save(str(tmp_path / "step-1"), {})
        actor.export_hf(str(tmp_path / "first"))
        whole = actor.train(random_batch(seed=1), 1)
    first = load_file(tmp_path / "first" / "model.safetensors")
    assert any("eh_proj" in name for name in first) and torch.equal(first["lm_head.weight"], first["model.layers.2.shared_head.head.weight"])
    start = {"random_init_seed": None}
    with one_rank(configured(str(tmp_path / "first"), model=start, train=with_draft)) as actor:
        actor.export_hf(str(tmp_path / "second"))
        actor.load(str(tmp_path / "step-1"))
        assert actor.train(random_batch(seed=1), 1) == whole
    hf_to_torch_dist(tmp_path / "first", tmp_path / "torch_dist")
    torch_dist_to_hf(tmp_path / "torch_dist", tmp_path / "first", tmp_path / "third")
    for place in ("second", "third"):
        again = load_file(tmp_path / place / "model.safetensors")
        assert first.keys() == again.keys() and all(torch.equal(first[name], again[name]) for name in first), place
    with one_rank(configured(str(tmp_path / "first"), model={**start, "load": "torch-dist", "torch_dist_path": str(tmp_path / "torch_dist")})) as actor:
        assert not any("eh_proj" in name for name in weights(actor))  # a run that does not want the draft takes the rest


def test_what_has_no_draft_is_refused(tmp_path):
    wanted = {"mtp": MtpConfig(loss_weight=0.3)}
    with pytest.raises(UserError, match="has no multi-token-prediction layers: take out train.mtp.loss_weight"):
        with one_rank(configured(twin(tmp_path / "plain", **MODELS["qwen3"]), train=wanted)):
            pass
    path = model(tmp_path)
    with one_rank(configured(path)) as actor:
        actor.save(str(tmp_path / "step-1"), {})
    with one_rank(configured(path, train=wanted)) as actor:
        with pytest.raises(UserError, match="was saved without the multi-token-prediction layers"):
            actor.load(str(tmp_path / "step-1"))
