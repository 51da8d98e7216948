"""How many devices a configuration takes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from matrix.fragments import Key
from matrix.vime_schema import VimeSchema

TRAINER_AXES = ("tensor", "pipeline", "context", "data")


def devices_needed(config: Mapping[str, Any], vime: VimeSchema) -> int:
    """Devices of one run: trainer ranks and engine devices, side by side, or on the same devices when colocated. Defaults come from vime's schema."""

    def value(key: Key) -> Any:
        return config.get(key[0], {}).get(key[1], vime.defaults[key])

    trainer = prod(int(value(("parallel", axis))) for axis in TRAINER_AXES)
    engines = int(value(("rollout", "engines"))) * int(value(("rollout", "tensor_parallel")))
    return max(trainer, engines) if value(("placement", "mode")) == "colocate" else trainer + engines
