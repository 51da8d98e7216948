"""What `show` prints for each hardware, and in what two cells differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matrix.difference import difference
from matrix.launch import launch
from matrix.loader import ROOT, load
from matrix.prerequisites import lacking
from matrix.resolver import resolve
from tests.matrix.test_cli import matrix as run_matrix
from tests.matrix.tree import CELL, CELLS, RECIPE, edit

MATRIX = load(ROOT)
HARDWARE = sorted(MATRIX.hardware)


def first_cell(hardware: str) -> str:
    return next(str(cell) for cell in MATRIX.select(hardware=hardware) if not lacking(MATRIX, cell))


@pytest.mark.parametrize("hardware", HARDWARE)
def test_every_hardware_has_its_environment_and_commands(hardware: str):
    cell = MATRIX.cell(first_cell(hardware))
    told = launch(MATRIX, cell, 100)
    assert cell.hardware.value.environment.items() <= told.environment.items()
    variable = cell.hardware.value.visible_devices
    assert variable is None or told.environment[variable].startswith("0,1")
    assert told.run[0] == f"python -m matrix show {cell} --seed 100 > {cell.key}.yaml"
    assert told.run[1].startswith(f"vime train {cell.key}.yaml")


def test_one_machine_s_ray_is_vime_s_own():
    told = launch(MATRIX, MATRIX.cell("qwen3-4b.a2.non-colocate"), 100)
    assert (told.head, told.workers, told.after) == ([], [], [])
    assert told.environment["ASCEND_RT_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"


def test_several_machines_join_one_cluster_first():
    told = launch(MATRIX, MATRIX.cell("glm-4.7-flash.a3.non-colocate+cp"), 100)
    assert told.head == ["ray start --disable-usage-stats --resources='{\"NPU\": 16}' --head --node-ip-address=$HEAD_IP --port=6379"]
    assert told.workers == ["ray start --disable-usage-stats --resources='{\"NPU\": 16}' --address=$HEAD_IP:6379"]
    assert "--set placement.ray_address=$HEAD_IP:6379" in told.run[1]
    assert told.after == ["ray stop"]
    gpus = launch(MATRIX, MATRIX.cell("qwen3.5-35b-a3b.h200.non-colocate"), 100)
    assert gpus.workers == ["ray start --disable-usage-stats --num-gpus=8 --address=$HEAD_IP:6379"]


def test_a_converted_checkpoint_is_made_first():
    told = launch(MATRIX, MATRIX.cell("qwen3-30b-a3b.a3.colocate+torch-dist"), 100)
    assert told.prepare == ["vime convert hf-to-torch-dist Qwen/Qwen3-30B-A3B .cache/torch-dist/Qwen3-30B-A3B"]
    config = resolve("qwen3-30b-a3b.a3.colocate+torch-dist", 100, MATRIX)
    assert config["model"]["load"] == "torch-dist"
    assert config["model"]["torch_dist_path"].endswith(".cache/torch-dist/Qwen3-30B-A3B")


def test_an_image_is_named_by_its_content_and_never_made_up():
    cell = MATRIX.cell("qwen3-4b.a2.non-colocate")
    told = launch(MATRIX, cell, 100)
    assert told.container is None
    assert "image vime-npu-a2 is unbuilt: no CI step can run" in told.remarks
    digest = "sha256:" + "a" * 64
    built = cell.hardware.value.model_copy(update={"image": cell.hardware.value.image.model_copy(update={"digest": digest})})
    from dataclasses import replace

    told = launch(MATRIX, replace(cell, hardware=replace(cell.hardware, value=built)), 100)
    assert told.container is not None
    assert "--device /dev/davinci0 " in told.container
    assert "--device /dev/davinci7 " in told.container
    assert "davinci8" not in told.container
    assert "--device /dev/davinci_manager" in told.container
    assert told.container.endswith(f"vime-npu-a2@{digest}")


def test_what_is_not_here_is_said_before_anybody_waits_for_a_machine():
    remarks = launch(MATRIX, MATRIX.cell("qwen3-4b.a3.non-colocate+tq"), 100).remarks
    assert any("cannot run yet: tq: vime has no TransferQueue data plane yet" in remark for remark in remarks)
    assert any("datasets/dapo-math-17k.jsonl is not here: make it from the data set BytedTsinghua-SIA/DAPO-Math-17k" in remark for remark in remarks)
    assert "weights of Qwen/Qwen3-4B are unpinned: write the commit under hf_revision" in remarks
    get = "Qwen/Qwen3-4B/ is not here: get it with 'hf download Qwen/Qwen3-4B --local-dir Qwen/Qwen3-4B', or 'modelscope download --model Qwen/Qwen3-4B"
    assert any(remark.startswith(get) for remark in remarks)


# One cell of each model, hardware and mode; their long forms have the same keys.
ONE_OF_EACH = {(cell.id.model, cell.id.hardware, cell.id.mode): str(cell) for cell in MATRIX.cells.values() if not lacking(MATRIX, cell)}


@pytest.mark.parametrize("cell", sorted(ONE_OF_EACH.values()))
def test_vime_accepts_every_cell_s_configuration(cell: str, tmp_path: Path):
    """vime's own resolution of the file that `show` writes: keys, types, and everything it can check without the model."""
    from vime.config.resolve import resolve as vime_resolve

    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(resolve(cell, 100, MATRIX)))
    assert vime_resolve(file).config.labels["cell"] == cell


