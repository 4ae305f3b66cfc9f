"""P4Runtime 1.4 for the devices of this process.

:class:`P4RuntimeServer` serves any number of :class:`~softswitch.dataplane.device.Device` objects; the other modules
are its parts.
"""

from __future__ import annotations

from softswitch.p4runtime.server import P4RuntimeServer, Tls
from softswitch.p4runtime.status import P4RuntimeError
from softswitch.p4runtime.target import Target

__all__ = ["P4RuntimeError", "P4RuntimeServer", "Target", "Tls"]
