"""One trainer rank, for real: Megatron-Core on CPU in this process."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tests.training.ranks import configured, one_rank, random_batch, twin
from vime.errors import RunError, UserError

pytestmark = pytest.mark.heavy

METRICS = {
    *(f"train/{name}" for name in ("loss", "grad_norm", "lr", "entropy", "ppo_kl", "clip_frac", "importance_mean", "importance_capped_frac")),
    *(f"train/logprob_gap_{name}" for name in ("mean", "p99", "max")),
    "rollout/nll_minus_entropy_z",
}
SGD = {"optimizer": {"optimizer": "sgd", "sgd_momentum": 0.0}}


def hugging_face_logprobs(path: str, sequences, temperature: float = 1.0) -> list[np.ndarray]:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    out = []
    with torch.no_grad():
        for sequence in sequences:
            logprobs = (model(torch.tensor([list(sequence)])).logits[0, :-1] / temperature).log_softmax(-1)
            out.append(logprobs.gather(1, torch.tensor(list(sequence[1:]))[:, None])[:, 0].numpy())
    return out


def sequences(seed: int = 0, count: int = 20) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 48, size=int(rng.integers(2, 90))).tolist() for _ in range(count)]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("changes", [{}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "num_key_value_heads": 4}])
def test_logprobs_equal_hugging_faces(tmp_path, tied, changes):
    path = twin(tmp_path / "twin", tie_word_embeddings=tied, **changes)
    with one_rank(configured(path)) as actor:
        actor.export_hf(str(tmp_path / "hf"))
        got = actor.logprobs(sequences())
    for mine, theirs in zip(got, hugging_face_logprobs(str(tmp_path / "hf"), sequences()), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_hugging_faces_within_1e_4(tmp_path, tied):
    import transformers

    from vime.training.batch import TrainBatch, pack
    from vime.training.forward import packed

    path = twin(tmp_path / "twin", tie_word_embeddings=tied)
    ids = list(range(3, 43))
    with one_rank(configured(path)) as actor, torch.no_grad():
        actor.export_hf(str(tmp_path / "hf"))
        micro = pack(TrainBatch.of([ids, ids[:7]], [[0] * 40, [0] * 7]), [0, 1], actor.device)
        mine = actor.trained.model(input_ids=micro.ids_T[None], position_ids=micro.positions_T[None], attention_mask=None, packed_seq_params=packed(micro))[0]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    theirs = torch.cat([model(torch.tensor([part])).logits[0] for part in (ids, ids[:7])])
    assert theirs.abs().max() > 1, "logits near zero would prove nothing"
    torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_load_and_export_are_inverse_bit_for_bit(tmp_path, tied):
    from safetensors.torch import load_file

    path = twin(tmp_path / "twin", tie_word_embeddings=tied)
    with one_rank(configured(path)) as actor:
        actor.export_hf(str(tmp_path / "first"))
    with one_rank(configured(str(tmp_path / "first"), model={"random_init_seed": None})) as actor:
        actor.export_hf(str(tmp_path / "second"))
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert first.keys() == second.keys() and ("lm_head.weight" in first) is not tied
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_packed_logprobs_equal_each_sample_alone(tmp_path):
    with one_rank(configured(twin(tmp_path / "twin"))) as actor:
        together = actor.logprobs(sequences())
        alone = [actor.logprobs([sequence])[0] for sequence in sequences()]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6, rtol=0)


def weights(actor) -> dict[str, torch.Tensor]:
    return {shard.hf_name: shard.tensor.clone() for shard in actor.shards()}


def trained(config, batch, steps: int = 1):
    """Weights and metrics after `steps` steps of a fresh actor."""
    with one_rank(config) as actor:
        metrics = [actor.train(batch, step) for step in range(steps)]
        return weights(actor), metrics


def close(one, other, atol: float) -> None:
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=atol, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_a_step_does_not_depend_on_micro_batching(tmp_path, aggregation):
    path, batch = twin(tmp_path / "twin"), random_batch()
    # SGD: the update is the gradient itself. Adam's first step is lr·sign(g), which would hide a wrong scale.
    common = {"algo": {"aggregation": aggregation, "entropy_coef": 0.01}, "megatron": SGD}
    results = [
        trained(configured(path, train={"max_tokens_per_microbatch": limit, "lr": 1.0, "clip_grad": 0.0, "distributed_optimizer": False}, **common), batch)
        for limit in (4096, 60, 20)
    ]
    for other, metrics in results[1:]:
        close(results[0][0], other, atol=2e-6)
        for key, value in results[0][1][0].items():
            assert metrics[0][key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


def test_distributed_optimizer_changes_nothing(tmp_path):
    path, batch = twin(tmp_path / "twin"), random_batch()
    one, _ = trained(configured(path, train={"distributed_optimizer": True}), batch, 3)
    other, _ = trained(configured(path, train={"distributed_optimizer": False}), batch, 3)
    close(one, other, atol=1e-6)


def test_gradient_of_the_loss_is_right(tmp_path):
    """One SGD step against autograd on Hugging Face's model with the loss written out by hand."""
    import transformers

    path, batch = twin(tmp_path / "twin", tie_word_embeddings=False), random_batch(samples=6, temperature=0.7)
    config = configured(path, temperature=0.7, train={"lr": 0.5, "clip_grad": 0.0, "distributed_optimizer": False}, megatron=SGD)
    with one_rank(config) as actor:
        actor.export_hf(str(tmp_path / "hf"))
        metrics = actor.train(batch, 0)
        got = weights(actor)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    loss, count = 0.0, batch.loss_mask.sum()
    for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.tensor(batch.ids[start:stop])
        logprobs = (model(ids[None]).logits[0, :-1] / 0.7).log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        weight = (logprobs.detach() - torch.tensor(batch.engine_logprobs[start + 1 : stop])).exp().clamp(max=2.0)
        ratio = (logprobs - logprobs.detach()).exp()
        loss = loss - (ratio * weight * torch.tensor(batch.advantages[start + 1 : stop]) * torch.tensor(batch.loss_mask[start + 1 : stop]) / count).sum()
    loss.backward()
    assert metrics["train/loss"] == pytest.approx(float(loss), abs=1e-6)
    total = torch.sqrt(sum(parameter.grad.square().sum() for parameter in model.parameters()))
    assert metrics["train/grad_norm"] == pytest.approx(float(total), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(got[name], (parameter - 0.5 * parameter.grad).detach(), atol=2e-6, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


def test_the_clip_binds_when_two_steps_share_a_rollout(tmp_path):
    path, batch = twin(tmp_path / "twin"), random_batch(samples=16)
    train = {"optimizer_steps_per_rollout": 2, "lr": 5e-2}
    with one_rank(configured(path, train=train)) as actor:
        lp = actor.logprobs([batch.ids[a:b].tolist() for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)])
    exact = np.concatenate([np.concatenate([[0.0], values]) for values in lp]).astype(np.float32) * batch.loss_mask
    batch = dataclasses.replace(batch, engine_logprobs=exact)
    tight, metrics = trained(configured(path, train=train, algo={"clip_low": 0.01, "clip_high": 0.01}), batch)
    loose, unclipped = trained(configured(path, train=train, algo={"clip_low": 1.0, "clip_high": 1e6}), batch)
    assert metrics[0]["train/clip_frac"] > 0.1 and unclipped[0]["train/clip_frac"] == 0.0
    assert metrics[0]["train/ppo_kl"] != 0.0
    assert metrics[0]["train/logprob_gap_max"] < 1e-4  # measured against the weights that sampled, not those after the first update
    assert max((tight[name] - loose[name]).abs().max() for name in tight) > 1e-4, "a clip that binds changes the second update"


def test_old_logprobs_of_the_first_step_are_the_current_ones_even_with_a_pass_of_their_own(tmp_path):
    path, batch = twin(tmp_path / "twin"), random_batch()
    detached, one = trained(configured(path), batch)
    own, two = trained(configured(path, algo={"check_old_logprobs": True}), batch)
    close(detached, own, atol=1e-6)
    assert abs(two[0]["train/ppo_kl"]) < 1e-7 and one[0]["train/ppo_kl"] == 0.0


def test_engine_logprobs_as_the_old_ones_reach_the_loss(tmp_path):
    path, batch = twin(tmp_path / "twin"), random_batch()
    _, metrics = trained(configured(path, algo={"old_logprobs": "engine", "importance": "none"}), batch)
    assert metrics[0]["train/clip_frac"] > 0 and metrics[0]["train/ppo_kl"] != 0
    assert "train/importance_mean" not in metrics[0]


@pytest.mark.parametrize(
    ("algo", "train"),
    [
        ({"dual_clip": 1.01, "old_logprobs": "engine", "importance": "none"}, {}),
        ({"importance_cap": 1.0}, {}),
        ({"importance": "none"}, {}),
        ({"entropy_coef": 0.1}, {}),
        ({"aggregation": "sequence"}, {}),
        ({}, {"weight_decay": 0.5}),
        ({}, {"beta1": 0.1}),
        ({}, {"clip_grad": 1e-3}),
    ],
)
def test_an_option_that_is_set_reaches_the_update(tmp_path, algo, train):
    path, batch = twin(tmp_path / "twin"), random_batch()
    base = {key: value for key, value in algo.items() if key in ("old_logprobs", "importance") and len(algo) > 1}
    # eps far above the gradients makes Adam's step proportional to them
    common = {"eps": 10.0, "lr": 1.0}
    plain, _ = trained(configured(path, algo=base, train=common), batch, 2)
    changed, _ = trained(configured(path, algo=algo, train={**common, **train}), batch, 2)
    assert max((plain[name] - changed[name]).abs().max() for name in plain) > 1e-6


def test_kl_to_the_reference_is_zero_at_first_and_pulls_back_later(tmp_path):
    path, batch = twin(tmp_path / "twin"), random_batch()
    _, metrics = trained(configured(path, algo={"kl_coef": 1e-6}, train={"lr": 1e-2}), batch, 4)
    _, pulled = trained(configured(path, algo={"kl_coef": 10.0}, train={"lr": 1e-2}), batch, 4)
    assert abs(metrics[0]["train/kl_ref"]) < 1e-9 and metrics[3]["train/kl_ref"] > 1e-3
    assert pulled[3]["train/kl_ref"] < metrics[3]["train/kl_ref"]


def test_entropy_rises_when_only_the_entropy_term_is_on(tmp_path):
    batch = random_batch()
    batch = dataclasses.replace(batch, advantages=np.zeros_like(batch.advantages))
    _, metrics = trained(configured(twin(tmp_path / "twin"), algo={"entropy_coef": 0.1}, train={"lr": 1e-2}), batch, 4)
    assert metrics[3]["train/entropy"] > metrics[0]["train/entropy"]


def test_a_gradient_that_is_not_finite_stops_the_run_with_the_weights_whole(tmp_path):
    batch = random_batch()
    bad = dataclasses.replace(batch, advantages=np.where(batch.loss_mask > 0, np.float32(1e38), 0).astype(np.float32))
    with one_rank(configured(twin(tmp_path / "twin"), algo={"importance": "none"})) as actor:
        actor.train(batch, 0)
        before = weights(actor)
        with pytest.raises(RunError, match="train: step 7: the gradient norm is (nan|inf)") as caught:
            actor.train(bad, 7)
        assert caught.value.stage == "train"
        assert all(torch.equal(before[name], tensor) for name, tensor in weights(actor).items())


def test_masked_fillers_change_nothing(tmp_path):
    path, batch = twin(tmp_path / "twin"), random_batch()
    filled = dataclasses.replace(
        batch,
        engine_logprobs=np.where(batch.loss_mask > 0, batch.engine_logprobs, np.nan),
        advantages=np.where(batch.loss_mask > 0, batch.advantages, 1e30).astype(np.float32),
    )
    one, two = trained(configured(path), batch)[0], trained(configured(path), filled)[0]
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_bad_batches_name_step_and_sample(tmp_path):
    batch = random_batch()
    with one_rank(configured(twin(tmp_path / "twin"), train={"max_tokens_per_microbatch": 10})) as actor:
        with pytest.raises(RunError, match="step 3: sample 0-.* tokens, above train.max_tokens_per_microbatch 10"):
            actor.train(batch, 3)
    with one_rank(configured(twin(tmp_path / "twin"))) as actor:
        with pytest.raises(RunError, match="step 4: every token of 12 samples is masked"):
            actor.train(dataclasses.replace(batch, loss_mask=np.zeros_like(batch.loss_mask)), 4)


def test_a_part_of_nothing_but_masked_samples_makes_no_update(tmp_path):
    batch = random_batch(samples=8)
    half = int(batch.offsets[4])
    mask = np.concatenate([np.zeros(half, np.uint8), batch.loss_mask[half:]])
    with one_rank(configured(twin(tmp_path / "twin"), train={"optimizer_steps_per_rollout": 2})) as actor:
        metrics = actor.train(dataclasses.replace(batch, loss_mask=mask), 0)
        counts = {float(state["step"]) for part in actor.trained.optimizer.chained_optimizers for state in part.optimizer.state.values()}
    assert counts == {1.0} and metrics["train/ppo_kl"] == pytest.approx(0.0, abs=1e-6)


def test_metrics_are_complete_and_sampler_statistic_is_off_under_top_p(tmp_path):
    path, batch = twin(tmp_path / "twin"), random_batch()
    _, (metrics,) = trained(configured(path), batch)
    assert set(metrics) == METRICS
    assert all(np.isfinite(value) for value in metrics.values())
    config = configured(path)
    _, (metrics,) = trained(dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, top_p=0.9)), batch)
    assert "rollout/nll_minus_entropy_z" not in metrics


