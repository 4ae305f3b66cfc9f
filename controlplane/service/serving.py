"""A network's controller at work: it answers agents and operators, and watches switches for failures."""

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
        network: the network, with its jobs.
        log: gets one line per event.
        access: who may do what; without it, everybody who reaches the controller may do everything.
    """

    def __init__(self, network: Network, log: Callable[[str], None], access: Access | None = None) -> None:
        self.network = network
        self._controller = Controller(network, log=log, access=access)
        self._watch = Watch(network, log)
        least = network.settings.beside
        self._others = OtherTraffic(network, least, log) if least is not None else None

    def start(self, address: str | Bound, tls: Tls | None = None, *, answers_failures: bool = True) -> int:
        """Serve on "host:port" (port 0 is any free one), or on what `listen` has bound, and return the port. With
        `answers_failures`, jobs are rerouted around what fails. Raise ControllerError where the address cannot be
        bound."""
        self.network.switches.watch()
        port = self._controller.start(address, tls)
        if answers_failures:
            self._watch.start()
        if self._others is not None:
            self._others.start()
        return port

    def close(self) -> None:
        """End all of it, without waiting for a switch that does not answer."""
        if self._others is not None:
            self._others.close()
        self._watch.close()
        self._controller.stop()
        self.network.close()
