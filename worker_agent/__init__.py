"""The worker's side of in-network aggregation.

    from worker_agent import connect, InArtState, inart_hook

Modules that need gRPC or torch are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from worker_agent.engine import Engine
from worker_agent.errors import (
    AbortedError,
    AgentError,
    AllReduceError,
    MismatchError,
    NotReadyError,
    ProgressTimeoutError,
)
from worker_agent.work import Work

if TYPE_CHECKING:
    from worker_agent.agent import Agent, connect
    from worker_agent.torch.fsdp import inart_fsdp
    from worker_agent.torch.hook import InArtState, inart_hook

__all__ = [
    "AbortedError",
    "Agent",
    "AgentError",
    "AllReduceError",
    "Engine",
    "InArtState",
    "MismatchError",
    "NotReadyError",
    "ProgressTimeoutError",
    "Work",
    "connect",
    "inart_fsdp",
    "inart_hook",
]

_LAZY = {
    "Agent": "worker_agent.agent",
    "connect": "worker_agent.agent",
    "InArtState": "worker_agent.torch.hook",
    "inart_fsdp": "worker_agent.torch.fsdp",
    "inart_hook": "worker_agent.torch.hook",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
