"""SelMcast's policies: a manager selects each multicast's receivers (SelMcast paper, III-B and III-C).

Rounds are bulk-synchronous (`SelMcastRounds`) or stale (`SelMcast`). Both can choose at random instead, as Orpheus
does. Agents send to each receiver directly (L7), or once, and switches copy (L3).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from controlplane.planner.plan.task import Edge, SumTree, Task
from controlplane.planner.strategies.wan.policy import (
    Abort,
    Back,
    Changed,
    ContinueAlone,
    Drop,
    Event,
    Failed,
    Finished,
    Lost,
    Measured,
    Order,
    Pace,
    Progress,
    Ready,
    Release,
    Rounds,
    Start,
)
from controlplane.planner.strategies.wan.selmcast import algorithm, shared
from controlplane.planner.strategies.wan.selmcast.network import Network

SCHEMES = ("SelMcast", "Orpheus")
UNDER_WAY = 1e-9
"""The part of a multicast that counts as left while all of it has left its sender and has not arrived."""

PACE_CHANGE = 0.02
"""A sender is told another rate when it differs from the last one by more than this part."""

Bools = NDArray[np.bool_]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class MulticastSettings:
    """Settings of SelMcast's policies. Raises ValueError for another scheme.

    Attributes:
        scheme: "SelMcast" (Algorithms 1 and 2) or "Orpheus".
        k: Every pair meets at least once in k + 1 rounds; None never forces pairs.
        seed: Seed of random choices.
        chunk_values: Values of a chunk in tasks.
        layer: Whether a multicast leaves its sender once ("L3") or once for each receiver ("L7").
        headroom: The part of their rates that multicasts which switches copy leave unused.
    """

    scheme: str = "SelMcast"
    k: int | None = 4
    seed: int = 0
    chunk_values: int = 65_536
    layer: algorithm.Layer = "L7"
    headroom: float = 0.0

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ValueError(f"unknown scheme {self.scheme!r}; known: {', '.join(SCHEMES)}")


@dataclass(frozen=True)
class SelMcastSettings(MulticastSettings):
    """Settings of the stale policy. Raises ValueError for numbers out of range.

    Attributes:
        threshold: How many rounds a worker may be ahead of the slowest one.
        eta: A receiver that has less than this part of a multicast still to get keeps it.
    """

    threshold: int = 4
    eta: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold < 0 or not 0 <= self.eta <= 1:
            raise ValueError(f"threshold must be >= 0 and eta between 0 and 1, got {self.threshold} and {self.eta}")


ROUNDS = MulticastSettings()
STALE = SelMcastSettings()


def _checked(nodes: Sequence[str], upload: ArrayLike, download: ArrayLike, p: int) -> tuple[Reals, Reals]:
    n = len(nodes)
    up, down = np.asarray(upload, float), np.asarray(download, float)
    if up.shape != (n,) or down.shape != (n,):
        raise ValueError(f"{n} nodes need as many uploads and downloads, got {up.shape} and {down.shape}")
    if not 1 <= p <= n - 1:
        raise ValueError(f"p must be 1 .. {n - 1}, got {p}")
    return up, down


class SelMcastRounds(Rounds):
    """Bulk-synchronous rounds: all agents multicast at once, and each takes the mean of its own model and those that
    reach it.

    Args:
        nodes: The agents.
        upload_mbps: The believed upload of each node.
        download_mbps: The believed download of each node.
        p: The least number of receivers of a multicast.
        settings: The settings of the policy.
        network: As for `SelMcast`.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        upload_mbps: ArrayLike,
        download_mbps: ArrayLike,
        p: int,
        settings: MulticastSettings = ROUNDS,
        *,
        network: Network | None = None,
    ) -> None:
        super().__init__(nodes)
        self.upload, self.download = _checked(nodes, upload_mbps, download_mbps, p)
        self.p, self.settings, self.network = p, settings, network
        self.rng = np.random.default_rng(settings.seed)
        self.stale = np.zeros((len(nodes), len(nodes)), np.int64)
        self.now = 0.0

    def learn(self, event: Measured | Changed, now: float) -> None:
        if self.network is not None and isinstance(event, Changed):
            self.network.change((event.sender, event.receiver), event.mbps)

    def broken(self, node: str, other: str) -> None:
        if self.network is not None:
            self.network.broken(node, other, self.now)

    def mended(self, node: str) -> None:
        if self.network is not None:
            self.network.mended(node)

    def task(self, number: int, values: int, now: float) -> Task:
        self.now = now
        x = self._selected(values * 32e-6, now)
        self.stale = np.where(x, 0, self.stale + 1)
        np.fill_diagonal(self.stale, 0)
        trees = {i: _multicast(self.nodes, i, np.flatnonzero(row), values) for i, row in enumerate(x) if row.any()}
        if self.network is not None and self.network.switch is not None:
            for i, mbps in self.network.rates({i: x[i] for i in trees}).items():
                routes = self.network.routes(i, np.flatnonzero(x[i]).tolist())
                trees[i] = replace(trees[i], routes=routes, rate_mbps=mbps * (1 - self.settings.headroom))
        return Task(number, values, tuple(trees.values()), "mix", number, self.settings.chunk_values, 0)

    def _selected(self, volume: float, now: float) -> Bools:
        n = len(self.nodes)
        allowed = ~np.eye(n, dtype=bool)
        if self.network is not None:
            self.network.try_again(now)
            if self.network.switch is not None:
                for i in range(n):
                    self.network.plant(i, ())
            allowed &= np.array([self.network.reached(i) for i in range(n)])
        must = allowed & (np.full((n, n), self.settings.k is not None) & (self.stale >= (self.settings.k or 0)))
        wanted = algorithm.instance(
            self.upload, self.download, np.minimum(self.p, allowed.sum(axis=1)).tolist(), layer=self.settings.layer,
            volumes=volume, must=must, stale=self.stale,
        )  # fmt: skip
        if self.settings.scheme == "Orpheus":
            return algorithm.orpheus(wanted, self.rng, allowed=allowed)
        if self.network is None:
            return algorithm.select(wanted)
        return shared.select(wanted, self.network.links, allowed=allowed)


