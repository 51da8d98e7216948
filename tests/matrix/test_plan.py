"""Plans: layouts, divisibility, memory, budgets, by the declared cells and by examples of each refusal."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.architecture import Architecture, read_architecture
from matrix.checks import check
from matrix.divisibility import layout_faults, vocabulary_note
from matrix.layout import Layout
from matrix.loader import ROOT, load
from matrix.memory import GIB, engine_memory, trainer_memory
from matrix.memory_fit import memory_faults
from matrix.plan import Planner
from matrix.plan_text import as_data, as_json_lines, lines
from matrix.workload import Workload
from tests.matrix.tree import CELL, CELLS, MODEL, RECIPE, edit, line_of

MATRIX = load(ROOT)
WORK = Workload(
    samples=16,
    prompt_tokens=2048,
    response_tokens=8192,
    microbatch_tokens=10240,
    optimizer_steps=1,
    weight_bytes=2,
    engine_bytes=2,
    cache_width=2,
    gradient_bytes=4,
    distributed_optimizer=True,
    offloaded=0.0,
    recompute=True,
    mtp=False,
    speculative=False,
    utilization=0.9,
    cache_bytes=None,
    release=True,
)
MOE = Layout(tensor=4, data=2, expert=8, sequence_parallel=True, engines=2, engine_tensor=4, colocate=True)


def model(name: str) -> Architecture:
    return read_architecture(MATRIX.models[name].value.architecture)


def a3(**changes: object):
    return MATRIX.hardware["a3"].value.model_copy(update=changes)


# ---- memory -------------------------------------------------------------------------------------------------------------------------------------------------


def test_one_device_holds_eighteen_bytes_a_parameter():
    """ZeRO's count: 2 + 4 + 12 in bfloat16 with float32 gradients; and 4 + 4 + 8 in float32."""
    qwen = model("qwen3-8b")
    memory = trainer_memory(qwen, Layout(), WORK)
    assert memory.weights + memory.gradients + memory.optimizer == pytest.approx(18 * qwen.parameters)
    single = trainer_memory(qwen, Layout(), replace(WORK, weight_bytes=4))
    assert single.weights + single.gradients + single.optimizer == pytest.approx(16 * qwen.parameters)


def test_tensor_parallel_divides_all_but_norms_and_data_parallel_the_optimizer_alone():
    qwen = model("qwen3-8b")
    one, four = trainer_memory(qwen, Layout(), WORK), trainer_memory(qwen, Layout(tensor=4), WORK)
    norms = sum(layer.whole for layer in qwen.layers) + qwen.final_norm
    assert four.weights == pytest.approx((one.weights - 2 * norms) / 4 + 2 * norms)
    data = trainer_memory(qwen, Layout(data=4), WORK)
    assert (data.weights, data.gradients, data.optimizer) == pytest.approx((one.weights, one.gradients, one.optimizer / 4))


def test_experts_divide_over_expert_ranks_and_share_their_own_data_parallel_group():
    moe = model("qwen3-30b-a3b")
    memory = trainer_memory(moe, MOE, WORK)
    experts = sum(layer.experts for layer in moe.layers)
    assert MOE.expert_data == 1
    assert memory.weights == pytest.approx(7.49 * GIB, rel=0.01)
    assert memory.optimizer > 12 * experts / 8  # nothing to divide the experts' states by, the dense part by two


def test_the_fullest_pipeline_stage_counts_and_every_layer_is_somewhere():
    deep = model("deepseek-v3")
    layout = Layout(tensor=4, pipeline=4, data=8, expert=32, sequence_parallel=True, first_stage=13)
    stages = layout.stages(len(deep.layers))
    assert [len(stage) for stage in stages] == [13, 16, 16, 16]
    assert [layer for stage in stages for layer in stage] == list(range(61))
    assert trainer_memory(deep, layout, WORK).total > trainer_memory(deep, replace(layout, pipeline=61, first_stage=None), WORK).total