def test_sampler_statistic_is_small_for_the_models_own_samples_and_large_for_colder_ones(tmp_path):
    """Tokens drawn from the model's own next-token distribution, at the temperature the trainer assumes and at a lower one."""
    import transformers

    path = twin(tmp_path / "twin", initializer_range=0.3)
    with one_rank(configured(path, train={"lr": 1e-9})) as actor:
        actor.export_hf(str(tmp_path / "hf"))
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
        values = []
        for temperature in (1.0, 0.7):
            torch.manual_seed(0)
            ids = torch.randint(3, 48, (200, 1))
            with torch.no_grad():
                for _ in range(8):
                    ids = torch.cat([ids, torch.multinomial((model(ids).logits[:, -1] / temperature).softmax(-1), 1)], 1)
            from vime.training.batch import TrainBatch

            values.append(actor.train(TrainBatch.of(ids.tolist(), [[0] + [1] * 8] * 200, group_ids=np.zeros(200)), 0)["rollout/nll_minus_entropy_z"])
    assert abs(values[0]) < 4 and values[1] < -10


def test_supervised_steps_lower_the_loss(tmp_path):
    batch = random_batch()
    with one_rank(configured(twin(tmp_path / "twin"), train={"lr": 1e-2})) as actor:
        losses = [actor.sft_step(batch, step)["train/loss"] for step in range(8)]
    assert losses[-1] < 0.5 * losses[0]


