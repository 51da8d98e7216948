"""vLLM 0.32: the generation that runs here. A weight update is a session of its weight-transfer interface, also for a draft model."""

from __future__ import annotations

from vime.rollout.vllm_compat.llm_engine import LLMEngineAdapter


class Adapter(LLMEngineAdapter):
    """Implements `VllmAdapter`."""

    generation = "0.32"
    worker_module = "vime.rollout.vllm_compat.worker_v0_32"

    def begin_update(self, *, draft: bool = False) -> None:
        self._engine.collective_rpc("start_draft_weight_update" if draft else "start_weight_update")

    def update(self, version: int, base_version: int | None) -> None:
        self._engine.collective_rpc("update_weights", kwargs={"update_info": {"version": version, "base_version": base_version}})

    def finish_update(self) -> None:
        self._engine.collective_rpc("finish_weight_update")