def test_recompute_and_smaller_microbatches_take_less_and_offloading_moves_the_optimizer_away():
    qwen, layout = model("qwen3-4b"), Layout(tensor=4)
    kept, recomputed = trainer_memory(qwen, layout, replace(WORK, recompute=False)), trainer_memory(qwen, layout, WORK)
    assert kept.activations > 5 * recomputed.activations
    assert trainer_memory(qwen, layout, replace(WORK, microbatch_tokens=5120)).logits == pytest.approx(recomputed.logits / 2)
    assert trainer_memory(qwen, layout, replace(WORK, offloaded=1.0)).optimizer == 0


def test_the_cache_of_a_token_by_kind_of_attention():
    one = Layout(engines=1, engine_tensor=1)
    short = replace(WORK, prompt_tokens=1, response_tokens=999)
    grouped = engine_memory(model("qwen3-4b"), one, short, 64 * GIB)
    assert grouped.cache == 1000 * 2 * (2 * 36 * 8 * 128)  # k and v, layers, heads, head size
    latent = engine_memory(model("deepseek-v3"), one, short, 64 * GIB)
    assert latent.cache == 1000 * 2 * 61 * (512 + 64)
    wide = engine_memory(model("deepseek-v3"), replace(one, engine_tensor=8), short, 64 * GIB)
    assert wide.cache == latent.cache  # a latent has no heads to divide
    more_ranks_than_heads = engine_memory(model("qwen3-30b-a3b"), replace(one, engine_tensor=8), short, 64 * GIB)
    assert more_ranks_than_heads.cache == 1000 * 2 * 48 * 2 * 128  # one of the four heads on each device
    hybrid = engine_memory(model("qwen3.5-27b"), one, short, 64 * GIB)
    assert 1000 * 2 * 16 * 2 * 4 * 256 < hybrid.cache < 1000 * 2 * 16 * 2 * 4 * 256 + 200 * 2**20  # sixteen layers and a state


def test_qwen3_30b_does_not_fit_eight_a3_devices_without_moving_the_optimizer():
    """What brings every first attempt at this cell down; the refusal names the numbers and the mend."""
    (fault,) = memory_faults(model("qwen3-30b-a3b"), MOE, WORK, a3(max_nodes=1, devices_per_node=8))
    key, message = fault
    assert key == ("parallel",)
    assert "training needs 71.0 of 60.0 GiB a device" in message
    assert "optimizer 42.7" in message
    assert "11.0 too much" in message
    assert "It fits with megatron.optimizer.optimizer_cpu_offload: true" in message
    assert memory_faults(model("qwen3-30b-a3b"), MOE, replace(WORK, offloaded=1.0), a3()) == []


def test_more_devices_are_advised_where_there_are_some():
    ((_, message),) = memory_faults(model("qwen3-30b-a3b"), MOE, WORK, a3())
    assert "or parallel.data: 4" in message or "parallel.pipeline: 2" in message


def test_an_engine_too_large_for_its_devices_says_by_how_much():
    work = replace(WORK, offloaded=1.0)
    layout = replace(MOE, engines=8, engine_tensor=1)
    (fault,) = [
        fault for fault in memory_faults(model("qwen3-30b-a3b"), layout, work, a3(device_memory_gib=48.0)) if fault[0] == ("rollout", "tensor_parallel")
    ]
    assert "the engine's weights (56.9 GiB) and workspace leave 0.0 GiB a device for the cache" in fault[1]
    assert "rollout.tensor_parallel: 2" in fault[1]


def test_where_nothing_is_enough_the_advice_is_more_devices():
    ((_, message), *_) = memory_faults(model("deepseek-v3"), Layout(tensor=8), WORK, a3(max_nodes=1))
    assert message.endswith("No single change is enough: take more devices")


