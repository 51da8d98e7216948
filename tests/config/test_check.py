"""What a configuration must satisfy beyond its types."""

from __future__ import annotations

from typing import Any

import pytest

from vime.config.resolve import from_dict
from vime.errors import UserError


def given(**changes: Any) -> dict[str, Any]:
    sizes = {"max_prompt_tokens": 32, "max_response_tokens": 31, "prompts_per_step": 4, "samples_per_prompt": 4}
    return {"model": {"path": "/m"}, "data": {"task": "spell_backward"}, "rollout": sizes, **changes}


def layout(limit: int, **parallel: Any) -> dict[str, Any]:
    return given(train={"max_tokens_per_microbatch": limit}, parallel=parallel)


@pytest.mark.parametrize(
    ("limit", "parallel"),
    [
        (63, {}),
        (64, {"tensor": 4, "sequence_parallel": True}),  # a pack is rounded up to a multiple of the tensor ranks
        (32, {"context": 2}),  # 63 tokens are padded to 64, half of them on each rank
        (22, {"context": 3}),  # to 66
    ],
)
def test_the_longest_sample_fits_a_micro_batch(limit: int, parallel: dict[str, Any]) -> None:
    from_dict(layout(limit, **parallel))
    with pytest.raises(UserError, match=r"cannot hold one sample of max_prompt_tokens \+ max_response_tokens = 63 tokens"):
        from_dict(layout(limit - 1, **parallel))
