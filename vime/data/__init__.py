"""Prompts, tasks and samples: what a run consumes, in an order that a checkpoint can resume."""

from vime.data.corruption import corrupt_labels, label_alphabet
from vime.data.groups import group_samples
from vime.data.images import Image, ImageProcessor, load_image_processor
from vime.data.load import load_held_out, load_prompts
from vime.data.sample import Prompt, RawPrompt, Sample, settle_finish_reason, validate_all
from vime.data.source import PromptSource
from vime.data.tasks import register_task
from vime.data.tokenizer import decode_response, decode_responses, encode_label, end_token_ids, load_tokenizer

__all__ = [
    "Image",
    "ImageProcessor",
    "Prompt",
    "PromptSource",
    "RawPrompt",
    "Sample",
    "corrupt_labels",
    "decode_response",
    "decode_responses",
    "encode_label",
    "end_token_ids",
    "group_samples",
    "label_alphabet",
    "load_held_out",
    "load_image_processor",
    "load_prompts",
    "load_tokenizer",
    "register_task",
    "settle_finish_reason",
    "validate_all",
]