def test_shared_devices_hold_both_where_memory_is_not_given_back():
    qwen = model("qwen3-8b")
    layout = Layout(tensor=2, engines=1, engine_tensor=2, colocate=True)
    device = a3(device_memory_gib=96.0)
    assert memory_faults(qwen, layout, WORK, device) == []
    ((key, message),) = memory_faults(qwen, layout, replace(WORK, release=False), a3(device_memory_gib=88.0))
    assert key == ("placement", "mode")
    assert "neither gives its memory back" in message


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["qwen3-4b", "qwen3-30b-a3b", "deepseek-v3", "qwen3.5-35b-a3b", "glm-5"]),
    axis=st.sampled_from(["tensor", "data", "context", "expert"]),
    grow=st.sampled_from([2, 4]),
)
def test_more_ranks_never_need_more_memory_of_weights_gradients_and_optimizer(name: str, axis: str, grow: int):
    shape = model(name)
    base = Layout(tensor=2, data=4, expert=2 if shape.experts else 1, sequence_parallel=True)
    wider = replace(base, **{axis: getattr(base, axis) * grow}) if axis != "expert" or shape.experts else base
    before, after = trainer_memory(shape, base, WORK), trainer_memory(shape, wider, WORK)
    slack = 1 + 1e-9
    for part in ("weights", "gradients"):
        assert getattr(after, part) <= getattr(before, part) * slack
    if axis != "expert":  # experts on more ranks have fewer ranks to share their states with
        assert after.optimizer <= before.optimizer * slack


