"""Changes of an emulated WAN while its agents work: failures, and rates that are drawn anew."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from topologies.emulation import Emulation
from topologies.faults import Fault, Faults, link_of
from topologies.wan.processes import Agents, CoordinatorProcess

Rates = Mapping[tuple[int, int], float]
"""Rates in Mbit/s by (from, to), the numbers of two sites."""


class Changes(Faults):
    """Failures, each at its time, and new rates at intervals.

    There are new rates every `redraw` seconds; the k-th are `draw(k)`. The controller is told what a network would
    report: a link that is back, and new rates except those of links that are cut. Systems that only measure use no
    other reports.
    """

    def __init__(
        self,
        emulation: Emulation,
        faults: Sequence[Fault],
        controller: CoordinatorProcess,
        agents: Agents,
        log: Callable[[str], None],
        *,
        redraw: float | None = None,
        draw: Callable[[int], Rates] = lambda k: {},
    ) -> None:
        super().__init__(emulation, faults, self._process, log)
        self._controller, self._agents = controller, agents
        self._rates: dict[tuple[str, str], float] = {}  # the rates that were drawn last
        self._cut: list[set[str]] = []  # links that are cut now
        self._thread = threading.Thread(target=self._redraw, args=(redraw, draw), daemon=True) if redraw else None

    def start(self) -> None:
        super().start()
        if self._thread is not None:
            self._thread.start()

    def close(self) -> None:
        super().close()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def _process(self, what: str, fails: bool) -> None:
        if what == "controller":
            (self._controller.close if fails else self._controller.start)()
        else:
            (self._agents.kill if fails else self._agents.restart)(what)

    def _change(self, fault: Fault, fails: bool) -> None:
        super()._change(fault, fails)
        link = link_of(fault.what, self._emulation.topology)
        if link is not None and fails:
            self._cut.append(set(link))
        if link is not None and not fails:
            self._cut.remove(set(link))
            self._tell(*link)
            self._tell(*link[::-1])

    def _redraw(self, seconds: float, draw: Callable[[int], Rates]) -> None:
        for k in count(1):
            if self._closed.wait(seconds):
                return
            for (u, v), mbps in draw(k).items():
                link = f"dc{u}", f"dc{v}"
                self._rates[link] = mbps
                self._emulation.shape(*link, rate_mbps=mbps)
                if set(link) not in self._cut:
                    self._tell(*link)
            self._log(f"all links have other rates ({k})")

    def _tell(self, u: str, v: str) -> None:
        mbps = self._rates.get((u, v)) or self._emulation.topology.bandwidth_mbps(u, v)
        self._controller.tell(f"h{u[2:]}", f"h{v[2:]}", mbps)
