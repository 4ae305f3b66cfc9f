"""Asks those switches which of their ports are up that can tell it (core/ports.py decides what follows).

P4Runtime has no state of ports: such a switch answers None, and is not asked again. A Tofino has one ($PORT_UP, over
BRI).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from controlplane.service.core.parts import PortsSeen
from controlplane.service.keeper import Keeper
from controlplane.service.network import Network
from controlplane.service.periodic import Periodic
from controlplane.targets.base import TargetError
from controlplane.targets.fabric import everywhere

LOOK_SECONDS = 0.2
READ_SECONDS = 2.0
"""Longest wait for a switch's answer, in seconds; its heartbeat tells whether the switch is alive."""


@dataclass
class PortWatch:
    """Asks from a thread of its own, from `start` to `close`. `log` gets one line per error."""

    network: Network
    log: Callable[[str], None] = lambda line: None
    _silent: set[str] = field(default_factory=set)  # switches that have no state of ports

    def __post_init__(self) -> None:
        self._thread = Periodic("watching ports", LOOK_SECONDS, self._look, self.log)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.close()

    def ended(self, timeout: float) -> bool:
        """Return whether it ends by itself within so many seconds."""
        return self._thread.ended(timeout)

    def _look(self) -> None:
        self.look()
        if len(self._silent) == len(self.network.switches.keepers):
            self._thread.end()  # no switch will ever answer

    def look(self) -> None:
        """Ask every switch that can tell, and report its answer to the core."""
        self.network.failover.take(PortsSeen(self._read()))

    def _read(self) -> dict[str, dict[int, bool]]:
        keepers = [k for k in self.network.switches.keepers if k.ready and k.target.name not in self._silent]

        def read(keeper: Keeper) -> dict[int, bool] | None:
            try:
                return keeper.target.read_ports(READ_SECONDS)
            except TargetError:
                return {}

        states = {keeper.target.name: one for keeper, one in everywhere(keepers, read).items()}
        self._silent.update(name for name, one in states.items() if one is None)
        return {name: one for name, one in states.items() if one}
