"""Metrics of a state: for people, TensorBoard and Prometheus."""

from __future__ import annotations

import threading
import time
from collections import Counter


class Counts:
    """The counters of one state.

    Attributes:
        falls: how often the job left the network.
        steps_in_network: steps that went through the network.
        steps_outside: steps that went over torch.distributed.
        operations_outside: operations that torch.distributed alone carried, by their kinds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.falls = 0
        self.steps_in_network = 0
        self.steps_outside = 0
        self.operations_outside: Counter[str] = Counter()
        self._reductions = 0
        self._bytes = 0
        self._seconds = 0.0
        self._exposed = 0.0

    def step_begins(self, network: bool) -> None:
        """Count a step, which goes through the network or not."""
        with self._lock:
            if network:
                self.steps_in_network += 1
            else:
                self.steps_outside += 1

    def reduced(self, nbytes: int) -> None:
        """Count a tensor of so many bytes."""
        with self._lock:
            self._reductions += 1
            self._bytes += nbytes

    def outside(self, kind: str) -> bool:
        """Count an operation that torch.distributed alone carries, and return whether it is the first of its kind."""
        with self._lock:
            self.operations_outside[kind] += 1
            return self.operations_outside[kind] == 1

    def step_ends(self, began: float, last: float) -> None:
        """Add the times of a step that ends now.

        Args:
            began: when the step's first tensor was submitted (time.monotonic).
            last: when its last tensor was submitted.
        """
        now = time.monotonic()
        with self._lock:
            self._seconds += now - began
            self._exposed += now - last

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name; see InArtState.metrics."""
        with self._lock:
            overlap = 1 - self._exposed / self._seconds if self._seconds else 0.0
            return {
                "steps_in_network": self.steps_in_network,
                "steps_outside": self.steps_outside,
                "operations_outside": self.operations_outside.total(),
                "falls": self.falls,
                "reductions": self._reductions,
                "bytes_reduced": self._bytes,
                "communication_seconds": self._seconds,
                "exposed_seconds": self._exposed,
                "overlap": overlap,
            }
