"""Twins: a real architecture at a tiny size, with a character tokenizer, made on the spot from a Hugging Face config.

The directory holds config.json, the tokenizer and generation_config.json, no weights: those come from `model.random_init_seed` or a warm start.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vime.errors import UserError

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
SPECIAL = (PAD, BOS, EOS)  # ids 0, 1, 2
CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz+-*=, []>"  # ids 3 to 47
VOCABULARY_SIZE = 64
PAD_ID, BOS_ID, EOS_ID = range(3)
VISION = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
VISION_IDS = {key: len(SPECIAL) + len(CHARACTERS) + number for number, key in enumerate(VISION)}  # ids 48 to 51 of a twin that sees
IMAGE_SIDES = (16, 64)  # pixels: the square an image is enlarged to, and reduced to, in area


def make_twin(hf_config: dict[str, Any], out_dir: str | Path) -> Path:
    """Write a model directory for `hf_config` (a config.json as a dict: `model_type` and whatever differs from the class's defaults).

    The vocabulary and the special ids are set to the character tokenizer's; a `vocab_size` in the config may be larger (padding), not smaller.
    Returns the directory. Raises `UserError` for an unknown model type or a vocabulary that cannot hold the tokenizer.
    """
    out = Path(out_dir)
    config = _config(hf_config)
    out.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(out)
    sees = getattr(config, "vision_config", None) is not None
    character_tokenizer(config.get_text_config().max_position_embeddings, sees=sees).save_pretrained(out)
    _name_tokenizer_class(out / "tokenizer_config.json")
    if sees:
        _write_processors(config.vision_config, out)
    _generation_config().save_pretrained(out)
    return out


def character_tokenizer(max_length: int | None = None, *, sees: bool = False) -> Any:
    """One id a character, 64 ids: pad 0, bos 1, eos 2, `CHARACTERS` from 3, and named unused ids to the end; `sees`: the marks of images among them.

    Encoding puts BOS in front, as a post-processor: whoever loads the tokenizer (Hugging Face, vLLM) gets the same ids. A character outside
    `CHARACTERS` is an error, not an unknown token. Every id decodes to a text of its own, so no answer reads like another.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(vocabulary(sees=sees)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        additional_special_tokens=list(VISION.values()) if sees else None,
        clean_up_tokenization_spaces=False,
        model_max_length=max_length or int(1e30),
    )


def vocabulary(*, sees: bool = False) -> dict[str, int]:
    """Token to id, dense from 0 to 63."""
    tokens = [*SPECIAL, *CHARACTERS, *(VISION.values() if sees else ())]
    tokens += [f"<unused{i}>" for i in range(len(tokens), VOCABULARY_SIZE)]
    return {token: i for i, token in enumerate(tokens)}


def _config(hf_config: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    fields = dict(hf_config)
    model_type = fields.pop("model_type", None)
    if model_type is None:
        raise UserError("twin: the config has no model_type (for example qwen3)")
    text = dict(fields.pop("text_config", None) or {})
    _set_vocabulary(text if text else fields)
    try:
        config = AutoConfig.for_model(model_type, **fields, **({"text_config": text} if text else {}))
    except ValueError as error:
        raise UserError(f"twin: {str(error).splitlines()[0]}") from None
    if not config.architectures:
        config.architectures = [_causal_class(config)]
    return config


def _set_vocabulary(fields: dict[str, Any]) -> None:
    size = fields.setdefault("vocab_size", VOCABULARY_SIZE)
    if size < VOCABULARY_SIZE:
        raise UserError(f"twin: vocab_size {size} is smaller than the character tokenizer's {VOCABULARY_SIZE} ids; leave vocab_size out")
    fields.update(pad_token_id=PAD_ID, bos_token_id=BOS_ID, eos_token_id=EOS_ID)


def _causal_class(config: Any) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UserError(f"twin: set architectures for model type {config.model_type!r}, which has no causal language model of its own")
    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]


def _write_processors(vision_config: Any, out: Path) -> None:
    """The image processor of Qwen's models at the twin's sizes, and a video processor that vLLM and Hugging Face want to find beside it."""
    smallest, largest = IMAGE_SIDES
    common = {
        "processor_class": "Qwen3VLProcessor",
        "patch_size": vision_config.patch_size,
        "temporal_patch_size": vision_config.temporal_patch_size,
        "merge_size": vision_config.spatial_merge_size,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": smallest**2, "longest_edge": largest**2},
    }
    kinds = {
        "preprocessor_config": {"image_processor_type": "Qwen2VLImageProcessor"},
        "video_preprocessor_config": {"video_processor_type": "Qwen3VLVideoProcessor"},
    }
    for name, kind in kinds.items():
        (out / f"{name}.json").write_text(json.dumps({**common, **kind}, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _name_tokenizer_class(path: Path) -> None:
    # transformers 5 writes its own new name for the generic fast class; this one is known to 4 and 5, so to every vLLM generation.
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _generation_config() -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(pad_token_id=PAD_ID, bos_token_id=BOS_ID, eos_token_id=EOS_ID)
