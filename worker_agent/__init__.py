"""The worker's side of in-network aggregation."""

from worker_agent.engine import Engine, Work
from worker_agent.errors import AbortedError, AgentError, AllReduceError, MismatchError, ProgressTimeoutError

__all__ = ["AbortedError", "AgentError", "AllReduceError", "Engine", "MismatchError", "ProgressTimeoutError", "Work"]
