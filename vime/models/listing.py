"""What `vime models` prints: the families, one model's facts, a twin."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from vime.errors import UserError
from vime.models import checked
from vime.models.base import Family, HfConfig, WeightTable
from vime.models.hf_io import read_config
from vime.models.registry import FAMILIES, REFUSED, family_for

HEAD = ("family", "models", "model_type", "experts", "MTP", "images", "logits vs Hugging Face", "log-probs vs vLLM", "layouts")


def families() -> str:
    """One line a family: what it supports, and the worst numbers of its cases."""
    records = checked.read().values()
    lines = [HEAD, *(_line(family, [record for record in records if record["family"] == family.name]) for family in FAMILIES)]
    text = aligned(lines)
    refused = "\n".join(f"refused: {model_type}: {reason}" for model_type, reason in REFUSED.items())
    how = "numbers: largest difference of a random twin's logits from Hugging Face's, mean difference of its log-probs from vLLM's (CPU build), float32"
    return f"{text}\n\n{how}: docs/models.md\n{refused}"


def _line(family: Family, records: list[dict[str, Any]]) -> tuple[str, ...]:
    engine = [max(record["loaded_mean"], record["synced_mean"]) for record in records if "synced_mean" in record]
    failed = any("engine_error" in record for record in records)
    return (
        family.name,
        family.title,
        ", ".join(family.model_types),
        _yes(family.has_experts),
        _yes(any(record["mtp"] for record in records)),
        _yes(family.vision),
        _number([record["hf_logits"] for record in records]),
        _number(engine) + (" (not all served)" if failed and engine else "") if engine or not failed else "not served",
        str(max((record["layouts"] for record in records), default="-")),
    )


def _number(values: list[float]) -> str:
    return f"{max(values):.0e}" if values else "not measured"


def _yes(value: bool) -> str:
    return "yes" if value else "-"


def aligned(lines: list[tuple[str, ...]]) -> str:
    """Columns, whole however wide the terminal."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(f"{value:{width}}" for value, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def model(directory: Path) -> str:
    """What vime makes of a model directory's config.json, and whether its weights are the ones the table wants."""
    from vime.models.hf_io import INDEX, SINGLE, Checkpoint, check_tensors

    hf_config = read_config(directory)
    family = family_for(hf_config, str(directory / "config.json"))
    mtp = family.mtp_layers(hf_config)
    table, shape = family.weight_table(hf_config, mtp=mtp > 0), family.shape(hf_config)
    facts = {
        "family": family.name,
        "parameters": _count(table),
        "of them MTP layers": f"{sum(math.prod(table.shapes[name]) for name in table.draft - set(table.aliases)):,} in {mtp}" if mtp else "-",
        "tensors": str(len(table.shapes)),
        "vocabulary": str(shape.vocab_size),
        "head": "tied to the embedding" if table.tied else "its own",
        "positions": str(shape.max_position_embeddings),
        "tensor parallel": ", ".join(map(str, _divisors(family, hf_config))),
    }
    if (directory / INDEX).is_file() or (directory / SINGLE).is_file():
        checkpoint = Checkpoint(directory)
        has_mtp = not table.draft or any(name in checkpoint.files for name in table.draft)
        check_tensors(checkpoint, table if has_mtp else family.weight_table(hf_config))
        facts["weights"] = f"{len(checkpoint.files)} tensors, names and shapes as config.json makes them" + ("" if has_mtp else "; without MTP layers")
    else:
        facts["weights"] = "none here"
    return aligned(list(facts.items()))


def _count(table: WeightTable) -> str:
    return f"{sum(math.prod(shape) for name, shape in table.shapes.items() if name not in table.aliases):,}"


def _divisors(family: Family, hf_config: HfConfig) -> list[int]:
    """Tensor-parallel sizes up to 16 that divide the model."""
    from vime.config.tree import ParallelConfig

    out = []
    for size in (1, 2, 4, 8, 16):
        try:
            family.check_layout(hf_config, ParallelConfig(tensor=size, sequence_parallel=size > 1))
        except UserError:
            continue
        out.append(size)
    return out


def twin(config: Path, out: Path | None) -> str:
    """The twin of a config.json, as the YAML that a model's file in the matrix holds; with `out` also its directory (config, tokenizer)."""
    from vime.models.twin_config import Twin, twin_config
    from vime.models.twins import make_twin
    from vime.models.vision_twin import nested_twin

    hf_config = read_config(config if config.is_dir() else config.parent) if config.name == "config.json" or config.is_dir() else _json(config)
    family_for(hf_config, str(config)).shape(hf_config)  # refuses what is missing or not supported
    made: Twin = nested_twin(hf_config) if "text_config" in hf_config else twin_config(hf_config)
    if out is not None:
        make_twin(made.config, out)
    return as_yaml(made)


def _float(value: float) -> str:
    """1e-5, not 1e-05."""
    return re.sub(r"e([+-])0+", r"e\1", repr(value))


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as a config.json: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{file}: holds a {type(found).__name__}, not the keys of a config.json")
    return found


def as_yaml(made: Any) -> str:
    """The `twin:` block."""
    import io

    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap

    deviations = [CommentedMap(ratio=one.ratio, model=one.model, twin=one.twin, reason=one.reason) for one in made.deviations]
    block = CommentedMap(twin=CommentedMap(config=made.config, deviations=deviations, **({"keeps": list(made.keeps)} if made.keeps else {})))
    yaml, text = YAML(), io.StringIO()
    yaml.representer.add_representer(float, lambda representer, value: representer.represent_scalar("tag:yaml.org,2002:float", _float(value)))
    yaml.representer.add_representer(type(None), lambda representer, value: representer.represent_scalar("tag:yaml.org,2002:null", "null"))
    yaml.width, yaml.default_flow_style = 150, False
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(block, text)
    return text.getvalue()
