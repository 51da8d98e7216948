"""What every trainer rank imports: read once by the fork server of `ranks.py`."""

from __future__ import annotations

import importlib
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import vime.training.actor  # noqa: F401
    from vime.platforms.cpu_megatron import MODULES

    for name in (*MODULES, "torch.distributed.checkpoint", "safetensors.torch", "transformers"):
        importlib.import_module(name)
