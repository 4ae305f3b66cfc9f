"""Training across data centres (docs/sites.md): join the other sites, and use an optimiser that sends few bytes.

    group = inart.sites.init(coordinator="10.0.0.1:9700", site="paris")
    outer = inart.sites.DiLoCo(model, group, every=100, bits=8)
    ...
    outer.step(samples=len(batch))        # after each step of the site's own optimiser

Modules that need torch are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from overlay.core.errors import Behind, Late, OverlayError
from overlay.sites.group import Averaged, SiteGroup, init

if TYPE_CHECKING:
    from overlay.sites.optimisers import DiLoCo, LocalSGD, StreamingDiLoCo

__all__ = [
    "Averaged", "Behind", "DiLoCo", "Late", "LocalSGD", "OverlayError", "SiteGroup",
    "StreamingDiLoCo", "init",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("overlay.sites.optimisers"), name)
