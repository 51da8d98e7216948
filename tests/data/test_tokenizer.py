from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from vime.data import decode_response, decode_responses, end_token_ids, load_tokenizer
from vime.errors import UserError
from vime.models.twins import character_tokenizer, make_twin


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_twin({"model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 1}, tmp_path / "twin")


def test_a_tokenizer_whose_ids_reach_past_the_models_vocabulary_is_refused_with_both_numbers(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": 60}))
    with pytest.raises(UserError, match=r"ids up to 63, but the model's vocab_size is 60; .* at least 64"):
        load_tokenizer(model)
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": 128}))  # a padded vocabulary is no mistake
    assert len(load_tokenizer(model)) == 64


def test_added_tokens_count(model: Path) -> None:
    tokenizer = character_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<tool>"]})
    tokenizer.save_pretrained(model)
    with pytest.raises(UserError, match=r"ids up to 64, but the model's vocab_size is 64"):
        load_tokenizer(model)


def test_missing_directory_and_missing_tokenizer_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model.path: no config.json in .*nowhere; give a Hugging Face model directory"):
        load_tokenizer(tmp_path / "nowhere")
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=r"model.path: no tokenizer in .*twin \(none of tokenizer.json"):
        load_tokenizer(model)


def test_broken_files_are_refused_in_one_line(model: Path) -> None:
    (model / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config.json: not a JSON object") as caught:
        load_tokenizer(model)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_end_of_sequence_is_refused(model: Path) -> None:
    config = json.loads((model / "tokenizer_config.json").read_text())
    config.pop("eos_token")
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"has no end-of-sequence token"):
        load_tokenizer(model)


def test_end_ids_come_from_the_tokenizer_the_generation_config_and_the_caller(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    assert end_token_ids(model, tokenizer) == (2,)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert end_token_ids(model, tokenizer, extra=(9,)) == (2, 7, 9)
    (model / "generation_config.json").unlink()
    assert end_token_ids(model, tokenizer) == (2,)


def test_decoding_removes_the_final_end_mark_and_nothing_else() -> None:
    tokenizer = character_tokenizer()
    known = {(13, 14, 2): "ab", (13, 14): "ab", (13, 2, 14, 2): "a<eos>b", (1, 13, 0, 14, 2, 2): "<bos>a<pad>b<eos>", (2,): "", (): ""}
    unknown = {(13, 64, 99, 14, 2): "a\ufffd\ufffdb", (64,) * 5000: "\ufffd" * 5000}
    for answers in (known, unknown, known | unknown, {}):
        assert list(answers.values()) == [decode_response(tokenizer, ids, (2,)) for ids in answers]
        assert list(answers.values()) == decode_responses(tokenizer, list(answers), (2,))


def test_loading_a_twins_tokenizer_needs_no_torch_and_equals_autotokenizer(model: Path) -> None:
    code = (
        f"import sys; from vime.data import load_tokenizer; t = load_tokenizer({str(model)!r}); "
        "print(t('ab=')['input_ids'], t.eos_token_id, 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[1, 13, 14, 42] 2 False\n"
    auto = AutoTokenizer.from_pretrained(model, local_files_only=True)
    mine = load_tokenizer(model)
    assert auto.get_vocab() == mine.get_vocab()
    assert auto("abc 123")["input_ids"] == mine("abc 123")["input_ids"]


def test_a_config_without_vocab_size_has_its_classs_default(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    assert len(load_tokenizer(model)) == 64


def test_a_tokenizer_of_a_named_class_is_loaded_by_it(model: Path) -> None:
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "Qwen2Tokenizer"}))
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 65}))  # this class brings a token of its own
    assert type(load_tokenizer(model)).__name__ == "Qwen2Tokenizer"
