"""A network's controller at work: it answers agents and operators, and watches switches and failures."""

from __future__ import annotations

from collections.abc import Callable

from controlplane.common.access import Access
from controlplane.common.rpc.tls import Tls
from controlplane.service.controller import Bound, Controller
from controlplane.service.failures import Watch
from controlplane.service.network import Network
from controlplane.service.others import OtherTraffic

LEAVING_SECONDS = 0.5
"""Seconds for which a controller that ends waits for answers of switches."""


class Serving:
    """A controller at work, from `start` to `close`, which ends the network, too; the entries stay on the switches.

    Args:
        network: with its jobs.
        log: gets one line per event.
        access: whom it knows; default: everybody who reaches it may do everything.
    """

    def __init__(self, network: Network, log: Callable[[str], None], access: Access | None = None) -> None:
        self.network = network
        self._controller = Controller(network, log=log, access=access)
        self._watch = Watch(network, log)
        least = network.settings.beside
        self._others = OtherTraffic(network, least, log) if least is not None else None

    def start(self, address: str | Bound, tls: Tls | None = None, *, answers_failures: bool = True) -> int:
        """Serve on "host:port" (port 0: any free one), or what `listen` bound; returns the port. answers_failures: lead
        the jobs around what fails. Raises ControllerError."""
        self.network.switches.watch()
        port = self._controller.start(address, tls)
        if answers_failures:
            self._watch.start()
        if self._others is not None:
            self._others.start()
        return port

    def close(self) -> None:
        """End all of it. A switch that does not answer is not waited for."""
        if self._others is not None:
            self._others.close()
        self._watch.close()
        self._controller.stop()
        self.network.close()
