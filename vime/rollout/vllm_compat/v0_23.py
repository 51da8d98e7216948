"""vLLM 0.23, which vllm-ascend 0.23 pairs with. Written against the real package and held to it by `contracts_v0_23.json`; not run on this project's CPUs.

Differences from 0.32: the worker itself opens and finalizes the layer-wise reload (so what must come before and after it is called separately), an update
carries a format flag, and there is no draft-model target.
"""

from __future__ import annotations

from vime.errors import RunError, UserError
from vime.rollout.vllm_compat.base import EngineSpec
from vime.rollout.vllm_compat.llm_engine import LLMEngineAdapter


class Adapter(LLMEngineAdapter):
    """Implements `VllmAdapter`."""

    generation = "0.23"
    worker_module = "vime.rollout.vllm_compat.worker_v0_23"

    def start(self, spec: EngineSpec) -> None:
        if spec.draft_tokens:
            raise UserError("rollout.speculative.method mtp: vLLM 0.23 cannot update a draft model's weights: use 0.32, or method none")
        super().start(spec)

    def begin_update(self, *, draft: bool = False) -> None:
        if draft:
            raise RunError("weight sync", "vLLM 0.23 cannot update a draft model's weights: use 0.32, or turn speculative decoding off")
        self.call_workers("vime_before_reload")
        self._engine.collective_rpc("start_weight_update", kwargs={"is_checkpoint_format": True})

    def update(self, version: int, base_version: int | None) -> None:
        self._engine.collective_rpc("update_weights", kwargs={"update_info": {"version": version, "base_version": base_version}})

    def finish_update(self) -> None:
        self._engine.collective_rpc("finish_weight_update")
        self.call_workers("vime_after_reload")
