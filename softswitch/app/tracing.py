"""Traces all packets of all devices from the start, for ``--trace`` and ``-L trace``."""

from __future__ import annotations

import threading
from collections.abc import Callable

from softswitch.app.switches import Switches
from softswitch.dataplane.trace import Trace, lines

POLL_S = 0.2


class Tracer:
    """A tracer with one thread per device, which calls ``show`` with the text of each packet, until :meth:`stop`."""

    def __init__(self, switches: Switches, show: Callable[[str], None]) -> None:
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # keeps the texts of several devices apart
        self._show = show
        traces = {device.name: switches.trace(device.device_id) for device in switches.config.devices}
        for trace in traces.values():
            trace.start()  # All traces start here, so that no packet is missed.
        self._threads = [
            threading.Thread(target=self._run, args=item, name="trace", daemon=True) for item in traces.items()
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, name: str, trace: Trace) -> None:
        with trace:
            while not self._stopping.is_set():
                packet = trace.next(POLL_S)
                if packet is not None:
                    with self._lock:
                        self._show(f"device {name}: " + "\n".join(lines(packet)))
