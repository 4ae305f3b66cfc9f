"""Training across data centres, under the name that training scripts import: `import inart.sites` (overlay/sites)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from overlay.sites import Averaged, Behind, Late, OverlayError, SiteGroup, init

if TYPE_CHECKING:
    from overlay.sites import DiLoCo, LocalSGD, StreamingDiLoCo

__all__ = [
    "Averaged", "Behind", "DiLoCo", "Late", "LocalSGD", "OverlayError", "SiteGroup",
    "StreamingDiLoCo", "init",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return one of the optimisers, which need torch and are imported at first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("overlay.sites"), name)