def test_random_weights_are_hugging_faces_kind_and_follow_their_seed(tmp_path):
    path = twin(tmp_path / "twin", tie_word_embeddings=False)
    made = []
    for seed in (1, 1, 2):
        with one_rank(configured(path, model={"random_init_seed": seed})) as actor:
            made.append(weights(actor))
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
    assert not torch.equal(made[0]["model.layers.0.mlp.up_proj.weight"], made[2]["model.layers.0.mlp.up_proj.weight"])
    assert made[0]["model.embed_tokens.weight"].std() == pytest.approx(0.1, rel=0.05)
    assert (made[0]["model.norm.weight"] == 1).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"megatron": {"model": {"num_layers": 4}}}, r"megatron.model.num_layers comes from the model's config.json"),
        ({"megatron": {"optimizer": {"lr": 1.0}}}, r"megatron.optimizer.lr is train.lr"),
        ({"megatron": {"ddp": {"overlap_param_gather": True}}}, r"megatron.ddp.overlap_param_gather would leave the weights ungathered"),
        ({"megatron": {"model": {"recompute_granularty": "full"}}}, r"no such field; did you mean recompute_granularity\?"),
        ({"megatron": {"modle": {}}}, r"megatron.modle: there is no such block"),
        ({"model": {"dtype": "float16"}}, "model.dtype: float16 needs loss scaling"),
    ],
)
def test_what_vime_owns_or_cannot_do_is_refused(tmp_path, changes, message):
    from vime.models.hf_io import read_config
    from vime.models.registry import family_for
    from vime.training.model import overrides, transformer_config

    config = configured(twin(tmp_path / "twin"), **changes)
    hf_config = read_config(config.model.path)

    def everything():
        transformer_config(config, family_for(hf_config), hf_config, "cpu")
        overrides(config, "optimizer")
        overrides(config, "ddp")

    with pytest.raises(UserError, match=message):
        everything()


def test_sgd_cannot_be_distributed(tmp_path):
    with pytest.raises(UserError, match="set train.distributed_optimizer: false"), one_rank(configured(twin(tmp_path / "twin"), megatron=SGD)):
        pass


def test_recompute_and_overlap_change_nothing(tmp_path):
    path, batch = twin(tmp_path / "twin"), random_batch()
    plain, _ = trained(configured(path), batch, 2)
    recomputed, _ = trained(configured(path, train={"recompute": "full"}), batch, 2)
    overlapped, _ = trained(configured(path, train={"max_tokens_per_microbatch": 40}, megatron={"ddp": {"overlap_grad_reduce": True}}), batch, 2)
    close(plain, recomputed, atol=1e-6)
    close(plain, overlapped, atol=2e-5)
