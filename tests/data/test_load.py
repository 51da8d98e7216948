from __future__ import annotations

import itertools
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from reasoning_gym.factory import DATASETS

from vime.config.tree import DataConfig, EvalConfig
from vime.data import load_held_out, load_prompts, register_task
from vime.data.tasks import HASH_ORDERED, task_stream
from vime.errors import UserError
from vime.models.twins import character_tokenizer
from vime.rewards.gym import reasoning_gym

SPELL = DataConfig(task="spell_backward", size=300)
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['role'] }}[{{ m['content'] }}]{% endfor %}{% if add_generation_prompt %}assistant[{% endif %}"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return character_tokenizer()


def write(path: Path, *prompts: Any) -> str:
    path.write_text("".join(json.dumps({"prompt": p, "label": "x"}) + "\n" for p in prompts))
    return str(path)


def test_spell_backward_is_a_lower_case_word_of_three_to_five_letters_reversed(tokenizer: Any) -> None:
    prompts = load_prompts(SPELL, tokenizer, 16)
    assert len(prompts) == 300
    for i, p in enumerate(prompts):
        word = p.text.removesuffix("=")
        assert 3 <= len(word) <= 5
        assert word == word.lower()
        assert (p.prompt_id, p.label, p.text) == (i, word[::-1], f"{word}=")
        assert p.ids == [1, *tokenizer(p.text, add_special_tokens=False)["input_ids"]]


def test_chain_sum_labels_are_the_values(tokenizer: Any) -> None:
    for p in load_prompts(DataConfig(task="chain_sum", size=50, task_args={"max_terms": 3}), tokenizer, 32):
        assert str(eval(p.text.removesuffix("="))) == p.label


def test_any_reasoning_gym_dataset_is_a_task() -> None:
    raw = next(task_stream("rg:countdown", 3, {"min_numbers": 3, "max_numbers": 3}))
    assert raw.prompt == raw.metadata["reasoning_gym"]["entry"]["question"]
    assert raw.metadata["reasoning_gym"]["dataset"] == "countdown"
    assert raw.metadata["reasoning_gym"]["entry"]["answer"] == raw.label


def test_a_composite_of_datasets_is_a_task() -> None:
    specs = [{"name": "gcd", "weight": 1, "config": {}}, {"name": "lcm", "weight": 1, "config": {"max_numbers": 2}}]
    raws = list(itertools.islice(task_stream("rg:composite", 3, {"datasets": specs}), 20))
    assert {"gcd", "lcm"} == {r.metadata["reasoning_gym"]["entry"]["metadata"]["source_dataset"] for r in raws}
    assert all(reasoning_gym(str(r.label), r.label, r.metadata) == 1.0 for r in raws)
    with pytest.raises(UserError, match=r"composite refuses .*Must specify at least one dataset"):
        next(task_stream("rg:composite", 3, {}))


def test_datasets_that_draw_in_hash_order_need_a_fixed_hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(UserError, match=r"reasoning-gym's ransom_note draws in the order of Python's string hashes.* PYTHONHASHSEED=0"):
        task_stream("rg:ransom_note", 1, {})
    with pytest.raises(UserError, match=r"reasoning-gym's ransom_note draws in the order"):
        task_stream("rg:composite", 1, {"datasets": [{"name": "ransom_note", "weight": 1, "config": {}}]})
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    next(task_stream("rg:ransom_note", 1, {}))


DIGESTS = """
import itertools, json, sys, xxhash
from vime.data.fingerprint import canonical
from vime.data.tasks import HASH_ORDERED, task_stream
for name in sys.argv[1:]:
    raws = itertools.islice(task_stream("rg:" + name, 1, {}), 25)
    print("\\ndigest", name, xxhash.xxh3_64_hexdigest(json.dumps([canonical([r.prompt, r.label, r.metadata]) for r in raws]).encode()))
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_list_of_hash_ordered_datasets_is_the_installed_packages() -> None:
    names = sorted(set(DATASETS) - {"composite"})
    outputs = []
    for seed in "1234":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", DIGESTS, *names], env=environment, capture_output=True, text=True, check=True)
        outputs.append(dict(line.split()[1:] for line in run.stdout.splitlines() if line.startswith("digest ")))
    differing = {name for name in names if len({output[name] for output in outputs}) > 1}
    assert differing == HASH_ORDERED


def test_a_pool_depends_on_its_seed_alone_and_a_larger_one_begins_with_it(tokenizer: Any) -> None:
    small = load_prompts(SPELL, tokenizer, 16)
    large = load_prompts(SPELL, tokenizer, 16, size=2500)
    assert small == large[:300]
    texts = [p.text for p in large]
    # reasoning-gym's own neighbouring seeds give the same items shifted by one; two blocks of one pool must not repeat each other either
    assert texts[:1000] != texts[1000:2000]
    neighbour = [p.text for p in load_prompts(SPELL, tokenizer, 16, seed=SPELL.seed + 1, size=2500)]
    assert sum(a == b for a, b in zip(texts[1:], neighbour, strict=False)) < 10


def test_held_out_prompts_share_no_text_with_the_pool(tokenizer: Any) -> None:
    training = load_prompts(SPELL, tokenizer, 16, size=4096)
    held_out = load_held_out(SPELL, EvalConfig(size=256), tokenizer, 16, training)
    texts = {p.text for p in held_out}
    assert len(texts) == 256
    assert texts.isdisjoint(p.text for p in training)
    assert list(range(256)) == [p.prompt_id for p in held_out]
    assert held_out == load_held_out(SPELL, EvalConfig(size=256), tokenizer, 16, training)


def test_a_held_out_set_with_the_pools_own_seed_is_still_disjoint(tokenizer: Any) -> None:
    training = load_prompts(SPELL, tokenizer, 16)
    held_out = load_held_out(SPELL, EvalConfig(size=64, seed=SPELL.seed), tokenizer, 16, training)
    assert {p.text for p in held_out}.isdisjoint(p.text for p in training)


def test_a_task_too_small_for_held_out_prompts_says_how_many_it_has(tokenizer: Any) -> None:
    data = DataConfig(task="chain_sum", task_args={"max_digits": 1, "max_terms": 2}, size=100)
    training = load_prompts(data, tokenizer, 16)
    with pytest.raises(UserError, match=r"eval.size: chain_sum gave only \d+ distinct prompts outside the \d+ of the training pool, 5000 were asked for"):
        load_held_out(data, EvalConfig(size=5000), tokenizer, 16, training)


def test_a_held_out_file_loses_the_training_prompts_with_a_warning(tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = DataConfig(path=write(tmp_path / "train.jsonl", "a", "b"))
    training = load_prompts(data, tokenizer, 16)
    with caplog.at_level(logging.WARNING):
        held_out = load_held_out(data, EvalConfig(path=write(tmp_path / "eval.jsonl", "b", "c")), tokenizer, 16, training)
    assert [p.text for p in held_out] == ["c"]
    assert "1 of 2 prompts" in caplog.text
    with pytest.raises(UserError, match=r"every prompt of .*same.jsonl is in the training pool"):
        load_held_out(data, EvalConfig(path=write(tmp_path / "same.jsonl", "a")), tokenizer, 16, training)
    with pytest.raises(UserError, match=r"eval.path: is needed"):
        load_held_out(data, EvalConfig(), tokenizer, 16, training)


def test_an_overlong_prompt_is_an_error_or_left_out_with_a_warning(tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "p.jsonl", "abc", "abcdefg", "abcd")
    with pytest.raises(UserError, match=r"p.jsonl:2: the prompt has 8 tokens, rollout.max_prompt_tokens is 7; raise it, or set data.overlong: drop"):
        load_prompts(DataConfig(path=path), tokenizer, 7)
    with caplog.at_level(logging.WARNING):
        kept = load_prompts(DataConfig(path=path, overlong="drop"), tokenizer, 7)
    assert [(p.prompt_id, p.text) for p in kept] == [(0, "abc"), (1, "abcd")]
    assert "left out 1 of 3 prompts" in caplog.text
    assert "p.jsonl:2" in caplog.text
    assert len(load_prompts(DataConfig(path=path), tokenizer, 8)) == 3  # exactly at the limit is not too long
    with pytest.raises(UserError, match=r"no prompts left from .*p.jsonl"):
        load_prompts(DataConfig(path=path, overlong="drop"), tokenizer, 2)


def test_a_prompt_the_tokenizer_cannot_encode_is_named(tokenizer: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", "abc", "naïve", "abc")
    with pytest.raises(UserError, match=r"p.jsonl:2: the tokenizer cannot encode 'naïve': it has no token for 'ï'"):
        load_prompts(DataConfig(path=path), tokenizer, 16)


def test_an_empty_file_is_an_error(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no prompts left from .*p.jsonl: it is empty"):
        load_prompts(DataConfig(path=write(tmp_path / "p.jsonl")), tokenizer, 16)


def test_a_chat_template_is_applied_once_with_one_bos(tmp_path: Path) -> None:
    tokenizer = character_tokenizer()
    path = write(tmp_path / "p.jsonl", "ab", [{"role": "system", "content": "x"}, {"role": "user", "content": "ab"}])
    with pytest.raises(UserError, match=r"data.chat_template: the tokenizer has no chat template"):
        load_prompts(DataConfig(path=path, chat_template=True), tokenizer, 64)
    tokenizer.chat_template = TEMPLATE
    prompts = load_prompts(DataConfig(path=path, chat_template=True), tokenizer, 64)
    assert [p.text for p in prompts] == ["<bos>user[ab]assistant[", "<bos>system[x]user[ab]assistant["]
    for p in prompts:
        assert p.ids.count(1) == 1
        assert p.ids[0] == 1
        assert tokenizer.decode(p.ids) == p.text


@pytest.mark.parametrize(
    ("task", "args", "message"),
    [
        (
            "spell_backwards",
            {},
            "no task 'spell_backwards'; did you mean 'spell_backward'\\? tasks are chain_sum, image_colours, image_count, spell_backward, and rg:<dataset>",
        ),
        ("rg:count_down", {}, "reasoning-gym has no dataset 'count_down'; nearest are countdown"),
        ("rg:countdown", {"numbers": 3}, "data.task_args.numbers: reasoning-gym's countdown has no such argument; it takes max_numbers, "),
        ("spell_backward", {"seed": 3}, "data.task_args.seed: set data.seed instead"),
        ("spell_backward", {"size": 3}, "data.task_args.size: set data.size instead"),
        ("spell_backward", {"min_word_len": 9}, "reasoning-gym's spell_backward refuses .* max_word_len must be >= min_word_len"),
        ("chain_sum", {"max_terms": "two"}, "reasoning-gym's chain_sum refuses "),
    ],
)
def test_a_task_that_cannot_be_made_is_refused(task: str, args: dict[str, Any], message: str, tokenizer: Any) -> None:
    with pytest.raises(UserError, match=message):
        load_prompts(DataConfig(task=task, task_args=args), tokenizer, 16)


def test_exactly_one_of_task_and_path(tokenizer: Any) -> None:
    with pytest.raises(UserError, match=r"exactly one of data.task and data.path"):
        load_prompts(DataConfig(), tokenizer, 16)
    with pytest.raises(UserError, match=r"exactly one of data.task and data.path"):
        load_prompts(DataConfig(task="chain_sum", path="p.jsonl"), tokenizer, 16)


def test_a_task_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match=r"'spell_backward' is registered already"):
        register_task("spell_backward")(lambda seed, args: iter(()))
