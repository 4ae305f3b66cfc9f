"""Steps of training, the buffers that are reduced in each, and their outcomes."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from worker_agent.collectives import Collective
from worker_agent.errors import AgentError
from worker_agent.torch.passage import Passage
from worker_agent.torch.staging import Completion
from worker_agent.work import Work


@dataclass
class Step:
    """A step of training.

    Attributes:
        number: its place in the order of the steps.
        network: True where it goes through the network, False where it goes over torch.distributed, None where that is
            not decided.
        aside: whether it goes over torch.distributed in any case, because that is faster.
    """

    number: int
    network: bool | None
    aside: bool = False
    began: float = field(default_factory=time.monotonic)
    items: list[Item] = field(default_factory=list)
    problem: str = ""


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
    reduced: torch.futures.Future[torch.Tensor] | None = None
    passage: Passage | None = None
    problem: str = ""
    early: bool = False
    kept: torch.Tensor | None = None
    work: Work | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    added: float = field(default_factory=time.monotonic)


def explained(error: Exception) -> Exception:
    """Return the error, with a message that says what to do where it is gloo's for a lost rank."""
    if not isinstance(error, RuntimeError) or isinstance(error, AgentError):
        return error
    return AgentError(
        f"the ranks cannot agree on a step over torch.distributed: {str(error).partition(chr(10))[0]} A process group "
        "does not survive the loss of a rank: let the launcher start all of them again. A job that may lose workers "
        "(at_least) goes on without one with InArtState(fallback=False)"
    )


def error_of(future: Any) -> Exception | None:
    """Return the error with which a future has ended; None where it has a value."""
    try:
        future.value()
    except Exception as error:
        return error
    return None


def problem_of(future: torch.futures.Future[torch.Tensor]) -> str:
    """Return in words why the future has no value; empty where it has one."""
    error = error_of(future)
    if error is None:
        return ""
    # torch appends the Python stack to the text of an exception from a Future, and puts its class before it.
    text = str(error).partition("\n\nAt:")[0].strip()
    return re.sub(r"^(\w+Error|Error): ", "", text) or type(error).__name__
