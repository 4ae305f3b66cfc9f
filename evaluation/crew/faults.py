"""Faults of a simulated training with partial reduce: which connections fail, and which workers learn of it when (CREW
paper, section IV-B).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controlplane.planner.simulate import Overlay, Simulator
from controlplane.planner.strategies.wan.policy import Back, Event, Lost, Silent

CONTROLLER = -1


@dataclass(frozen=True)
class Fault:
    """The connection between two workers (both ways) is down from start to end (s).

    Where `other` is None the worker itself is down; where it is CONTROLLER, the worker's connection with the
    controller. Workers that use the connection learn of the fault `detection` seconds after it starts. Where `worker`
    is CONTROLLER and `other` None, the controller itself is down, until its backup has asked all workers for their
    states.
    """

    worker: int
    other: int | None
    start: float = 0.0
    end: float = float("inf")
    detection: float = 0.0

    @property
    def known(self) -> bool:
        """Whether anybody learns of the fault: it may end before that."""
        return self.start + self.detection <= self.end

    def pairs(self, workers: int) -> list[tuple[int, int]]:
        """Return the connections that it interrupts, as sender and receiver."""
        if self.other == CONTROLLER:
            return []
        others = [self.other] if self.other is not None else [k for k in range(workers) if k != self.worker]
        return [pair for k in others for pair in ((self.worker, k), (k, self.worker))]


@dataclass(frozen=True)
class Effects:
    """Effects of faults on the training.

    Attributes:
        tell: tells the controller of an event.
        leaves: removes a worker from those that are ready; returns whether it was ready.
        train: has a worker begin its next local step.
        reached: called when the controller is back.
    """

    tell: Callable[[Event], None]
    leaves: Callable[[int], bool]
    train: Callable[[int], None]
    reached: Callable[[], None]


class Faults:
    """The faults under way in one simulated training.

    Attributes:
        gone: (n,) number of each worker's faults that the controller knows.
        alone: (n,) number of faults of each worker's connection with the controller.
        away: number of faults of the controller itself.
        lost: workers that are down, and go on when they are back.
    """

    def __init__(self, sim: Simulator, overlay: Overlay, effects: Effects) -> None:
        self._sim, self._overlay, self._effects = sim, overlay, effects
        self._n = overlay.n
        self.gone = np.zeros(self._n, dtype=int)
        self.alone = np.zeros(self._n, dtype=int)
        self.away = 0
        self.lost: set[int] = set()
        self._cut: NDArray[np.int_] = np.zeros((self._n, self._n), dtype=int)  # faults of each connection
        self._noticed = np.zeros((self._n, self._n), dtype=int)  # faults of each connection that the controller knows

    @property
    def down(self) -> NDArray[np.bool_]:
        """(n, n) connections that must not be used, as the controller is told; the diagonal stands for workers."""
        gone = self.gone > 0
        return (self._noticed > 0) | gone[:, None] | gone

    def plan(self, fault: Fault) -> None:
        """Have a fault begin and end at its times."""
        if fault.worker == CONTROLLER:
            self._plan_handover(fault)
            return
        self._sim.at(fault.start, lambda: self._breaks(fault))
        if fault.known:
            self._sim.at(fault.start + fault.detection, lambda: self._is_noticed(fault))
        if fault.end < float("inf"):
            self._sim.at(fault.end, lambda: self._ends(fault))

    def _breaks(self, fault: Fault) -> None:
        for i, j in fault.pairs(self._n):
            self._cut[i, j] += 1
            self._sim.set_capacity(i * self._n + j, 0.0)

    def _is_noticed(self, fault: Fault) -> None:
        worker = fault.worker
        if fault.other is None:
            self.gone[worker] += 1
            if self._effects.leaves(worker):
                self.lost.add(worker)
            self._effects.tell(Lost(str(worker)))
        elif fault.other == CONTROLLER:
            self.alone[worker] += 1
            if self._effects.leaves(worker):
                self._effects.train(worker)
            self._effects.tell(Silent(str(worker)))
        else:
            for i, j in fault.pairs(self._n):
                self._noticed[i, j] += 1
            self._effects.tell(Lost(str(worker), str(fault.other)))

    def _ends(self, fault: Fault) -> None:
        worker, pairs = fault.worker, fault.pairs(self._n)
        for i, j in pairs:
            self._cut[i, j] -= 1
            if not self._cut[i, j]:
                self._sim.set_capacity(i * self._n + j, self._overlay.bandwidth[i, j])
        if not fault.known:
            return
        if fault.other is None or fault.other == CONTROLLER:
            (self.gone if fault.other is None else self.alone)[worker] -= 1
            self._returns(worker)
        else:
            for i, j in pairs:
                self._noticed[i, j] -= 1
            if not self._noticed[worker, fault.other]:
                self._effects.tell(Back(str(worker), str(fault.other)))

    def _returns(self, worker: int) -> None:
        """End one of a worker's faults, and tell the controller of those that remain."""
        tell = self._effects.tell
        tell(Back(str(worker)))
        for other in np.flatnonzero(self._noticed[worker]).tolist():
            tell(Lost(str(worker), str(other)))
        if self.alone[worker]:
            tell(Silent(str(worker)))
        if self.gone[worker]:
            tell(Lost(str(worker)))
        elif worker in self.lost:
            self.lost.remove(worker)
            self._effects.train(worker)

    def _plan_handover(self, fault: Fault) -> None:
        """Plan the controller's failure: groups that have begun go on; none is formed or repaired before the backup
        acts.
        """

        def leaves() -> None:
            self.away += 1

        def back() -> None:
            self.away -= 1
            if not self.away:
                self._effects.reached()

        self._sim.at(fault.start, leaves)
        if fault.end < float("inf"):
            self._sim.at(fault.end, back)
