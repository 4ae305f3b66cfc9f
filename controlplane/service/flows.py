"""Flows of other traffic on each link, from what passes the switches' ports (`SwitchTarget.read_traffic`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from controlplane.planner.topology import Topology
from controlplane.service.core.others import Link
from controlplane.service.keeper import Keeper
from controlplane.targets.base import TargetError, Traffic
from controlplane.targets.fabric import everywhere

READERS = 8


@dataclass
class Flow:
    """Bytes of other traffic on a link that were counted so far, and the rate between the last two readings, Mbit/s."""

    total: int = 0
    mbps: float = 0.0


Passed = Mapping[str, tuple[float, Traffic]]
"""By switch, when its ports were read (in seconds, of a clock that never goes back), and what had passed them."""


class OtherFlows:
    """Turns readings of ports into flows of other traffic, by link."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, Traffic]] = {}
        self._flows: dict[Link, Flow] = {}

    def advance(self, passed: Passed, topology: Topology, of_jobs: Callable[[Link], float]) -> dict[Link, Flow]:
        """Return the flows of the links that are measured now. `of_jobs` returns the Mbit/s of aggregation traffic on a
        link."""
        flows: dict[Link, Flow] = {}
        for switch, (when, now) in passed.items():
            begin, before = self._before.get(switch, (when, now))
            self._before[switch] = when, now
            seconds = when - begin
            if seconds <= 0 or switch not in topology:
                continue
            for other in topology.neighbours(switch):
                port = topology.port(switch, other)
                if port not in now.ports:
                    continue
                received, sent = (
                    after - earlier if after >= earlier else after
                    for after, earlier in zip(now.ports[port], before.ports.get(port, (0, 0)), strict=True)
                )
                links = {(other, switch): received}
                if other not in passed:  # a server, or a switch that does not say what it receives
                    links[switch, other] = sent
                for link, grew in links.items():
                    own = of_jobs(link) if now.whole else 0.0
                    mbps = max(0.0, 8e-6 * grew / seconds - own)
                    total = self._flows.get(link, Flow()).total + int(mbps * seconds / 8e-6)
                    flows[link] = Flow(total, mbps)
        self._flows = {**self._flows, **flows}
        return flows


def traffic(keepers: Iterable[Keeper]) -> dict[str, tuple[float, Traffic]]:
    """Return what has passed the ports of each switch that answers and counts it, and when that was read."""
    found: dict[str, tuple[float, Traffic]] = {}

    def read(keeper: Keeper) -> None:
        if keeper.state != "connected":
            return
        try:
            passed = keeper.target.read_traffic()
        except TargetError:
            return  # its keeper handles that, and its links keep their flows
        if passed is not None:
            found[keeper.target.name] = time.monotonic(), passed

    everywhere(tuple(keepers), read, READERS)
    return found
