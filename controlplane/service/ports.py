"""Links whose ports are down, as switches say that can be asked for it: known before a packet is missed.

P4Runtime has no state of ports: such a switch says None, and is not asked again. A Tofino has ($PORT_UP, over BRI).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controlplane.service.core.disabled import Why
from controlplane.service.keeper import Keeper
from controlplane.service.network import Network
from controlplane.service.periodic import Periodic
from controlplane.targets.base import TargetError
from controlplane.targets.fabric import everywhere

LOOK_SECONDS = 0.2
READ_SECONDS = 2.0
"""A switch that takes longer to say is not waited for: its heartbeat tells whether it lives."""
AT_FIRST_SECONDS = 15.0
"""How long a port may take to come up at first, before its link counts as down; trained copper takes some seconds."""
STEADY_SECONDS = 30.0
"""How long both ends must be up before a link is used again, at first; twice as long each time that it was lost."""
LONGEST_STEADY_SECONDS = 3600.0


@dataclass
class PortWatch:
    """Keeps links off while a port of theirs is down, from a thread of its own, from `start` to `close`.

    Only what was seen up counts as lost, or what stays down where the switch has other ports up: a switch whose ports
    are never up (a simulated one) says nothing by that.

    log: gets one line per event.
    """

    network: Network
    log: Callable[[str], None] = lambda line: None
    _silent: set[str] = field(default_factory=set)  # switches that have no state of ports
    _up: dict[tuple[str, int], bool] = field(default_factory=dict)  # by switch and port: at the last look
    _began: dict[str, float] = field(default_factory=dict)  # by switch: when it was asked first
    _late: set[tuple[str, int]] = field(default_factory=set)  # ports that have not come up; that is said
    _steady: dict[str, float] = field(default_factory=dict)  # by link that is off: since when both its ends are up
    _losses: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._thread = Periodic("watching ports", LOOK_SECONDS, self._look, self.log)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.close()

    def _look(self) -> None:
        self.look()
        if len(self._silent) == len(self.network.switches.keepers):
            self._thread.end()  # nobody will ever say anything

    def look(self) -> None:
        """Ask every switch that can say, and answer what has changed."""
        now = time.monotonic()
        for switch, states in self._read().items():
            began = self._began.setdefault(switch, now)
            self._late = {key for key in self._late if key[0] != switch or not states.get(key[1], False)}
            self._look_at(switch, states, late=now - began >= AT_FIRST_SECONDS and any(states.values()))
        self._look_at_what_is_back(now)

    def _look_at(self, switch: str, states: Mapping[int, bool], *, late: bool) -> None:
        topology = self.network.topology
        at = {topology.port(switch, other): other for other in topology.neighbours(switch)}
        causes: dict[str, str] = {}
        for port, up in states.items():
            before, self._up[switch, port] = self._up.get((switch, port)), up
            never = late and before is not True and (switch, port) not in self._late
            if up or port not in at or not (before or never):
                continue
            if never:
                self._late.add((switch, port))
            other = at[port]
            cause = f"port {port} of {switch}, to {other}, is down"
            link = self._name(switch, other)
            if topology.kind(other) != "switch":
                self.log(f"{cause}: {other} has no other way")
            elif not {link, switch, other}.intersection(self.network.state.off):
                causes[link] = cause
        for link in causes:
            self._losses[link] += 1
            self._steady.pop(link, None)
        if causes:
            self.network.failover.lose(causes, Why.PORT_DOWN)

    def _look_at_what_is_back(self, now: float) -> None:
        for link in [link for link, why in self.network.state.off.items() if why == Why.PORT_DOWN]:
            if not self.is_up(link):
                self._steady.pop(link, None)
                continue
            wanted = min(STEADY_SECONDS * 2 ** (max(self._losses[link], 1) - 1), LONGEST_STEADY_SECONDS)
            if now - self._steady.setdefault(link, now) >= wanted:
                self.network.failover.restore([link], f"its ports have been up for {wanted:g} s")

    def is_up(self, link: str) -> bool:
        """Whether no end of a link is known to be down."""
        topology = self.network.topology
        ends = next((u, v) for u, v in topology.links if self._name(u, v) == link)
        return all(self._up.get((u, topology.port(u, v))) is not False for u, v in (ends, ends[::-1]))

    def _name(self, u: str, v: str) -> str:
        return "-".join(sorted((u, v)))

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
