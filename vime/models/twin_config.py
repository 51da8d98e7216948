"""From the facts of a real model to its twin: the same class and structural flags at a size that two CPU cores train in a minute.

Every key of config.json that the twin changes is listed as a ratio with its value on both sides and the reason, in the form that `matrix/models/*.yaml` holds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vime.errors import UserError

HEAD_DIM = 32
HIDDEN = 96  # 3 · 32, so that heads · head_dim differs from it
SMALL = "keeps a step on two cores near 50 ms; kernels and weight layout do not depend on it"


@dataclass(frozen=True)
class Ratio:
    """A size, or a quotient of sizes, as an expression in keys of config.json."""

    over: tuple[str, ...]
    under: tuple[str, ...]
    reason: str
    unless: tuple[str, ...] = ()  # says nothing about a model whose config.json has one of these keys

    @property
    def text(self) -> str:
        return " / ".join([" * ".join(self.over), *self.under])

    def value(self, config: Mapping[str, Any]) -> float | None:
        """None where config.json lacks one of the keys."""
        if any(config.get(key) is not None for key in self.unless):
            return None
        found = [number(config, key) for key in (*self.over, *self.under)]
        if any(value is None for value in found):
            return None
        values = [float(value) for value in found if value is not None]
        return math.prod(values[: len(self.over)]) / math.prod(values[len(self.over) :])

    @property
    def keys(self) -> set[str]:
        return {*self.over, *self.under}


@dataclass(frozen=True)
class Deviation:
    """A ratio in which the twin differs."""

    ratio: str
    model: float
    twin: float
    reason: str


@dataclass(frozen=True)
class Twin:
    """A twin's config.json, the ratios in which it deviates, and those of changed keys that it keeps."""

    config: dict[str, Any]
    deviations: tuple[Deviation, ...]
    keeps: tuple[str, ...]


def ratio(over: str, under: str = "", *, why: str, unless: str = "") -> Ratio:
    return Ratio(tuple(over.split()), tuple(under.split()), why, tuple(unless.split()))


RATIOS = (
    ratio("num_hidden_layers", why="two layers are the fewest that pipeline parallelism can split and that pass a layer's output to another layer"),
    ratio("max_window_layers", "num_hidden_layers", why="the window is off"),
    ratio("len(attn_type_list)", "num_hidden_layers", why="one entry a layer"),
    ratio("intermediate_size", "hidden_size", why=SMALL),
    ratio("moe_intermediate_size", "hidden_size", why=SMALL),
    ratio("num_attention_heads head_dim", "hidden_size", why="still unequal to 1, so that code which takes the head size for hidden_size / heads is caught"),
    ratio("hidden_size", "num_attention_heads", why="heads of 32 are the smallest that vLLM's CPU attention accepts", unless="head_dim kv_lora_rank"),
    ratio("qk_rope_head_dim num_attention_heads", "hidden_size", why="four heads let tensor parallelism of 2 split them"),
    ratio("num_attention_heads", "num_key_value_heads", why="still grouped-query attention; two KV heads let tensor parallelism of 2 split them"),
    ratio("head_dim", why="the smallest that vLLM's CPU attention accepts (16 is refused)"),
    ratio("rotary_dim", "head_dim", why="still a part of each head"),
    ratio("num_experts", why="eight experts are enough to split over two ranks and to leave some idle"),
    ratio("n_routed_experts", why="enough to split over two ranks and to leave some idle"),
    ratio("num_local_experts", why="eight experts are enough to split over two ranks and to leave some idle"),
    ratio("num_experts_per_tok", why="still more than one expert a token, and fewer than all"),
    ratio("n_group", why="four groups of four experts"),
    ratio("topk_group", why="half of the groups are kept, as in the model"),
    ratio("first_k_dense_replace", why="one dense layer, so that the other of the two has experts"),
    ratio("q_lora_rank", why=SMALL),
    ratio("kv_lora_rank", why=SMALL),
    ratio("qk_nope_head_dim", why=SMALL),
    ratio("qk_rope_head_dim", why=SMALL),
    ratio("v_head_dim", why="unequal to the query's 96, so that code which takes one for the other is caught"),
    ratio("vocab_size", "hidden_size", why="a character tokenizer of 64; a large vocabulary would make the output layer the whole cost"),
    ratio("rope_theta", why="contexts of at most 64 positions; the longer base would leave most rotary frequencies unused"),
    ratio("rope_parameters.rope_theta", why="contexts of at most 64 positions; the longer base would leave most rotary frequencies unused"),
    ratio("rope_scaling.original_max_position_embeddings", why="within 64 positions, so that the scaled frequencies show"),
    ratio("max_position_embeddings", why="prompts and answers of the twins' tasks take fewer than 32 positions"),
    ratio("initializer_range", why="used only when the warm start is made; hidden 96 learns faster from the wider range"),
)


