"""Each mend of vLLM's CPU build is needed and right: every test computes with and without it, and fails when the installed vLLM no longer needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rollout.child import STATE, EngineChild
from tests.weights.models import ReferenceTrainer
from vime.platforms.cpu_vllm import flat_heads

pytestmark = pytest.mark.heavy
SEQUENCES = [[5, 9, 12, 33, 7, 50, 2, 8]]
OBSOLETE = "the installed vLLM does this right by itself: remove the mend from vime/platforms/cpu_vllm.py and this test"


def rotate(_: Any, mended: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(CPU kernel, native formula) of a [T, H, D] query."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    layer = next(module for module in _model().modules() if isinstance(module, RotaryEmbedding))
    wrapper = RotaryEmbedding.forward_cpu
    assert getattr(wrapper, "rotates_every_head", False), "the engine's process was not bootstrapped"
    original = next(cell.cell_contents for cell in wrapper.__closure__ if callable(cell.cell_contents))
    torch.manual_seed(0)
    query, key, positions = torch.randn(5, 4, layer.head_size), torch.randn(5, 4, layer.head_size), torch.arange(3, 8)
    want, _ = layer.forward_native(positions, query.clone().reshape(5, -1), key.clone().reshape(5, -1))
    forward = wrapper if mended else original
    got, _ = forward(layer, positions, query.clone(), key.clone())
    return got.reshape(5, -1), want.reshape(5, -1)


def _model() -> torch.nn.Module:
    return STATE["engine"]._adapter._engine.model_executor.driver_worker.worker.model_runner.model


def test_rotary_embedding_turns_every_head(dense_engine: EngineChild) -> None:
    got, want = dense_engine.run(rotate, True)
    assert (got - want).abs().max() < 1e-5
    got, want = dense_engine.run(rotate, False)
    assert (got - want).abs().max() > 1e-2, OBSOLETE


def reload_weights(_: Any, tensors: list[tuple[str, torch.Tensor]], mended: bool) -> list[Any]:
    """Reload by vLLM's own means, with or without the mends; scores afterwards."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    from vime.platforms import registry

    platform, model, engine = registry.get("cpu"), _model(), STATE["engine"]
    config = engine._adapter._engine.vllm_config
    with set_current_vllm_config(config):
        if mended:
            platform.before_weight_reload(model)
        initialize_layerwise_reload(model)
        model.load_weights(tensors)
        finalize_layerwise_reload(model, config.model_config)
        if mended:
            platform.after_weight_reload(model)
    engine._adapter.reset_caches()
    return engine.logprobs(SEQUENCES)


def make_clean(_: Any) -> None:
    """Whatever an earlier test left behind: these tests bring their own weights."""
    STATE["engine"]._state, STATE["engine"]._paused = "clean", False


def gaps(engine: EngineChild, path: Path) -> tuple[float, float]:
    """|Δ log p| against transformers after a reload of changed weights: (with, without the mends)."""
    trainer = ReferenceTrainer(path)
    engine.run(make_clean)
    trainer.change(1)
    tensors = [(shard.hf_name, shard.tensor.clone()) for shard in trainer.shards()]
    reference = trainer.logprobs(SEQUENCES)[0]
    without, with_mends = (abs(engine.run(reload_weights, tensors, mended)[0] - reference).max() for mended in (False, True))
    return float(with_mends), float(without)


def test_a_tied_output_head_is_packed_again_after_a_reload(dense_engine: EngineChild, dense_model: Path) -> None:
    with_mend, without = gaps(dense_engine, dense_model)
    assert with_mend < 1e-5
    assert without > 1e-2, OBSOLETE


def test_moe_layers_are_packed_again_after_a_reload(mixture_engine: EngineChild, mixture_model: Path) -> None:
    with_mend, without = gaps(mixture_engine, mixture_model)
    assert with_mend < 1e-5
    assert without > 1e-2, OBSOLETE


