"""Links whose ports are down, as far as switches can tell it: this is known before a packet is missed.

Pure: each function takes what is known (`Ports`) and what switches say now, and returns which links are lost and which
are back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.service.core.disabled import Why
from controlplane.service.core.ways import Layout, link_name

AT_FIRST_SECONDS = 15.0
"""Seconds that a port may take to come up at first, before its link counts as down. Copper ports that train take
some."""
STEADY_SECONDS = 30.0
"""Seconds for which both ends of a link must be up before it is used again, at first; twice as long after each further
loss."""
LONGEST_STEADY_SECONDS = 3600.0

States = Mapping[str, Mapping[int, bool]]
"""By switch and port, whether the port is up."""


@dataclass(frozen=True)
class Ports:
    """State of the ports, as switches have reported it.

    Attributes:
        up: by switch and port, whether it was up at the last look.
        began: by switch, when it was asked first, in seconds.
        late: ports that have not come up in time, which was reported once.
        steady: by disabled link, since when both its ends are up, in seconds.
        losses: by link, how many times a port of it went down.
    """

    up: Mapping[tuple[str, int], bool] = field(default_factory=dict)
    began: Mapping[str, float] = field(default_factory=dict)
    late: frozenset[tuple[str, int]] = frozenset()
    steady: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[str, int] = field(default_factory=dict)

    def is_up(self, link: str, layout: Layout) -> bool:
        """Return whether no end of a link is known to be down."""
        u, v = layout.link(link)
        ends = [(a, layout.port(a, b)) for a, b in ((u, v), (v, u)) if a in layout.switches]
        return all(self.up.get(end) is not False for end in ends)


def look_at_ports(
    ports: Ports, states: States, layout: Layout, off: Mapping[str, Why], now: float
) -> tuple[Ports, dict[str, str], list[str]]:
    """Return the new state after some switches have said which of their ports are up, the links that are lost now with
    what was seen, and lines for the log.

    A port that was up before and is down counts as lost. So does one that stays down although the switch has other
    ports up; a switch whose ports are never up (a simulated one, for example) tells nothing by that.
    """
    up, began, late = dict(ports.up), dict(ports.began), set(ports.late)
    causes: dict[str, str] = {}
    lines = []
    for switch, states_of in states.items():
        began.setdefault(switch, now)
        late -= {key for key in late if key[0] == switch and states_of.get(key[1], False)}
        overdue = now - began[switch] >= AT_FIRST_SECONDS and any(states_of.values())
        for port, is_up in states_of.items():
            key = switch, port
            before, up[key] = up.get(key), is_up
            never = overdue and before is not True and key not in late
            if is_up or port not in layout.ports[switch] or not (before or never):
                continue
            if never:
                late.add(key)
            other = layout.ports[switch][port]
            cause, link = f"port {port} of {switch}, to {other}, is down", link_name(switch, other)
            if layout.only_switch(other):
                lines.append(f"{cause}: {other} has no other way")
            elif not {link, switch, other}.intersection(off) and link not in causes:
                causes[link] = cause
    losses = {**ports.losses, **{link: ports.losses.get(link, 0) + 1 for link in causes}}
    steady = {link: since for link, since in ports.steady.items() if link not in causes}
    return Ports(up, began, frozenset(late), steady, losses), causes, lines


def look_at_what_is_back(
    ports: Ports, layout: Layout, off: Mapping[str, Why], now: float
) -> tuple[Ports, dict[str, float]]:
    """Return the new state, and the links whose ports have been up for long enough, with the seconds that were asked of
    them."""
    steady, back = {}, {}
    for link in (link for link, why in off.items() if why == Why.PORT_DOWN):
        if not ports.is_up(link, layout):
            continue
        steady[link] = ports.steady.get(link, now)
        wanted = min(STEADY_SECONDS * 2 ** (max(ports.losses.get(link, 0), 1) - 1), LONGEST_STEADY_SECONDS)
        if now - steady[link] >= wanted:
            back[link] = wanted
    return Ports(ports.up, ports.began, ports.late, steady, ports.losses), back
