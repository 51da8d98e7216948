"""From a data configuration to tokenized prompts: the training pool, and held-out prompts that share no text with it."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vime.config.tree import DataConfig, EvalConfig
from vime.data import image_tasks  # noqa: F401  registers its tasks
from vime.data.files import read_prompts
from vime.data.images import Image, ImageProcessor
from vime.data.sample import Prompt, RawPrompt
from vime.data.tasks import task_stream
from vime.errors import UserError

log = logging.getLogger(__name__)

ENCODE_BATCH = 1024
HELD_OUT_MISSES = 10_000  # draws in a row without a new held-out prompt, after which a task counts as exhausted


def load_prompts(
    data: DataConfig,
    tokenizer: Any,
    max_prompt_tokens: int,
    *,
    images: ImageProcessor | None = None,
    size: int | None = None,
    seed: int | None = None,
    path: str | None = None,
) -> list[Prompt]:
    """The prompts `data` describes, in order. `images`: the model's image processor, if it sees. `size`, `seed` and `path` stand in for the configuration's.

    Raises `UserError` for a file or task that cannot be read, a prompt the tokenizer cannot encode, and, with `data.overlong: fail`, a prompt longer
    than `max_prompt_tokens`.
    """
    if path is None and (data.task is None) == (data.path is None):
        raise UserError(f"data: exactly one of data.task and data.path must be set, got task {data.task!r} and path {data.path!r}")
    file = path or data.path
    if file is not None:
        raw: Iterable[RawPrompt] = read_prompts(file, data)
    else:
        assert data.task is not None
        raw = itertools.islice(task_stream(data.task, data.seed if seed is None else seed, data.task_args), size or data.size)
    prompts = list(_encoded(raw, data, tokenizer, max_prompt_tokens, images))
    if not prompts:
        raise UserError(f"data: no prompts left from {file or data.task}: it is empty, or all are longer than rollout.max_prompt_tokens {max_prompt_tokens}")
    return prompts


def load_held_out(
    data: DataConfig,
    evaluation: EvalConfig,
    tokenizer: Any,
    max_prompt_tokens: int,
    training: Sequence[Prompt],
    *,
    images: ImageProcessor | None = None,
) -> list[Prompt]:
    """Prompts for evaluation, none of which is in `training`: from `eval.path`, or `eval.size` distinct ones of the task from `eval.seed`."""
    seen = {p.key for p in training}
    if evaluation.path is not None:
        return _without(load_prompts(data, tokenizer, max_prompt_tokens, images=images, path=evaluation.path), seen, evaluation.path)
    if data.task is None:
        raise UserError("eval.path: is needed when prompts come from a file: name the held-out file")
    stream = task_stream(data.task, evaluation.seed, data.task_args)
    held_out = list(itertools.islice(_unseen(_encoded(stream, data, tokenizer, max_prompt_tokens, images), seen), evaluation.size))
    if len(held_out) < evaluation.size:
        raise UserError(
            f"eval.size: {data.task} gave only {len(held_out)} distinct prompts outside the {len(seen)} of the training pool, "
            f"{evaluation.size} were asked for; lower eval.size or data.size"
        )
    return _renumbered(held_out)


def _unseen(prompts: Iterable[Prompt], seen: set[tuple[str, ...]]) -> Iterator[Prompt]:
    seen, misses = set(seen), 0
    for prompt in prompts:
        misses = misses + 1 if prompt.key in seen else 0
        if misses == 0:
            seen.add(prompt.key)
            yield prompt
        elif misses >= HELD_OUT_MISSES:
            return


def _without(prompts: list[Prompt], seen: set[tuple[str, ...]], path: str) -> list[Prompt]:
    kept = [p for p in prompts if p.key not in seen]
    if not kept:
        raise UserError(f"eval.path: every prompt of {path} is in the training pool too; name a file of held-out prompts")
    if len(kept) < len(prompts):
        log.warning("eval.path: %d of %d prompts of %s are in the training pool too and are left out", len(prompts) - len(kept), len(prompts), path)
    return _renumbered(kept)


def _renumbered(prompts: list[Prompt]) -> list[Prompt]:
    return [dataclasses.replace(p, prompt_id=i) for i, p in enumerate(prompts)]


def _encoded(raw: Iterable[RawPrompt], data: DataConfig, tokenizer: Any, limit: int, images: ImageProcessor | None) -> Iterator[Prompt]:
    number, dropped, example = 0, 0, ""
    stream = iter(raw)
    while batch := list(itertools.islice(stream, ENCODE_BATCH)):
        seen = [_images(r, images) for r in batch]
        texts = [_text(r, data, tokenizer, images) for r in batch]
        for r, text, pictures, encoded in zip(batch, texts, seen, _encode(batch, texts, data, tokenizer), strict=True):
            ids = encoded if images is None else images.expanded(encoded, pictures, r.place)
            if len(ids) > limit:
                dropped, example = dropped + 1, _overlong(r.place, len(ids), limit, data)
                continue
            yield Prompt(number, text, ids, r.label, r.metadata, pictures)
            number += 1
    if dropped:
        log.warning("data.overlong: drop left out %d of %d prompts, for example %s", dropped, dropped + number, example)


def _overlong(place: str, tokens: int, limit: int, data: DataConfig) -> str:
    message = f"{place}: the prompt has {tokens} tokens, rollout.max_prompt_tokens is {limit}"
    if data.overlong == "fail":
        raise UserError(f"{message}; raise it, or set data.overlong: drop to leave such prompts out")
    return message


def _images(raw: RawPrompt, images: ImageProcessor | None) -> tuple[Image, ...]:
    if raw.images and images is None:
        raise UserError(f"{raw.place}: the prompt has {len(raw.images)} images, but the model has no vision tower; train a vision-language model on it")
    return tuple(images.image(source, raw.place) for source in raw.images) if images is not None else ()


def _text(raw: RawPrompt, data: DataConfig, tokenizer: Any, images: ImageProcessor | None) -> str:
    text = _plain_text(raw, data, tokenizer)
    return text if images is None else images.marked(text, tokenizer)


def _plain_text(raw: RawPrompt, data: DataConfig, tokenizer: Any) -> str:
    if not data.chat_template:
        if not isinstance(raw.prompt, str):
            raise UserError(f"{raw.place}: the prompt is a list of chat messages; set data.chat_template: true")
        return raw.prompt
    if tokenizer.chat_template is None:
        raise UserError("data.chat_template: the tokenizer has no chat template; set it to false, or use an instruction-tuned model's tokenizer")
    messages = raw.prompt if isinstance(raw.prompt, list) else [{"role": "user", "content": raw.prompt}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _encode(batch: Sequence[RawPrompt], texts: list[str], data: DataConfig, tokenizer: Any) -> list[list[int]]:
    # A chat template writes its own BOS; the tokenizer's would be a second one.
    special = not data.chat_template
    try:
        return tokenizer(texts, add_special_tokens=special)["input_ids"]
    except Exception as error:  # noqa: BLE001  the Rust tokenizer raises bare Exception
        for raw, text in zip(batch, texts, strict=True):
            _encode_one(raw.place, text, special, tokenizer)
        raise UserError(f"{batch[0].place}: the tokenizer fails: {error}") from None


def _encode_one(place: str, text: str, special: bool, tokenizer: Any) -> None:
    try:
        tokenizer(text, add_special_tokens=special)
    except Exception as error:  # noqa: BLE001  as above
        known = tokenizer.get_vocab()
        strange = next((c for c in text if c not in known), None)
        hint = f"it has no token for {strange!r}" if strange else str(error)
        raise UserError(f"{place}: the tokenizer cannot encode {text[:80]!r}: {hint}; use another tokenizer, or leave this prompt out") from None
