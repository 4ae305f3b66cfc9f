"""SSP training with selective multicast on the flow-level simulator (SelMcast paper, III-C and IV-C).

A worker computes, multicasts its model, and goes on when its multicast is done and it is at most `threshold` rounds
ahead of the slowest. The manager is the policy that the coordinator also runs in the real system. A transfer is one
flow at the rate of its slowest receiver (L3), not chunks, and the manager knows exactly how much of it remains.
docs/adr/0009-simulators-of-figures.md says why these figures do not use overlay/sim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from controlplane.planner.plan.task import Task
from controlplane.planner.simulate import BigSwitch, Simulator
from controlplane.planner.strategies.wan.policy import Back, Drop, Event, Finished, Order, Ready, Release, Start
from controlplane.planner.strategies.wan.selmcast.policy import SelMcast, SelMcastSettings
from evaluation.wan.workloads import RUNTIMES

MEAN_MBPS = 40_000.0
VARIATION = 0.5
"""The paper's lambda: bandwidths are within this part of their mean."""

CHANGE_SECONDS = 0.1


@dataclass(frozen=True)
class Setup:
    """The settings of a simulation.

    Attributes:
        fraction: p / n.
        volume: Mbit.
        k: every pair at least once in k + 1 rounds (None for never forced).
        threshold: threshold of SSP, in rounds.
        gamma: bandwidths become b#(1 - gamma) + gamma b* every CHANGE_SECONDS.
    """

    scheme: str = "SelMcast"
    workload: str = "lstm"
    n: int = 50
    fraction: float = 0.3
    k: int | None = 4
    threshold: int = 4
    eta: float = 0.75
    volume: float = 1600.0
    gamma: float = 0.0

    def __post_init__(self) -> None:
        if self.scheme not in ("SelMcast", "Orpheus"):
            raise ValueError(f"unknown scheme {self.scheme!r}; known: SelMcast, Orpheus")
        if self.n < 2 or not 0 < self.fraction <= 1 - 1 / self.n:
            raise ValueError(f"n must be >= 2 and p / n between 0 and 1 - 1 / n, got {self.n} and {self.fraction}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"bandwidths must stay above 0: 0 <= gamma <= 1, got {self.gamma}")
        if self.workload not in RUNTIMES:
            raise ValueError(f"unknown workload {self.workload!r}; known: {', '.join(RUNTIMES)}")


@dataclass
class _Multicast:
    number: int
    receivers: set[int]
    flow: int


class Training:
    """A simulation run. `run` returns the mean utilisation of the workers' processors, and the mean receivers per
    multicast / n.
    """

    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup = setup
        n = self.n = setup.n
        self.rng = np.random.default_rng([seed, n])
        self.base_up, self.base_down = self._draw()
        self.up, self.down = self.base_up.copy(), self.base_down.copy()
        self.switch = BigSwitch(self.up.tolist(), self.down.tolist())
        self.sim = Simulator(self.switch.capacities)
        self.ends = np.full(n, np.inf)  # ends of the present computations
        self.computed = np.zeros(n)
        self.multicasts: dict[int, _Multicast] = {}
        self.streams = self.rng.spawn(n)
        self.steps: list[list[float]] = [[] for _ in range(n)]
        self.policy = SelMcast(
            [str(worker) for worker in range(n)],
            self.up,
            self.down,
            max(1, round(setup.fraction * n)),
            settings=SelMcastSettings(
                scheme=setup.scheme,
                k=setup.k,
                threshold=setup.threshold,
                eta=setup.eta,
                layer="L3",
            ),
        )
        self.policy.rng = self.rng
        self.values = round(setup.volume / 32e-6)

    def _draw(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        down, up = (MEAN_MBPS * (1 + VARIATION * self.rng.uniform(-1, 1, self.n)) for _ in range(2))
        return up, down

    def run(self, seconds: float) -> tuple[float, float]:
        for worker in range(self.n):
            self._tell(Back(str(worker)))
            self._compute(worker)
        if self.setup.gamma > 0:
            self.sim.after(CHANGE_SECONDS, self._vary)
        self.sim.run(seconds)
        running = np.isfinite(self.ends)
        busy = self.computed - np.where(running, np.maximum(self.ends - seconds, 0), 0)
        scales = self.policy.scales
        scale = float(np.mean(scales)) / self.n if scales else float("nan")
        return float(busy.mean()) / seconds, scale

    def _vary(self) -> None:
        up, down = self._draw()
        gamma = self.setup.gamma
        self.up, self.down = self.base_up * (1 - gamma) + gamma * up, self.base_down * (1 - gamma) + gamma * down
        self.policy.upload, self.policy.download = self.up, self.down  # the manager knows the new bandwidths
        for resource, mbps in enumerate(np.concatenate([self.up, self.down]).tolist()):
            self.sim.set_capacity(resource, mbps)
        self.sim.after(CHANGE_SECONDS, self._vary)

    def _compute(self, worker: int) -> None:
        steps = self.steps[worker]
        if not steps:
            steps.extend(RUNTIMES[self.setup.workload].with_mean(self.streams[worker], 256, 1.0).tolist())
        time = steps.pop()
        self.ends[worker] = self.sim.now + time
        self.computed[worker] += time
        self.sim.after(time, partial(self._ready, worker))

    def _ready(self, worker: int) -> None:
        self.ends[worker] = np.inf
        for sender, task in self.multicasts.items():
            left = self.sim.remaining(task.flow) / self.setup.volume
            self.policy.sending[sender].left[list(task.receivers)] = left
        self._tell(Ready(str(worker), self.values))

    # --- orders of the manager ---

    def _tell(self, event: Event) -> None:
        self._carry_out(self.policy.handle(event, self.sim.now))

    def _carry_out(self, orders: Sequence[Order]) -> None:
        lost: dict[int, set[int]] = {}
        for order in orders:
            if isinstance(order, Drop):
                lost.setdefault(order.task, set()).update(map(int, order.nodes))
        for worker, task in self.multicasts.items():
            if task.number in lost:
                self._without(worker, task, lost[task.number])
        for order in orders:
            if isinstance(order, Start):
                self._send(order.task)
            elif isinstance(order, Release):
                self._compute(int(order.node))

    def _without(self, worker: int, task: _Multicast, gone: set[int]) -> None:
        task.receivers -= gone
        self.sim.set_path(task.flow, self.switch.multicast(worker, sorted(task.receivers)))

    def _send(self, order: Task) -> None:
        worker, ids = int(order.trees[0].root), [int(name) for name in order.trees[0].receivers]
        path = self.switch.multicast(worker, ids)
        flow = self.sim.send(self.setup.volume, path, partial(self._done, worker))
        self.multicasts[worker] = _Multicast(order.number, set(ids), flow)

    def _done(self, worker: int) -> None:
        task = self.multicasts.pop(worker)
        for receiver in sorted(task.receivers):
            self._tell(Finished(str(receiver), task.number))