# ---- divisibility -------------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("qwen3-8b", {"tensor": 3}, "parallel.tensor 3 does not divide the model's 32 attention heads"),
        ("qwen3-8b", {"tensor": 16}, "does not divide the model's 8 key/value heads: choose a divisor of 8"),
        ("qwen3-8b", {"sequence_parallel": True}, "parallel.tensor is 1"),
        ("qwen3-8b", {"pipeline": 5}, "parallel.pipeline 5: 36 layers do not divide over 5 stages"),
        ("deepseek-v3", {"pipeline": 4}, "61 layers do not divide over 4 stages: choose a divisor of 61, or set megatron.model.num_layers_in_first"),
        ("qwen3-8b", {"expert": 2, "data": 2}, "the model has no experts: use 1"),
        ("qwen3-30b-a3b", {"expert": 3, "data": 3}, "parallel.expert 3 does not divide the model's 128 experts"),
        ("qwen3-30b-a3b", {"expert": 8, "data": 2}, "does not divide the 2 ranks of a stage"),
        ("qwen3-30b-a3b", {"tensor": 2}, "needs parallel.sequence_parallel: true"),
        ("qwen3-8b", {"engine_tensor": 6}, "rollout.tensor_parallel 6 does not divide the model's 32 attention heads"),
        ("qwen3.5-27b", {"engine_tensor": 3}, "3 and the model's 4 key/value heads: one must divide the other"),
        ("qwen3-8b", {"colocate": True, "tensor": 2}, "2 trainer ranks, 1 engine devices"),
        ("qwen3-8b", {"data": 32}, "32 data-parallel ranks share 16 samples"),
    ],
)
def test_a_layout_that_does_not_divide_is_refused_with_the_numbers(name: str, changes: dict, said: str):
    messages = [message for _, message in layout_faults(model(name), replace(Layout(), **changes), WORK)]
    assert any(said in message for message in messages), messages


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"microbatch_tokens": 4096}, "train.max_tokens_per_microbatch 4096 cannot hold one sample of 10240 tokens"),
        ({"optimizer_steps": 3}, "3 optimizer steps do not divide the 16 samples of a step"),
        ({"response_tokens": 40_000, "microbatch_tokens": 50_000}, "prompt and response take 42048 positions, the model has 40960"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_with_the_numbers(changes: dict, said: str):
    messages = [message for _, message in layout_faults(model("qwen3-8b"), Layout(), replace(WORK, **changes))]
    assert any(said in message for message in messages), messages


def test_context_parallel_ranks_share_a_sample():
    assert not list(layout_faults(model("qwen3-8b"), Layout(context=4), replace(WORK, microbatch_tokens=2560)))


def test_a_vocabulary_that_is_padded_is_noted():
    odd = replace(model("qwen3-8b"), vocabulary=151_937)
    assert vocabulary_note(odd, Layout(tensor=4)) == "vocabulary of 151937 padded by 3 for parallel.tensor 4"
    assert vocabulary_note(model("qwen3-8b"), Layout(tensor=4)) is None


@settings(deadline=None)
@given(pipeline=st.integers(1, 12), layers=st.integers(1, 96), first=st.none() | st.integers(1, 20), last=st.none() | st.integers(1, 20))
def test_stages_hold_every_layer_once_or_are_refused(pipeline: int, layers: int, first: int | None, last: int | None):
    layout = Layout(pipeline=pipeline, first_stage=first, last_stage=last)
    ends = (first or 0) + (last or 0)
    middle = pipeline - (first is not None) - (last is not None)
    whole = ends == layers if middle == 0 else middle > 0 and layers > ends and (layers - ends) % middle == 0
    if not whole:
        with pytest.raises(ValueError, match="do not divide over"):
            layout.stages(layers)
        return
    stages = layout.stages(layers)
    assert [layer for stage in stages for layer in stage] == list(range(layers))
    assert len(stages) == pipeline
    assert all(stages)


# ---- plans of the declared tiers ----------------------------------------------------------------------------------------------------


def test_every_declared_cell_plans_without_a_fault_and_every_tier_keeps_its_budget():
    planner = Planner(MATRIX)
    for tier in MATRIX.tiers:
        plan = planner.plan(MATRIX.select(tier=tier), tier)
        assert plan.cells, f"tier {tier} is empty"
        assert (plan.faults, plan.budget) == ([], [])
    assert all(cell.trainer or cell.cell.hardware.value.platform == "cpu" or cell.faults for cell in planner.plan(MATRIX.cells.values()).cells)


def test_a_plan_says_devices_memory_time_and_budget():
    planned = Planner(MATRIX).plan(MATRIX.select(tier="nightly", hardware="a3"), "nightly")
    text = "\n".join(lines(planned, verbose=True))
    assert "glm-4.7-flash.a3.non-colocate            8 + 8: train TP4 DP2 EP8 SP, rollout 2 × TP4" in text
    assert "device-hours of 400 (tier nightly)" in text
    assert "image vime-npu-a3 is unbuilt" in text
    data = as_data(planned)
    cell = next(cell for cell in data["cells"] if cell["cell"] == "qwen3-4b.a3.non-colocate")
    assert (cell["devices"], cell["nodes"], cell["devices_class"], cell["queue"]) == (8, 1, 8, "npu-a3")
    assert cell["memory"]["trainer_gib"]["weights"] > 0
    assert cell["device_hours"] == 6.0
    assert any("tq" in text for cell in data["cells"] for text in cell["lacking"])


def test_cells_that_lack_something_take_no_device_hours():
    plan = Planner(MATRIX).plan([MATRIX.cell("qwen3-4b.a3.non-colocate+tq")])
    assert (plan.device_hours, len(plan.runnable)) == (0, 0)


def test_a_tier_over_its_budget_names_the_cells_that_take_most(tree: Path):
    edit(tree, "tiers.yaml", "on a laptop, device_hours: 0.2", "on a laptop, device_hours: 0.05")
    matrix = load(tree)
    plan = Planner(matrix).plan(matrix.select(tier="smoke"), "smoke")
    (fault,) = plan.budget
    assert "tier smoke takes 0.1 device-hours, its budget is 0.05" in fault
    assert "qwen3-4b.cpu.non-colocate" in fault


def test_a_run_longer_than_its_tier_allows_or_its_limit_is_refused(tree: Path):
    edit(tree, RECIPE, "minutes: 1.5", "minutes: 50")
    matrix = load(tree)
    plan = Planner(matrix).plan(matrix.select(tier="smoke"), "smoke")
    assert any("takes 50 minutes, a run of tier smoke may take 4" in text for text in plan.budget)
    assert any("it is ended after 30: set wall_minutes" in str(fault) for fault in plan.faults)


def test_more_devices_than_the_machines_have_are_refused_on_the_cell_s_line(tree: Path):
    edit(tree, CELLS, "    tiers: [smoke, nightly]\n", "    tiers: [smoke, nightly]\n    config: {parallel: {data: 4}, rollout: {engines: 2}}\n")
    planned = Planner(load(tree)).cell(load(tree).cell("qwen3-4b.cpu.non-colocate"))
    (fault,) = planned.faults
    assert "6 devices are 2 nodes of 4 cpu; 1 are declared" in str(fault)
    assert f":{line_of(tree, CELLS, 'config:')}: " in str(fault)
    assert Planner(load(tree)).cell(load(tree).cell(CELL)).faults == ()


@pytest.mark.parametrize("size", ["0", "-1", "2.5", "two", "true", "null", "[2]"])
def test_a_size_that_is_no_size_is_a_fault_and_no_traceback(tree: Path, size: str):
    edit(tree, CELLS, "    tiers: [smoke, nightly]\n", f"    tiers: [smoke, nightly]\n    config: {{parallel: {{tensor: {size}}}}}\n")
    faults = Planner(load(tree)).cell(load(tree).cell("qwen3-4b.cpu.non-colocate")).faults
    (fault,) = faults
    assert "parallel.tensor is" in str(fault)
    assert "a whole number above 0 is wanted" in str(fault)
    assert f":{line_of(tree, CELLS, 'config:')}: " in str(fault)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("parallel: four", "parallel is 'four': a group of keys is wanted"),
        ("vllm: four", "vllm is 'four': a group of keys is wanted"),
        ("megatron: [1]", "megatron is [1]: a group of keys is wanted"),
        ("megatron: {model: x}", "megatron.model is 'x': a group of keys is wanted"),
        ("megatron: {optimizer: {optimizer_offload_fraction: lots}}", "a number between 0 and 1 is wanted"),
        ("vllm: {gpu_memory_utilization: 9}", "vllm.gpu_memory_utilization is 9: a number between 0 and 1 is wanted"),
        ("rollout: {dtype: int4}", "rollout.dtype is 'int4': one of float32, bfloat16, float16 is wanted"),
    ],
)
def test_what_is_no_configuration_is_a_fault_of_plan_and_check_and_no_traceback(tree: Path, config: str, said: str):
    edit(tree, CELLS, "    tiers: [smoke, nightly]\n", f"    tiers: [smoke, nightly]\n    config: {{{config}}}\n")
    matrix = load(tree)
    assert any(said in str(fault) for fault in Planner(matrix).cell(matrix.cell("qwen3-4b.cpu.non-colocate")).faults)
    assert check(matrix)


