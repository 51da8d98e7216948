from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.data import decode_response, load_tokenizer
from vime.errors import UserError
from vime.models.twins import BOS_ID, CHARACTERS, EOS_ID, PAD_ID, character_tokenizer, make_twin

TINY: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
FAMILIES = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}
TOKENIZER = character_tokenizer()


@pytest.mark.parametrize(("model_type", "architecture"), FAMILIES.items())
def test_a_twin_loads_offline_as_its_real_architecture(tmp_path: Path, model_type: str, architecture: str) -> None:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    out = make_twin({"model_type": model_type, "tie_word_embeddings": True, **TINY}, tmp_path / "twin")

    config = AutoConfig.from_pretrained(out, local_files_only=True)
    assert [architecture] == config.architectures
    assert (config.vocab_size, config.hidden_size, config.tie_word_embeddings) == (64, 96, True)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (PAD_ID, BOS_ID, EOS_ID)
    generation = GenerationConfig.from_pretrained(out, local_files_only=True)
    assert (generation.pad_token_id, generation.bos_token_id, generation.eos_token_id) == (PAD_ID, BOS_ID, EOS_ID)
    tokenizer = AutoTokenizer.from_pretrained(out, local_files_only=True)
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (PAD_ID, BOS_ID, EOS_ID)
    assert len(tokenizer) == len(load_tokenizer(out)) == 64
    assert [BOS_ID, *range(3, 48)] == tokenizer(CHARACTERS)["input_ids"] == tokenizer.encode(CHARACTERS)
    assert json.loads((out / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


@given(st.text(alphabet=CHARACTERS, max_size=40))
def test_every_text_round_trips(text: str) -> None:
    ids = TOKENIZER(text)["input_ids"]
    assert ids[0] == BOS_ID
    assert len(ids) == len(text) + 1
    assert text == TOKENIZER.decode(ids[1:]) == TOKENIZER.decode(ids, skip_special_tokens=True)


@given(st.lists(st.integers(0, 63), max_size=10), st.lists(st.integers(0, 63), max_size=10))
def test_no_two_answers_read_the_same(a: list[int], b: list[int]) -> None:
    assert (a == b) == (decode_response(TOKENIZER, a, ()) == decode_response(TOKENIZER, b, ()))


def test_a_character_outside_the_alphabet_is_an_error_not_an_unknown_token() -> None:
    with pytest.raises(Exception, match=r"UNK"):
        TOKENIZER("ABC")


def test_the_bytes_are_the_same_every_time(tmp_path: Path) -> None:
    a, b = (make_twin({"model_type": "qwen3", **TINY}, tmp_path / name) for name in "ab")
    assert {f.name: f.read_bytes() for f in a.iterdir()} == {f.name: f.read_bytes() for f in b.iterdir()}


def test_a_nested_text_config_gets_the_vocabulary(tmp_path: Path) -> None:
    config = {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "text_config": {**TINY, "num_key_value_heads": 2}}
    out = make_twin(config, tmp_path / "twin")
    written = json.loads((out / "config.json").read_text())
    assert (written["text_config"]["vocab_size"], written["text_config"]["eos_token_id"]) == (64, EOS_ID)
    assert len(load_tokenizer(out)) == 64


def test_impossible_twins_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the config has no model_type"):
        make_twin({}, tmp_path)
    with pytest.raises(UserError, match=r"twin: .*qwen33"):
        make_twin({"model_type": "qwen33"}, tmp_path)
    with pytest.raises(UserError, match=r"vocab_size 32 is smaller than the character tokenizer's 64 ids"):
        make_twin({"model_type": "qwen3", "vocab_size": 32}, tmp_path)
