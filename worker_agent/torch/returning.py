"""Brings a process group back to the network after a fall back to torch.distributed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from worker_agent.errors import AgentError, NotReadyError
from worker_agent.metrics import Counts
from worker_agent.shared import Reducer
from worker_agent.torch.control import Control

FIRST_PAUSE_SECONDS = 0.5
LAST_PAUSE_SECONDS = 30.0
JOIN_SECONDS = 2.0
STEADY_SECONDS = 60.0
"""Seconds in the network after which earlier failures are forgotten, and the next return begins quickly."""


@dataclass(frozen=True)
class Joining:
    """The functions with which a process group returns to the network.

    Attributes:
        join: returns a reducer that is ready, and waits for it for at most the given seconds; may raise AgentError or
            OSError.
        valid: returns in words what is wrong with a reducer; empty where nothing is.
        failed: called with the reasons of all ranks when a step has failed.
        returned: called with the reducer when the network is used again.
    """

    join: Callable[[float], Reducer]
    valid: Callable[[Reducer], str]
    failed: Callable[[str], None]
    returned: Callable[[Reducer], None]


class Return:
    """Joins again in the background, until all ranks return to the network at the same step.

    After a step the ranks start an all-reduce of "this rank could return", and use its result a step later, when it has
    long completed.

    Args:
        control: the agreements of all ranks.
        pause: seconds before the first attempt; later ones are longer.
    """

    def __init__(self, network: Joining, control: Control, pause: float) -> None:
        self._network = network
        self._control = control
        self._pause = pause
        self._stop = threading.Event()
        self._reducer: Reducer | None = None
        self._offer: tuple[Reducer | None, torch.Tensor, Any] | None = None
        self._thread = threading.Thread(target=self._run, name="inart-return", daemon=True)
        self._thread.start()

    def poll(self) -> Reducer | None:
        """Return the reducer to use from now on, or None while there is none; all ranks call this once a step."""
        if self._offer is not None:
            reducer, offer, work = self._offer
            self._control.wait(work)
            self._offer = None
            could, most, least = (int(number) for number in offer)
            if could and most == -least:  # All ranks are in the same epoch.
                return reducer
        reducer = self._reducer
        could = reducer is not None and getattr(reducer, "ready", True)
        epoch = getattr(reducer, "epoch", 0)
        offer = torch.tensor([int(could), epoch, -epoch], dtype=torch.int64)
        self._offer = reducer, offer, self._control.keep(self._control.group.allreduce([offer], dist.ReduceOp.MIN))
        if not could and reducer is not None:
            self._reducer = None  # Its epoch has ended: the thread looks for the next one.
        return None

    def close(self) -> None:
        """Stop the attempts."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            if self._reducer is not None:
                continue
            try:
                reducer = self._network.join(JOIN_SECONDS)
                if not self._network.valid(reducer):
                    self._reducer = reducer
                    continue
            except NotReadyError:
                # A rank is missing: another attempt costs nothing, and all ranks should notice the return soon.
                continue
            except (AgentError, OSError):
                pass
            self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS)


class Returns:
    """The returns to the network, one after each fall; quick falls one after another make the pauses longer.

    Args:
        network: how to return.
        control: the agreements of all ranks.
        counts: the counters of the process group.
    """

    def __init__(self, network: Joining, control: Control, counts: Counts) -> None:
        self._network, self._control, self._counts = network, control, counts
        self._return: Return | None = None
        self._pause = FIRST_PAUSE_SECONDS
        self._since = time.monotonic()

    def fall(self, reasons: str) -> None:
        """Take note that the ranks use torch.distributed from now on, for these reasons, and begin to try the network
        again.
        """
        steady = time.monotonic() - self._since > STEADY_SECONDS
        again = self._counts.falls > 0 and not steady
        self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS) if again else FIRST_PAUSE_SECONDS
        self._counts.falls += 1
        self._return = Return(self._network, self._control, self._pause)
        self._network.failed(reasons)

    def poll(self) -> Reducer | None:
        """Return the reducer to come back with now, or None while there is none; all ranks call this once a step."""
        reducer = self._return.poll() if self._return is not None else None
        if reducer is not None:
            self.close()
        return reducer

    def returned(self, reducer: Reducer) -> None:
        """Take note that the network is used again."""
        self._since = time.monotonic()
        self._network.returned(reducer)

    def close(self) -> None:
        """Stop the attempts."""
        if self._return is not None:
            self._return.close()
            self._return = None