def choose(_: Any, mended: bool) -> Any:
    """(weights, experts) of four tokens over eight experts with a correction bias; the assertion's name where vLLM refuses."""
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

    wrapper = CPURouter._compute_routing
    assert getattr(wrapper, "routes_by_sigmoid", False), "the engine's process was not bootstrapped"
    original = next(cell.cell_contents for cell in wrapper.__closure__ if getattr(cell.cell_contents, "__name__", "") == "_compute_routing")
    generator = torch.Generator().manual_seed(0)
    logits, bias = torch.randn(4, 8, generator=generator), torch.randn(8, generator=generator)
    router = CPURouter(2, 8, scoring_func="sigmoid", e_score_correction_bias=bias, renormalize=True)
    try:
        return logits, bias, *(wrapper if mended else original)(router, torch.zeros(4, 1), logits, None)
    except AssertionError:
        return "refused"


def test_sigmoid_routing_without_groups(dense_engine: EngineChild) -> None:
    logits, bias, weights, experts = dense_engine.run(choose, True)
    chosen = (logits.sigmoid() + bias).topk(2).indices
    assert torch.equal(experts.long().sort().values, chosen.sort().values)
    expected = logits.sigmoid().gather(1, experts.long())
    torch.testing.assert_close(weights, expected / expected.sum(-1, keepdim=True))
    assert dense_engine.run(choose, False) == "refused", OBSOLETE


def expand(_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A temperature for each drafted token of three requests with 2, 0 and 1 of them: by vLLM's CPU kernel, and by the mend."""
    from vllm.v1.sample import rejection_sampler

    given, cumulated = torch.tensor([0.5, 0.7, 0.0]), torch.tensor([2, 2, 3], dtype=torch.int32)
    by_kernel = torch.full((3,), -1.0)
    rejection_sampler._expand(by_kernel, given, cumulated, 0, 1)
    return by_kernel, rejection_sampler.expand_batch_to_tokens(given, cumulated, 3, replace_from=0, replace_to=1)


def test_drafted_tokens_are_sampled_at_their_requests_temperature(dense_engine: EngineChild) -> None:
    by_kernel, mended = dense_engine.run(expand)
    assert mended.tolist() == [0.5, 0.5, 1.0]
    assert by_kernel.tolist() != mended.tolist(), OBSOLETE


def reload_with_partial_loader(_: Any, mended: bool) -> str:
    """vLLM's layer-wise reload begun on a layer whose loader is a functools.partial."""
    from functools import partial

    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload, record_metadata_for_reloading

    from vime.rollout.vllm_compat.worker import name_loaders

    layer = torch.nn.Linear(2, 2)
    layer.weight.weight_loader = partial(lambda parameter, loaded, scale: parameter.data.copy_(loaded * scale), scale=1.0)  # type: ignore[assignment]
    record_metadata_for_reloading(layer)
    if mended:
        name_loaders(layer)
    try:
        initialize_layerwise_reload(layer)
    except AttributeError as error:
        return str(error)
    return "begun"


def test_layers_with_partial_loaders_can_be_reloaded(dense_engine: EngineChild) -> None:
    """MiniMax-M2's query and key norms. The mend is in `vllm_compat/worker.py`: it is no matter of the CPU."""
    assert dense_engine.run(reload_with_partial_loader, True) == "begun"
    assert "__name__" in dense_engine.run(reload_with_partial_loader, False), OBSOLETE


def sleep_changes_nothing(_: Any) -> bool:
    """Whether vLLM's CPU worker keeps its memory when told to sleep."""
    worker = STATE["engine"]._adapter._engine.model_executor.driver_worker.worker
    before = [parameter.data_ptr() for parameter in _model().parameters()]
    worker.sleep(level=1)
    return before == [parameter.data_ptr() for parameter in _model().parameters()]


def test_sleep_is_declared_missing_because_it_does_nothing(dense_engine: EngineChild) -> None:
    assert dense_engine.run(sleep_changes_nothing), "vLLM's CPU build can sleep now: make it a capability"


def test_only_three_dimensional_queries_are_reshaped() -> None:
    assert flat_heads(None) is None
    flat = torch.randn(5, 8)
    assert flat_heads(flat) is flat
    assert flat_heads(torch.randn(5, 2, 4)).shape == (5, 8)
