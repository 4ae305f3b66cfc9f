"""SelMcast's Algorithms 1 and 2 for networks in which multicasts share links.

The paper's network is one big switch: the sender's upload and the receiver's download limit a multicast, Eq. (10) and
(11). In a network of few links the limit is some link of the path, another one for each pair. Here (10) and (11) have a
row for each link: the time that it needs to carry what is selected. A receiver's load is the largest on the path to it.
On one big switch both algorithms choose the receivers that the paper's algorithms choose, where a sender has equally
much left for each of its receivers; where it has not, its own link tells them apart here, and does not in the paper.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from controlplane.planner.strategies.wan.links import Links
from controlplane.planner.strategies.wan.selmcast.algorithm import TOLERANCE, Bools, Instance, Layer, Ongoing, Reals


class _Selection:
    """The receivers selected so far, and the Mbit that each link has to carry for them. `v` has the Mbit of each pair,
    (n, n).
    """

    def __init__(self, links: Links, layer: Layer, v: Reals, begin: Bools) -> None:
        n, _, count = links.crosses.shape
        self.links, self.copied, self.v = links, layer == "L3", v
        self.y = np.zeros_like(begin)
        self.load: Reals = np.zeros(count)
        self.own: Reals = np.zeros((n, count))
        """Mbit of each sender on each link; with L3 a link carries a multicast once, so its largest volume counts."""
        for i, j in zip(*np.nonzero(begin), strict=True):
            self.add(int(i), int(j))

    def _more(self, i: int, receivers: NDArray[np.intp]) -> Reals:
        """Return the Mbit that i adds to each link with each of the receivers, one at a time, shape (receivers,
        links).
        """
        more = np.where(self.links.crosses[i, receivers], self.v[i, receivers, None], 0.0)
        return np.maximum(more - self.own[i], 0.0) if self.copied else more

    def times(self, i: int, receivers: NDArray[np.intp]) -> Reals:
        """Return the seconds that each link on the path would need with each of these receivers, one at a time, shape
        (receivers, links); 0 for links that are not on the path.
        """
        total = np.where(self.links.crosses[i, receivers], self.load + self._more(i, receivers), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(total > 0, total / self.links.mbps, 0.0)

    def add(self, i: int, j: int) -> None:
        """Select j as a receiver of i."""
        more = self._more(i, np.array([j]))[0]
        self.y[i, j] = True
        self.load += more
        self.own[i] += more

    def seconds(self, i: int) -> float:
        """Return the seconds until all links that i uses have carried everything that is selected."""
        used = self.links.crosses[i, self.y[i]].any(axis=0) & (self.load > 0)
        with np.errstate(divide="ignore"):
            return float((self.load[used] / self.links.mbps[used]).max(initial=0.0))

    def basic(self, i: int, q: int, candidates: Bools) -> None:
        """Select q more receivers, one by one, each the least loaded one (ties are broken by all links on the path,
        then by number).
        """
        for _ in range(q):
            free = np.flatnonzero(candidates & ~self.y[i])
            times = self.times(i, free)
            slowest, total = times.max(axis=1, initial=0.0), times.sum(axis=1)
            best = min(range(len(free)), key=lambda k: (slowest[k], total[k], free[k]), default=None)
            if best is None or not np.isfinite(slowest[best]):
                return
            self.add(i, int(free[best]))

    def improve(self, candidates: Bools, stale: NDArray[np.int64], deadline: Reals) -> None:
        """Add receivers that do not delay a sender past its deadline (Pareto improvement), the stalest pairs first."""
        rows, columns = np.nonzero(candidates & ~self.y)
        order = np.argsort(-stale[rows, columns], kind="stable")
        for i, j in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
            if self.times(i, np.array([j])).max(initial=0.0) <= deadline[i] * TOLERANCE:
                self.add(i, j)


def select(task: Instance, links: Links, *, allowed: Bools | None = None) -> Bools:
    """Return the selection of Algorithm 1, (n, n) bool, with the rates of the links instead of the task's upload and
    download. `allowed` has the pairs that may be selected, (n, n) bool (None: all).
    """
    others = ~np.eye(task.n, dtype=bool) if allowed is None else allowed
    chosen = _Selection(links, task.layer, np.repeat(task.volumes[:, None], task.n, axis=1), task.must)
    for i in np.lexsort((-task.volumes, -task.must.sum(axis=1))).tolist():
        chosen.basic(i, int(task.receivers[i] - chosen.y[i].sum()), others[i])
    t = max((chosen.seconds(i) for i in range(task.n)), default=0.0)
    chosen.improve(others, task.stale, np.full(task.n, t))
    return chosen.y


def select_ssp(task: Instance, now: Ongoing, links: Links, *, eta: float = 0.75) -> Bools:
    """Return the selection of Algorithm 2 (see `algorithm.select_ssp`), with the rates of the links instead of the
    task's upload and download.
    """
    x, v = now.x, now.remaining
    chosen = _Selection(links, task.layer, v, x & (task.must | (v < eta * task.volumes[:, None])))
    for i in sorted(now.active, key=lambda i: (now.waits[i], i)):
        chosen.basic(i, int(task.receivers[i] - chosen.y[i].sum()), x[i])
    active = np.zeros(task.n, bool)
    active[list(now.active)] = True
    deadline = np.array([max(now.waits[i], chosen.seconds(i)) for i in range(task.n)])
    chosen.improve(x & active[:, None], task.stale, deadline)
    return chosen.y
