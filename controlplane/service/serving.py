"""A network's controller at work: it answers agents and operators, and watches switches for failures."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from controlplane.common.access import Access
from controlplane.common.log_lines import Log
from controlplane.common.rpc.tls import Tls
from controlplane.service.controller import Bound, Controller
from controlplane.service.failures import Watch
from controlplane.service.network import Network
from controlplane.service.others import OtherTraffic

LEAVING_SECONDS = 0.5
"""Seconds for which a controller that ends waits for answers of switches."""


class Serving:
    """A controller at work, from `start` to `close`, which ends the network, too; the entries stay on the switches."""

    def __init__(self, network: Network, log: Log, access: Access | None = None) -> None:
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


class EndSignal:
    """Catches SIGINT or SIGTERM from now on; it works in the main thread only. `hangup` is called for each SIGHUP
    before that, and may wait.

    A signal handler that sets an Event would not do: Python runs handlers between two instructions of the main thread.
    One for a signal that comes just before a wait without end would never run, and one that comes while the main thread
    holds the Event's lock would wait for it for ever. A descriptor is written to at once.
    """

    def __init__(self, hangup: Callable[[], None] | None = None) -> None:
        self._hangup = hangup
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangup is not None else [])):
            signal.signal(number, lambda *_: None)

    def wait(self) -> None:
        """Return once such a signal has come. The next one ends the process as it would any other."""
        while os.read(self._reader, 1) == bytes([signal.SIGHUP]) and self._hangup is not None:
            self._hangup()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
