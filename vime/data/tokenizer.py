"""The tokenizer of a local model directory, and the one way from ids to text that rewards see."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from vime.errors import UserError

UNKNOWN_ID = "\ufffd"  # stands for an id the tokenizer has no token for (a model's vocabulary may be padded beyond it)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")
GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")  # before and since transformers 5


def load_tokenizer(path: str | Path) -> Any:
    """The fast tokenizer in a Hugging Face model directory; nothing is fetched and no code of the directory runs.

    Raises `UserError` when the directory or its tokenizer is missing, or when the tokenizer has ids that the model has no embedding for.
    """
    path = Path(path)
    if not (path / "config.json").is_file():
        raise UserError(f"model.path: no config.json in {path}; give a Hugging Face model directory (config.json, tokenizer, *.safetensors)")
    if not any((path / name).is_file() for name in TOKENIZER_FILES):  # transformers would make an empty one of the model's kind
        raise UserError(f"model.path: no tokenizer in {path} (none of {', '.join(TOKENIZER_FILES)}); copy the model's tokenizer files there")
    try:
        tokenizer, vocab_size = _tokenizer(path), _vocab_size(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"model.path: cannot load the tokenizer of {path}: {str(error).splitlines()[0]}") from None
    _check_vocabulary(path, tokenizer, vocab_size)
    return tokenizer


def _tokenizer(path: Path) -> Any:
    # AutoTokenizer imports torch, two seconds that a driver can do without when the directory names the generic class.
    if (path / "tokenizer.json").is_file() and _read(path / "tokenizer_config.json").get("tokenizer_class") in GENERIC_CLASSES:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, local_files_only=True)


def _vocab_size(path: Path) -> int:
    config = _read(path / "config.json")
    size = {**config, **config.get("text_config", {})}.get("vocab_size")
    if size is not None:
        return size
    from transformers import AutoConfig  # the class knows its default

    return AutoConfig.from_pretrained(path, local_files_only=True).get_text_config().vocab_size


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UserError(f"{file}: not a JSON object: {error}; bring back the model's own file") from None


def _check_vocabulary(path: Path, tokenizer: Any, vocab_size: int) -> None:
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest < 0:
        raise UserError(f"model.path: the tokenizer of {path} is empty; copy the model's tokenizer files there")
    if largest >= vocab_size:
        raise UserError(
            f"model.path: the tokenizer of {path} has ids up to {largest}, but the model's vocab_size is {vocab_size}; "
            f"use the tokenizer the model was trained with, or set vocab_size to at least {largest + 1}"
        )
    if tokenizer.eos_token_id is None:
        raise UserError(f"model.path: the tokenizer of {path} has no end-of-sequence token; set eos_token in its tokenizer_config.json")


def end_token_ids(path: str | Path, tokenizer: Any, extra: Collection[int] = ()) -> tuple[int, ...]:
    """The ids that end an answer: the tokenizer's, the generation config's (one or several) and `extra` (rollout.stop_token_ids); sorted."""
    ids = {tokenizer.eos_token_id, *extra}
    declared = _read(Path(path) / "generation_config.json").get("eos_token_id")
    ids.update([declared] if isinstance(declared, int) else declared or [])
    return tuple(sorted(ids))


def decode_response(tokenizer: Any, ids: Sequence[int], end_ids: Collection[int]) -> str:
    """The text of an answer: its final end mark removed, every other special token spelled out.

    Dropping special tokens in the middle would let an answer with junk in it read like the right one.
    """
    body = ids[:-1] if ids and ids[-1] in end_ids else ids
    size = len(tokenizer)
    runs = itertools.groupby(body, key=lambda token: token < size)
    return "".join(
        tokenizer.decode(list(run), skip_special_tokens=False, clean_up_tokenization_spaces=False) if known else UNKNOWN_ID * len(list(run))
        for known, run in runs
    )


def decode_responses(tokenizer: Any, answers: Sequence[Sequence[int]], end_ids: Collection[int]) -> list[str]:
    """`decode_response` of each, in one call of the tokenizer where it knows all ids."""
    if any(max(ids, default=0) >= len(tokenizer) for ids in answers):
        return [decode_response(tokenizer, ids, end_ids) for ids in answers]
    bodies = [list(ids[:-1] if ids and ids[-1] in end_ids else ids) for ids in answers]
    return list(tokenizer.batch_decode(bodies, skip_special_tokens=False, clean_up_tokenization_spaces=False)) if bodies else []


def encode_label(tokenizer: Any, label: Any, end_id: int) -> list[int]:
    """The ids of a reference answer as the model should write it: the text without what the tokenizer puts in front, then the end mark.

    Raises `UserError` when there is none (some tasks only know how to check an answer).
    """
    if label is None:
        raise UserError("data: a prompt has no reference answer to train on; choose a task whose prompts have one")
    return [*tokenizer(str(label), add_special_tokens=False)["input_ids"], end_id]
