"""In-network gradient aggregation: the names that a training script imports, and the command `inart`.

    from inart import InArtState, inart_hook

The names are the same as in worker_agent; those that need gRPC or torch are imported at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from worker_agent import InArtState, connect, inart_fsdp, inart_hook

__all__ = ["InArtState", "__version__", "connect", "inart_fsdp", "inart_hook"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("worker_agent"), name)
