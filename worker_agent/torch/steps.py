"""Steps of training, the buffers that are reduced in each, and their outcomes."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import torch

from worker_agent.collectives import Collective
from worker_agent.errors import AgentError
from worker_agent.torch.passage import Passage
from worker_agent.torch.result import Completion, Result


@dataclass
class Step:
    """A step of training.

    Attributes:
        number: its place in the order of the steps.
        network: True where it goes through the network, False where it goes over torch.distributed, None where that is
            not decided.
        aside: whether it goes over torch.distributed in any case, because that is faster.
        passes: number of forward passes that had begun before it (passes.py).
    """

    number: int
    network: bool | None
    aside: bool = False
    began: float = field(default_factory=time.monotonic)
    items: list[Item] = field(default_factory=list)
    problem: str = ""
    passes: int = 0


@dataclass(eq=False)
class Item:
    """A buffer of a step.

    Attributes:
        buffer: the values, which their sum or mean replaces.
        before: the original content, where the network works in place.
    """

    step: Step
    buffer: torch.Tensor
    op: Collective
    last: bool
    completion: Completion
    written: torch.cuda.Event | None = None
    before: torch.Tensor | None = None
    reduced: Result | None = None
    passage: Passage | None = None
    problem: str = ""
    early: bool = False
    kept: torch.Tensor | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    added: float = field(default_factory=time.monotonic)


def problem_of(result: Result) -> str:
    """Return in words why there is no value; empty if there is one."""
    return "" if result.error is None else str(result.error) or type(result.error).__name__


def explained(error: Exception) -> Exception:
    """Return the error, with a message that says what to do where it is gloo's for a lost rank."""
    if not isinstance(error, RuntimeError) or isinstance(error, AgentError):
        return error
    return AgentError(
        f"the ranks cannot agree on a step over torch.distributed: {str(error).partition(chr(10))[0]} A process group "
        "does not survive the loss of a rank: let the launcher start all of them again. A job that may lose workers "
        "(at_least) goes on without one with InArtState(fallback=False)"
    )