def twin_config(hf_config: Mapping[str, Any]) -> Twin:
    """The twin of the model that config.json describes. Raises UserError for one with a nested text_config (such families make their own)."""
    if "text_config" in hf_config:
        raise UserError("a twin of a model with a text_config is made by its own family")
    config = copy.deepcopy(dict(hf_config))
    _sizes(config)
    _experts(config)
    _latent(config)
    _positions(config)
    config.update(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    config["dtype" if "dtype" in config else "torch_dtype"] = "float32"
    return listed(hf_config, config)


def listed(model: Mapping[str, Any], twin: dict[str, Any], ratios: tuple[Ratio, ...] = RATIOS) -> Twin:
    """The twin with every ratio that its changed keys take part in."""
    deviations, keeps = [], []
    for entry in ratios:
        ours, theirs = entry.value(twin), entry.value(model)
        if ours is None or theirs is None or not any(inner(model, key) != inner(twin, key) for key in entry.keys):
            continue
        if math.isclose(ours, theirs, rel_tol=5e-3):
            keeps.append(entry.text)
        else:
            deviations.append(Deviation(entry.text, _short(theirs), _short(ours), entry.reason))
    return Twin(twin, tuple(deviations), tuple(keeps))


def _sizes(config: dict[str, Any]) -> None:
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    hidden = HIDDEN if "head_dim" in config or "kv_lora_rank" in config else 4 * HEAD_DIM
    changed = {"num_hidden_layers": 2, "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_attention_heads": 4, "vocab_size": 64}
    if kv_heads is not None:
        changed["num_key_value_heads"] = 4 if kv_heads == heads else 2
    if "head_dim" in config:
        changed["head_dim"] = HEAD_DIM
    if config.get("max_window_layers") is not None:
        changed["max_window_layers"] = 2
    if config.get("rotary_dim") is not None:
        changed["rotary_dim"] = HEAD_DIM * config["rotary_dim"] // config["head_dim"]
    if "attn_type_list" in config:
        changed["attn_type_list"] = config["attn_type_list"][:2]
    config.update(changed)


def _experts(config: dict[str, Any]) -> None:
    """8 experts, 2 a token; with group-limited routing 16 in 4 groups, 2 groups and 4 experts a token."""
    grouped = (config.get("n_group") or 1) > 1
    for key in ("num_experts", "n_routed_experts", "num_local_experts"):
        if config.get(key):
            config[key] = 16 if grouped else 8
    if config.get("num_experts_per_tok"):
        config["num_experts_per_tok"] = 4 if grouped else 2
        config["moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"] = 64
    if grouped:
        config.update(n_group=4, topk_group=2)
    if config.get("first_k_dense_replace"):
        config["first_k_dense_replace"] = 1
    if config.get("mlp_layer_types"):
        config["mlp_layer_types"] = [config["mlp_layer_types"][0], config["mlp_layer_types"][-1]]


def _latent(config: dict[str, Any]) -> None:
    if "kv_lora_rank" not in config:
        return
    if config.get("q_lora_rank") is not None:
        config["q_lora_rank"] = 48
    config.update(qk_nope_head_dim=32, v_head_dim=48)  # kv_lora_rank 512 and qk_rope_head_dim 64 stay: vLLM's CPU kernel takes no others


def _positions(config: dict[str, Any]) -> None:
    config["max_position_embeddings"] = 64
    if "initializer_range" in config:
        config["initializer_range"] = 0.05
    if "rope_theta" in config:
        config["rope_theta"] = 10000
    if (config.get("rope_parameters") or {}).get("rope_theta"):
        config["rope_parameters"]["rope_theta"] = 10000
    if (config.get("rope_scaling") or {}).get("original_max_position_embeddings"):
        config["rope_scaling"]["original_max_position_embeddings"] = 32


def number(config: Mapping[str, Any], key: str) -> float | None:
    """A number of config.json by its key, dotted for a nested one, or the length of a list by len(key)."""
    value = inner(config, key)
    if key.startswith("len("):
        return None if value is None else len(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def inner(config: Mapping[str, Any], key: str) -> Any:
    """What stands at a key (dotted, or inside len()), None where there is nothing."""
    value: Any = config
    for part in key.removeprefix("len(").removesuffix(")").split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _short(value: float) -> float:
    """Four significant digits; a whole number as int."""
    rounded = float(f"{value:.4g}") if value != int(value) else value
    return int(rounded) if rounded == int(rounded) else rounded
