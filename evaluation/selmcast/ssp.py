"""SSP training with selective multicast, as a policy on the flow-level simulator (SelMcast paper, III-C and IV-C).

A worker computes, multicasts its model, and goes on when its multicast is done and it is at most `threshold` rounds
ahead of the slowest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from controlplane.simulate import BigSwitch, Simulator
from controlplane.strategies.wan.selmcast import algorithm as selmcast
from evaluation.wan.workloads import RUNTIMES


@dataclass(frozen=True)
class Setup:
    """variation: lambda. ratio: mu, upload over download. fraction: p / n. volume: Mbit. k: every pair at least once in
    k + 1 rounds (None: never forced). threshold: of SSP. gamma, interval: bandwidths become b#(1 - gamma) + gamma b*
    every interval (s). prioritised: transfers of workers that would wait anyway (tau > 0) go last."""

    scheme: str = "SelMcast"
    workload: str = "lstm"
    n: int = 50
    fraction: float = 0.3
    k: int | None = 4
    threshold: int = 4
    eta: float = 0.75
    variation: float = 0.5
    ratio: float = 1.0
    mean_mbps: float = 40_000.0
    volume: float = 1600.0
    layer: selmcast.Layer = "L3"
    gamma: float = 0.0
    interval: float = 0.1
    waiting_first: bool = False
    prioritised: bool = False

    def __post_init__(self) -> None:
        if self.scheme not in ("SelMcast", "Orpheus"):
            raise ValueError(f"unknown scheme {self.scheme!r}; known: SelMcast, Orpheus")
        if self.n < 2 or not 0 < self.fraction <= 1 - 1 / self.n:
            raise ValueError(f"n must be >= 2 and p / n between 0 and 1 - 1 / n, got {self.n} and {self.fraction}")
        if not (0 <= self.variation < 1 and 0 <= self.gamma <= 1 and self.ratio > 0 and self.mean_mbps > 0):
            raise ValueError("bandwidths must stay above 0: 0 <= variation < 1, 0 <= gamma <= 1, ratio and mean > 0")
        if self.workload not in RUNTIMES:
            raise ValueError(f"unknown workload {self.workload!r}; known: {', '.join(RUNTIMES)}")


@dataclass
class _Multicast:
    receivers: NDArray[np.bool_]
    flows: dict[int, int] = field(default_factory=dict)  # receiver -> flow (L3: -1 -> the only one)


class Training:
    """One run. `run` returns (mean utilisation of the workers' processors, mean receivers per multicast / n)."""

    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup = setup
        n = self.n = setup.n
        self.rng = np.random.default_rng([seed, n])
        self.base_up, self.base_down = self._draw()
        self.up, self.down = self.base_up.copy(), self.base_down.copy()
        self.switch = BigSwitch(self.up.tolist(), self.down.tolist())
        self.sim = Simulator(self.switch.capacities)
        self.p = max(1, round(setup.fraction * n))
        self.stale = np.zeros((n, n), np.int64)
        self.round = np.zeros(n, np.int64)
        self.ends = np.full(n, np.inf)  # of the present computation
        self.computed = np.zeros(n)
        self.scales: list[int] = []
        self.multicasts: dict[int, _Multicast] = {}
        self.waiting: set[int] = set()
        self.streams = self.rng.spawn(n)
        self.steps: list[list[float]] = [[] for _ in range(n)]

    def _draw(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        s = self.setup
        down = s.mean_mbps * (1 + s.variation * self.rng.uniform(-1, 1, s.n))
        up = s.mean_mbps * s.ratio * (1 + s.variation * self.rng.uniform(-1, 1, s.n))
        return up, down

    def run(self, seconds: float) -> tuple[float, float]:
        for worker in range(self.n):
            self._compute(worker)
        if self.setup.gamma > 0:
            self.sim.after(self.setup.interval, self._vary)
        self.sim.run(seconds)
        running = np.isfinite(self.ends)
        busy = self.computed - np.where(running, np.maximum(self.ends - seconds, 0), 0)
        scale = float(np.mean(self.scales)) / self.n if self.scales else float("nan")
        return float(busy.mean()) / seconds, scale

    def _vary(self) -> None:
        up, down = self._draw()
        gamma = self.setup.gamma
        self.up, self.down = self.base_up * (1 - gamma) + gamma * up, self.base_down * (1 - gamma) + gamma * down
        for resource, mbps in enumerate(np.concatenate([self.up, self.down]).tolist()):
            self.sim.set_capacity(resource, mbps)
        self.sim.after(self.setup.interval, self._vary)

    def _compute(self, worker: int) -> None:
        steps = self.steps[worker]
        if not steps:
            steps.extend(RUNTIMES[self.setup.workload].with_mean(self.streams[worker], 256, 1.0).tolist())
        time = steps.pop()
        self.ends[worker] = self.sim.now + time
        self.computed[worker] += time
        self.sim.after(time, partial(self._ready, worker))

    def _must(self) -> NDArray[np.bool_]:
        return np.zeros((self.n, self.n), bool) if self.setup.k is None else self.stale >= self.setup.k

    def _instance(self) -> selmcast.Instance:
        return selmcast.instance(
            self.up,
            self.down,
            self.p,
            layer=self.setup.layer,
            volumes=self.setup.volume,
            must=self._must(),
            stale=self.stale,
        )

    def _waits(self) -> NDArray[np.float64]:
        """tau: 0, but for workers that would be too far ahead the time until the slowest have computed."""
        after = self.round.copy()
        after[list(self.multicasts)] += 1
        least = int(after.min())
        slowest = (after == least) & np.isfinite(self.ends)
        left = float((self.ends[slowest] - self.sim.now).max()) if slowest.any() else 0.0
        return np.where(after - least > self.setup.threshold, max(left, 0.0), 0.0)

    def _ready(self, worker: int) -> None:
        self.ends[worker] = np.inf
        everyone = np.ones(self.n, bool)
        everyone[worker] = False
        if self.setup.scheme == "Orpheus":
            x = selmcast.orpheus(self._instance(), self.rng, [worker])
            self._send(worker, x[worker])
            return
        v = np.zeros((self.n, self.n))
        x = np.zeros((self.n, self.n), bool)
        for i, task in self.multicasts.items():
            x[i] = task.receivers
            if self.setup.layer == "L3":
                v[i] = np.where(task.receivers, self.sim.remaining(task.flows[-1]), 0.0)
            else:
                ids = list(task.flows)
                v[i, ids] = np.maximum(self.sim.remaining_many([task.flows[j] for j in ids]), 0.0)
        x[worker], v[worker] = everyone, np.where(everyone, self.setup.volume, 0.0)
        active = [*self.multicasts, worker]
        waits = self._waits()
        y = selmcast.select_ssp(
            self._instance(),
            selmcast.Ongoing(x, v, waits, active),
            eta=self.setup.eta,
            waiting_first=self.setup.waiting_first,
        )
        for i, task in self.multicasts.items():
            dropped = task.receivers & ~y[i]
            if dropped.any():
                task.receivers = y[i]
                if self.setup.layer == "L3":
                    self.sim.set_path(task.flows[-1], self.switch.multicast(i, np.flatnonzero(y[i]).tolist()))
                else:
                    for j in np.flatnonzero(dropped).tolist():
                        self.sim.set_remaining(task.flows[j], 0.0)
            if self.setup.prioritised:
                for flow in task.flows.values():
                    self.sim.set_priority(flow, int(waits[i] > 0))
        self._send(worker, y[worker], priority=int(self.setup.prioritised and waits[worker] > 0))

    def _send(self, worker: int, receivers: NDArray[np.bool_], priority: int = 0) -> None:
        task = _Multicast(receivers)
        self.multicasts[worker] = task
        ids = np.flatnonzero(receivers).tolist()
        group = self.sim.groups(1, lambda _: self._done(worker))[0]
        self.sim.hold(group)
        if self.setup.layer == "L3":
            path = self.switch.multicast(worker, ids)
            task.flows[-1] = self.sim.send(self.setup.volume, path, group=group, priority=priority)
        else:
            for j in ids:
                path = self.switch.unicast(worker, j)
                task.flows[j] = self.sim.send(self.setup.volume, path, group=group, priority=priority)
        self.sim.release(group)

    def _done(self, worker: int) -> None:
        task = self.multicasts.pop(worker)
        self.scales.append(int(task.receivers.sum()))
        self.stale[worker] += 1
        self.stale[worker, task.receivers] = 0
        self.stale[worker, worker] = 0
        self.round[worker] += 1
        self.waiting.add(worker)
        limit = int(self.round.min()) + self.setup.threshold
        for ready in sorted(w for w in self.waiting if self.round[w] <= limit):
            self.waiting.remove(ready)
            self._compute(ready)