def test_an_architecture_that_is_no_architecture_is_not_estimated(tree: Path):
    edit(tree, MODEL, "    hidden_size: 96", "    hidden_size: x")
    planned = Planner(load(tree)).cell(load(tree).cell(CELL))
    assert any("not estimated: 'hidden_size' in the architecture of a 'qwen3' is 'x': a whole number is wanted" in note for note in planned.notes)


def test_the_plan_as_json_is_its_data_with_a_line_for_each_cell(tree: Path):
    planned = Planner(load(tree)).plan(load(tree).select())
    for data in (as_data(planned), {**as_data(planned), "cells": []}, {**as_data(planned), "none": {"a": 'the "cells": []'}}):
        text = as_json_lines(data)
        assert json.loads(text) == data
        assert sum('"cell": ' in line for line in text.splitlines()) == len(data["cells"])


def test_five_thousand_cells_are_planned_in_two_seconds_of_processor():
    """Of the checkout's own, over and over, to the last character of the JSON."""
    matrix = load(ROOT)
    cells = (matrix.select() * 50)[:5000]
    begin = time.process_time()
    planned = Planner(matrix).plan(cells)
    assert len(json.loads(as_json_lines(as_data(planned)))["cells"]) == 5000
    assert time.process_time() - begin < 2.0