# ---- differences --------------------------------------------------------------------------------------------------------------------------------------------


def test_npu_against_gpu_differs_in_its_hardware_alone():
    found = difference(MATRIX, MATRIX.cell("qwen3-4b.a3.non-colocate"), MATRIX.cell("qwen3-4b.h100.non-colocate"))
    assert (found.axes, found.beside, found.same_science, found.single) == (("hardware",), (), True, True)
    assert "platform" in {change.key for change in found.along}
    assert "versions.vllm" in {change.key for change in found.along}


def test_what_differs_beside_the_axis_is_listed():
    found = difference(MATRIX, MATRIX.cell("qwen3-30b-a3b.a3.colocate"), MATRIX.cell("qwen3-30b-a3b.h200.colocate"))
    assert [change.key for change in found.beside] == [
        "megatron.optimizer.optimizer_cpu_offload",
        "megatron.optimizer.optimizer_offload_fraction",
        "megatron.optimizer.use_precision_aware_optimizer",
    ]
    assert not found.single
    assert "differs beside them:" in found.lines()


def test_a_mode_changes_what_it_stands_for():
    found = difference(MATRIX, MATRIX.cell("glm-4.7-flash.a3.non-colocate"), MATRIX.cell("glm-4.7-flash.a3.non-colocate+mtp+eager"))
    assert (found.axes, found.beside, found.same_science) == (("mode",), (), True)
    assert {change.key for change in found.along} == {"rollout.speculative.method", "rollout.speculative.tokens", "train.mtp.loss_weight", "vllm.enforce_eager"}


def test_another_recipe_is_another_science_and_says_so(tree: Path):
    (tree / RECIPE).with_name("hot.yaml").write_text(
        (tree / RECIPE).read_text().replace("name: spell-backward", "name: hot", 1).replace("lr: 5.0e-4", "lr: 5.0e-3")
    )
    (tree / CELLS).write_text((tree / CELLS).read_text() + "  - {id: qwen3-4b.cpu.colocate@hot, recipe: hot, tiers: [nightly]}\n")
    done = run_matrix("show", CELL, "--diff", f"{CELL}@hot", root=tree)
    assert done.returncode == 1
    assert "axes that differ: variant" in done.stdout
    assert "same science: no, their curves are not comparable" in done.stdout
    assert "  train.lr: 0.0005 → 0.005 (recipe)" in done.stdout


def test_a_cell_does_not_differ_from_itself(tree: Path):
    done = run_matrix("show", CELL, "--diff", CELL, "--json", root=tree)
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"axes": [], "along": [], "beside": [], "same_science": True}


def test_show_refuses_what_vime_s_schema_or_a_catalogue_would(tree: Path):
    edit(tree, CELLS, "    tiers: [smoke, nightly]\n", "    tiers: [smoke, nightly]\n    config: {vllm: {max_num_seqs: many}}\n")
    done = run_matrix("show", "qwen3-4b.cpu.non-colocate", root=tree)
    assert done.returncode == 1
    assert "vllm.max_num_seqs: 'many' is not what vllm 0.32.0 takes (int | None)" in done.stderr
    assert "Traceback" not in done.stderr