def _multicast(nodes: Sequence[str], sender: int, receivers: Collection[int], values: int) -> SumTree:
    names = tuple(nodes[j] for j in receivers)
    edges = tuple(Edge(nodes[sender], name) for name in names)
    return SumTree(nodes[sender], 0, values, (), edges, (nodes[sender],), names)


@dataclass
class _Sending:
    """A multicast under way.

    Attributes:
        task: Number of its task.
        values: Values of the model.
        receivers: Its receivers, (n,) bool.
        left: The part of it that each worker has still to get, (n,).
        sent: Whether it has any receiver.
        mbps: The rate that its sender was told.
    """

    task: int
    values: int
    receivers: Bools
    left: Reals
    sent: bool = False
    mbps: float = 0.0


class SelMcast:
    """Stale synchronisation (SSP): a worker that is ready multicasts to the receivers that Algorithm 2 selects. It
    continues when the multicast has arrived and it is at most the threshold of rounds ahead of the slowest worker.
    Receivers that would delay others are dropped from a multicast (preemption), except pairs that k forces and
    receivers that have less than the part eta of it still to get (`select_ssp`).

    The time tau that a worker would wait for the slowest is estimated from how long the slowest have computed before;
    the rest of a multicast is what its sender reported last.

    Args:
        nodes: The agents.
        upload_mbps: As for `SelMcastRounds`.
        download_mbps: As for `SelMcastRounds`.
        p: As for `SelMcastRounds`.
        settings: The settings of the policy.
        network: The network whose links are loaded; where its switches copy, multicasts get its trees and max-min fair
            rates (less the headroom), which senders are told whenever they change (`Pace`). None stands for one big
            switch, as in the paper.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        upload_mbps: ArrayLike,
        download_mbps: ArrayLike,
        p: int,
        settings: SelMcastSettings = STALE,
        *,
        network: Network | None = None,
    ) -> None:
        self.settings, self.network = settings, network
        self.nodes = tuple(nodes)
        self.upload, self.download = _checked(nodes, upload_mbps, download_mbps, p)
        n = self.n = len(self.nodes)
        self.p = p
        self.rng = np.random.default_rng(settings.seed)
        self.index = {node: i for i, node in enumerate(self.nodes)}
        self.stale = np.zeros((n, n), np.int64)
        self.round = np.zeros(n, np.int64)
        self.present = np.zeros(n, bool)
        self.since = np.full(n, np.nan)  # when each worker began to compute; nan: it does not compute
        self.spent = np.full(n, np.nan)  # seconds that each worker computes, a moving mean
        self.sending: dict[int, _Sending] = {}
        self.tasks: dict[int, int] = {}  # task -> sender
        self.waiting: dict[int, int] = {}  # workers that wait for slower ones -> the task that they have done
        self.unsent: set[int] = set()  # tasks that had no receiver
        self.scales: list[int] = []
        self.dropped = 0
        self.numbers = 0

    def handle(self, event: Event, now: float) -> Sequence[Order]:
        return self._paced(self._decide(event, now))

    def _decide(self, event: Event, now: float) -> Sequence[Order]:
        match event:
            case Back(node):
                return self._back(self.index[node], now)
            case Ready(node=node, values=values):
                return self._ready(self.index[node], values, now)
            case Progress(node, task, receiver, left):
                i = self.tasks.get(task)
                if i is not None and self.nodes[i] == node:
                    # `Finished` from the receiver may come before the last report of the sender.
                    before = self.sending[i].left
                    before[self.index[receiver]] = min(before[self.index[receiver]], max(left, UNDER_WAY))
            case Finished(node, task):
                i = self.tasks.get(task)
                if i is not None:
                    return self._arrived(i, self.index[node], now)
            case Lost(node, None):
                return self._lost(self.index[node], now)
            case Lost(node, str(other)):
                return self._cut(self.index[node], self.index[other], now)
            case Changed(sender, receiver, mbps) if self.network is not None:
                self.network.change((sender, receiver), mbps)
            case Failed(task, reason) if task in self.tasks:
                del self.sending[self.tasks.pop(task)]
                return [Abort(task, reason)]
        return ()

    # --- members ---

    def _back(self, i: int, now: float) -> list[Order]:
        if self.network is not None:
            self.network.mended(self.nodes[i])
        if not self.present[i]:
            self.round[i] = self.round[self.present].min() if self.present.any() else 0
            self.present[i] = True
            self.since[i] = now
        return []

    def _lost(self, i: int, now: float) -> list[Order]:
        """Handle that a worker is lost: its multicast ends, it is dropped from the others', and no worker waits for
        it.
        """
        self.present[i] = False
        self.since[i] = np.nan
        self.waiting.pop(i, None)
        if self.network is not None:
            self.network.mended(self.nodes[i])
        orders: list[Order] = []
        own = self.sending.pop(i, None)
        if own is not None:
            del self.tasks[own.task]
        if own is not None and own.sent:
            orders.append(Abort(own.task, f"{self.nodes[i]} is lost"))
        for j in list(self.sending):
            orders += self._without(j, i, now)
        return [*orders, *self._go(now)]

    def _cut(self, i: int, j: int, now: float) -> list[Order]:
        pairs = [(i, j), (j, i)]
        if self.network is not None:
            self.network.broken(self.nodes[i], self.nodes[j], now)
            pairs = [(k, each) for k in self.sending for each in np.flatnonzero(~self.network.reached(k)).tolist()]
        orders: list[Order] = []
        for sender, receiver in pairs:
            if sender in self.sending:
                orders += self._without(sender, receiver, now)
        return orders

    def _without(self, sender: int, receiver: int, now: float) -> list[Order]:
        """Drop a receiver from a multicast, and return the orders."""
        task = self.sending[sender]
        if not task.receivers[receiver]:
            return []
        task.receivers[receiver] = False
        drop = Drop(task.task, (self.nodes[receiver],))
        if (task.receivers & (task.left > 0)).any():
            return [drop]
        return [drop, *self._done(sender, now)]

    # --- selection ---

    def _waits(self, now: float) -> Reals:
        """Return tau, (n,): the seconds that each worker would wait if its multicast were done now."""
        after = self.round.copy()
        after[list(self.sending)] += 1
        least = int(after[self.present].min()) if self.present.any() else 0
        slowest = (after == least) & self.present & np.isfinite(self.since)
        usual = np.nan_to_num(self.spent, nan=float(np.nanmean(self.spent)) if np.isfinite(self.spent).any() else 0.0)
        left = np.maximum(usual - (now - np.nan_to_num(self.since)), 0.0)[slowest]
        return np.where(after - least > self.settings.threshold, float(left.max()) if left.size else 0.0, 0.0)

    def _ready(self, i: int, values: int, now: float) -> list[Order]:
        if np.isfinite(self.since[i]):
            took = now - float(self.since[i])
            self.spent[i] = took if np.isnan(self.spent[i]) else 0.7 * self.spent[i] + 0.3 * took
        self.since[i] = np.nan
        others = self.present.copy()
        others[i] = False
        if self.network is not None:
            self.network.try_again(now)
            if self.network.switch is not None:
                self.network.plant(i, [(k, each.receivers) for k, each in self.sending.items() if k != i])
            others &= self.network.reached(i)
        self.numbers += 1
        task = self.sending[i] = _Sending(self.numbers, values, others, others.astype(float))
        self.tasks[task.task] = i
        if not others.any():
            return self._done(i, now)
        orders = self._select(i, now)
        receivers = np.flatnonzero(task.receivers)
        tree = _multicast(self.nodes, i, receivers, values)
        if self.network is not None:
            tree = replace(tree, routes=self.network.routes(i, receivers.tolist()))
        task.sent = True
        return [
            *orders,
            Start(Task(task.task, values, (tree,), "copy", int(self.round[i]), self.settings.chunk_values, 0)),
        ]

    def _select(self, new: int, now: float) -> list[Order]:
        n = self.n
        x, v, volumes = np.zeros((n, n), bool), np.zeros((n, n)), np.ones(n)
        wanted = np.zeros(n, np.int64)
        for i, task in self.sending.items():
            volumes[i] = task.values * 32e-6
            x[i] = task.receivers & (task.left > 0)
            wanted[i] = max(0, self.p - int((task.receivers & (task.left <= 0)).sum()))
            v[i] = np.where(x[i], task.left * volumes[i], 0.0)
        must = np.zeros((n, n), bool) if self.settings.k is None else (self.stale >= self.settings.k) & x
        wanted = np.minimum(wanted, x.sum(axis=1))
        instance = algorithm.instance(
            self.upload,
            self.download,
            wanted.tolist(),
            layer=self.settings.layer,
            volumes=volumes,
            must=must,
            stale=self.stale,
        )
        if self.settings.scheme == "Orpheus":
            free = np.flatnonzero(x[new] & ~must[new])
            more = max(0, int(wanted[new]) - int(must[new].sum()))
            y = must[new].copy()
            y[self.rng.choice(free, min(more, len(free)), replace=False)] = True
            self.sending[new].receivers = y
            return []
        ongoing = algorithm.Ongoing(x, v, self._waits(now), list(self.sending))
        if self.network is None:
            kept = algorithm.select_ssp(instance, ongoing, eta=self.settings.eta)
        else:
            kept = shared.select_ssp(instance, ongoing, self.network.links, eta=self.settings.eta)
        orders: list[Order] = []
        for i, task in list(self.sending.items()):
            gone = np.flatnonzero(x[i] & ~kept[i]).tolist()
            if i == new:
                task.receivers = kept[i]
            elif gone:
                self.dropped += len(gone)
                for j in gone:
                    orders += self._without(i, j, now)
        return orders

    def _paced(self, orders: Sequence[Order]) -> Sequence[Order]:
        """Return the orders with changes of rates: first for senders that become slower, then the orders themselves,
        then for senders that become faster.
        """
        if self.network is None or self.network.switch is None:
            return orders
        rates = self.network.rates({i: each.receivers & (each.left > UNDER_WAY) for i, each in self.sending.items()})
        slower: list[Order] = []
        faster: list[Order] = []
        for i, fair in rates.items():
            task, mbps = self.sending[i], fair * (1 - self.settings.headroom)
            if abs(mbps - task.mbps) > PACE_CHANGE * task.mbps:
                (slower if mbps < task.mbps else faster).append(Pace(task.task, mbps))
                task.mbps = mbps
        told = {each.task: each.mbps for each in self.sending.values()}
        begun = {order.task.number for order in orders if isinstance(order, Start)}
        there = [
            Start(order.task.at_rate(told[order.task.number])) if isinstance(order, Start) else order
            for order in orders
        ]
        return [*slower, *there, *(each for each in faster if isinstance(each, Pace) and each.task not in begun)]

    # --- multicasts that are done ---

    def _arrived(self, i: int, j: int, now: float) -> list[Order]:
        task = self.sending[i]
        task.left[j] = 0.0
        return [] if (task.receivers & (task.left > 0)).any() else self._done(i, now)

    def _done(self, i: int, now: float) -> list[Order]:
        task = self.sending.pop(i)
        del self.tasks[task.task]
        self.scales.append(int(task.receivers.sum()))
        self.stale[i] += 1
        self.stale[i, task.receivers] = 0
        self.stale[i, i] = 0
        self.round[i] += 1
        self.waiting[i] = task.task
        if not task.sent:
            self.unsent.add(task.task)
        return self._go(now)

    def _go(self, now: float) -> list[Order]:
        if not self.present.any():
            return []
        limit = int(self.round[self.present].min()) + self.settings.threshold
        ready = [i for i in sorted(self.waiting) if self.round[i] <= limit]
        for i in ready:
            self.since[i] = now
        orders: list[Order] = []
        for i in ready:
            task = self.waiting.pop(i)
            if task in self.unsent:
                self.unsent.discard(task)
                orders.append(ContinueAlone(self.nodes[i], "no other agent can be reached"))
            else:
                orders.append(Release(self.nodes[i], task))
        return orders
