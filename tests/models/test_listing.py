"""`vime models`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.models import hugging_face
from tests.models.families import BY_NAME, CASES, architecture
from vime.cli import app
from vime.errors import UserError
from vime.models import checked
from vime.models.registry import FAMILIES, family_for


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["models", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_every_family_is_listed_with_how_it_was_checked():
    lines = run().splitlines()
    for family in FAMILIES:
        (line,) = [line for line in lines if line.split()[0:1] == [family.name]]
        assert family.model_types[0] in line and "e-0" in line, line
    assert "refused: glm_moe_dsa" in run()


def test_every_case_was_measured_and_agrees():
    records = checked.read()
    assert set(records) == set(BY_NAME)
    for case in CASES:
        record = records[case.name]
        assert record["family"] == family_for(case.config).name
        assert 0 < record["hf_logits"] <= 1e-4, case.name
        if "synced_mean" in record and case.engine_dtype == "float32":
            assert max(record["loaded_mean"], record["synced_mean"]) <= 1e-5, case.name
            assert record["moved"] > 1000 * record["synced_mean"], "the step must be large, or a sync that does nothing would pass"


def test_a_models_facts_and_its_weights(tmp_path: Path):
    directory = hugging_face.write(BY_NAME["glm4-moe-lite"].config, tmp_path / "model")
    out = run("show", str(directory))
    assert "glm4-moe-lite" in out and "without MTP layers" in out and "446,744 in 1" in out
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "config.json").write_text(json.dumps(architecture("glm-4.7-flash")))
    out = run("show", str(tmp_path / "published"))
    assert "30,587,100,096" in out and "weights             none here" in out and "1, 2, 4" in out


def test_a_twin_is_printed_and_written(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(architecture("minimax-m2.5")))
    assert "ratio: num_local_experts" in run("twin", str(tmp_path / "config.json"), "-o", str(tmp_path / "twin"))
    assert "minimax-m2" in run("show", str(tmp_path / "twin"))


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str):
    from vime.models.listing import twin

    (tmp_path / "other.json").write_text(text)
    with pytest.raises(UserError, match=r"other\.json"):
        twin(tmp_path / "other.json", None)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "qwen3"}, "num_attention_heads is missing"),
        ({**architecture("qwen3-8b"), "hidden_size": "4096"}, "hidden_size is '4096', not a whole number"),
        ({**architecture("qwen3-8b"), "num_hidden_layers": 0}, "num_hidden_layers is 0, not a whole number"),
        ({"model_type": "mamba"}, "is of no family vime knows"),
        (architecture("glm-5"), "glm_moe_dsa' is not supported"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, config: dict, said: str):
    from vime.models.listing import model, twin

    (tmp_path / "config.json").write_text(json.dumps(config))
    for ask in (lambda: twin(tmp_path, None), lambda: model(tmp_path)):
        with pytest.raises(UserError) as refusal:
            ask()
        assert said in str(refusal.value) and "\n" not in str(refusal.value)
