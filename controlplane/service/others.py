"""Measures what other traffic takes of the links, and has jobs replanned for what it leaves (core/others.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from controlplane.common.log_lines import SILENT, Log
from controlplane.common.numbers import short
from controlplane.service.core.others import Link, Others, decide
from controlplane.service.measure import Measurements
from controlplane.service.network import Network
from controlplane.service.threads import Periodic

LOOK_SECONDS = 2.0
SHOWN = 4
"""Most links that a line of the log names."""


class OtherTraffic(Periodic):
    """Measures other traffic from a thread of its own, from `start` to `close`.

    Args:
        least: part of each link that jobs are planned for, whatever others take of it.
    """

    def __init__(
        self,
        network: Network,
        least: float,
        log: Log = SILENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("measuring other traffic", LOOK_SECONDS, log)
        self._network, self._clock = network, clock
        self._measurements = Measurements(network, others=True)
        self._state = Others(least)

    def start(self) -> None:
        self._measurements.start()  # what arrives at parameter servers is in their agents' reports
        super().start()

    def close(self) -> None:
        super().close()
        self._measurements.close()

    def look(self) -> None:
        """Measure other traffic once."""
        self.take({link: flow.mbps for link, flow in self._measurements.read().others.items()})

    def take(self, seen: Mapping[Link, float]) -> None:
        """Take a measurement, Mbit/s by link. When plans leave another part of a link to others from now on, have all
        jobs replanned."""
        topology = self._network.topology
        rates = {link: topology.bandwidth_mbps(*link) for link in topology.links}
        self._state, changed = decide(self._state, seen, rates, self._clock())
        state = self._network.state
        with state.lock:
            state.others_mbps, state.others = self._state.smoothed, self._state.used
        if changed:
            self.log.info(f"other traffic: {words(changed)}; jobs are planned beside it")
            self._network.replanning.soon()


def words(changed: Mapping[Link, float]) -> str:
    """Return a sentence that says what others take of links from now on."""
    said = [f"{short(mbps)} Mbit/s from {u} to {v}" for (u, v), mbps in list(changed.items())[:SHOWN]]
    more = f" and on {len(changed) - SHOWN} more links" if len(changed) > SHOWN else ""
    return ", ".join(said) + more
