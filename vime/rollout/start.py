"""Starting an engine: the configuration in vLLM's terms, and what vLLM said when it could not start."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

from vime.config.tree import Config
from vime.errors import RunError, UserError
from vime.platforms import launch, registry
from vime.rollout.vllm_compat import VllmAdapter
from vime.rollout.vllm_compat.base import EngineSpec

STEP_LIMIT_SEQS = 256  # sequences decoded together unless `vllm.max_num_seqs` says otherwise


def engine_spec(config: Config, model_path: str, *, load_weights: bool) -> EngineSpec:
    """The configuration in an engine's terms. A sequence may hold a whole prompt, a whole answer, and one id more that scoring generates.

    Raises `UserError` when `vllm.max_model_len` is too short for that, or when the platform cannot run it as configured.
    """
    rollout = config.rollout
    wanted = rollout.max_prompt_tokens + rollout.max_response_tokens
    limit = model_config(model_path).get("max_position_embeddings") or math.inf
    chosen = next((int(value) for key, value in config.vllm.items() if key.replace("-", "_") == "max_model_len"), None)
    if chosen is not None and chosen < wanted:
        sizes = f"rollout.max_prompt_tokens + max_response_tokens = {rollout.max_prompt_tokens} + {rollout.max_response_tokens}"
        raise UserError(f"vllm.max_model_len: {chosen} is less than {sizes}: answers would be cut early. Raise it or remove it.")
    check_graph(config)
    platform = registry.get(config.platform)
    samples = -(-rollout.prompts_per_step // rollout.engines) * rollout.samples_per_prompt
    return EngineSpec(
        model_path=model_path,
        dtype=rollout.dtype or config.model.dtype,
        max_model_len=chosen or (wanted + 1 if wanted < limit else wanted),
        max_num_seqs=min(samples, STEP_LIMIT_SEQS),
        tensor_parallel=rollout.tensor_parallel,
        load_weights=load_weights,
        eager="graph" in platform.missing,
        draft_tokens=rollout.speculative.tokens if rollout.speculative.method == "mtp" else 0,
        sees=bool(model_config(model_path).get("vision_config")),
        options=launch.engine_options(platform, config),
    )


def check_graph(config: Config) -> None:
    """Raises `UserError` when the `vllm:` block asks for graph execution on a platform without it."""
    platform = registry.get(config.platform)
    eager = next((value for key, value in config.vllm.items() if key.replace("-", "_") == "enforce_eager"), True)
    if not eager and "graph" in platform.missing:
        raise UserError(f"vllm.enforce_eager: false is not possible on {platform.name}: {platform.missing['graph']}. Remove it.")


def start_engine(adapter: VllmAdapter, spec: EngineSpec, index: int) -> None:
    """Start vLLM; whatever it raises becomes one `RunError` that ends in its last own error text."""
    log = LastErrors()
    logging.getLogger("vllm").addHandler(log)
    try:
        adapter.start(spec)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        words = one_line(log.last or f"{type(error).__name__}: {error}")
        raise RunError("engine start", f"engine {index}: vLLM could not start on {spec.model_path}: {words}") from error
    finally:
        logging.getLogger("vllm").removeHandler(log)


def one_line(text: str) -> str:
    """A message on one line, without what pydantic adds to it for programmers."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("For further information")]
    return " ".join(lines).split(" [type=")[0]


class LastErrors(logging.Handler):
    """Keeps the last error that vLLM logged: its exceptions often only say "see root cause above"."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage().splitlines()[0]
        if record.exc_info and record.exc_info[1] is not None:
            self.last += f": {record.exc_info[1]}"


def model_config(model_path: str) -> dict[str, Any]:
    """`config.json` of a model directory, with a nested text configuration's keys on top."""
    file = Path(model_path) / "config.json"
    if not file.is_file():
        raise UserError(f"model.path: {model_path} has no config.json. Give a Hugging Face model directory.")
    values = json.loads(file.read_text())
    return values | values.get("text_config", {})


def end_ids(model_path: str) -> frozenset[int]:
    """End-of-sequence ids: of generation_config.json where it has them, else of config.json."""
    file = Path(model_path) / "generation_config.json"
    values = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
    if values is None:
        values = model_config(model_path).get("eos_token_id")
    return frozenset([] if values is None else [values] if isinstance(values, int) else values)
