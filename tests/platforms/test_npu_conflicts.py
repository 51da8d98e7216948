"""Known conflicts are found before anything starts, and say what to install."""

import pytest

from vime.platforms.npu_conflicts import conflicts

GOOD = {"torch": "2.10.0+cpu", "torch-npu": "2.10.0.post4", "vllm": "0.23.0", "vllm-ascend": "0.23.0.post1", "triton-ascend": "3.2.2"}


def test_the_pinned_set_has_none():
    assert conflicts({"model_type": "qwen3_5_moe"}, GOOD) == []


@pytest.mark.parametrize(
    ("model", "change", "says"),
    [
        ("qwen3", {"torch": "2.11.0"}, "torch-npu 2.10.0.post4 needs torch 2.10, this environment has 2.11.0"),
        ("qwen3", {"vllm": "0.22.1"}, "vllm-ascend 0.23.0.post1 needs vllm 0.23.0, this environment has 0.22.1"),
        ("qwen3_5", {"triton": "3.5.0"}, "triton 3.5.0 and triton-ascend 3.2.2 both install the module `triton`"),
        ("qwen3_5", {"triton-ascend": None}, "needs triton-ascend to be served: pip install triton-ascend==3.2.2"),
        ("qwen3_next", {"flash-linear-attention": "0.4"}, "pip uninstall -y flash-linear-attention"),
    ],
)
def test_each_conflict_names_versions_and_mend(model, change, says):
    packages = {name: version for name, version in {**GOOD, **change}.items() if version}
    (line,) = conflicts({"model_type": model}, packages)
    assert says in line


def test_operators_of_the_delta_net_do_not_matter_to_other_models():
    assert conflicts({"model_type": "qwen3"}, {**GOOD, "triton": "3.5.0"}) == []


def test_a_text_model_inside_a_vision_model_counts():
    assert len(conflicts({"model_type": "x", "text_config": {"model_type": "qwen3_5_text"}}, {**GOOD, "triton": "3.5.0"})) == 1
