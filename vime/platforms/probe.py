"""A known computation on a device: whether it answers, and rightly."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vime.platforms.base import PlatformError

if TYPE_CHECKING:
    from vime.platforms.base import Platform

SIZE = 64


def probe(platform: Platform, local_index: int) -> float:
    """Seconds for a small matrix product on the device and its way back to the host.

    Whole numbers below 2¹¹, so that float32 and even bfloat16 products accumulated in float32 are exact and the result can be compared for equality.
    Raises `PlatformError` naming the device when it fails or answers wrongly.
    """
    import torch

    begin = time.perf_counter()
    where = f"{platform.name} device {local_index}"
    try:
        device = platform.device(local_index)
        left = torch.arange(SIZE * SIZE, dtype=torch.float32).remainder_(7).reshape(SIZE, SIZE)
        product = (left.to(device) @ left.to(device).T).cpu()
    except RuntimeError as error:
        raise PlatformError(f"{where} does not compute: {str(error).splitlines()[0]}") from error
    if not torch.equal(product, left @ left.T):
        raise PlatformError(f"{where} computes wrongly: a product of small whole numbers differs from the host's. Take the device out of service.")
    return time.perf_counter() - begin
