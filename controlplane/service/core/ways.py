"""Reachability: whether servers reach each other over what is left of a network, and what has to be used again so that
they do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """A network as far as the core has to know it: what is connected to what, and at which port.

    Attributes:
        neighbours: by switch and by server, what it is connected to.
        switches: those of them that are switches.
        ports: by switch and port, the neighbour there.
    """

    neighbours: Mapping[str, tuple[str, ...]]
    switches: frozenset[str]
    ports: Mapping[str, Mapping[int, str]]

    def port(self, switch: str, neighbour: str) -> int:
        """Return the switch's port to this neighbour."""
        return next(port for port, other in self.ports[switch].items() if other == neighbour)

    def link(self, name: str) -> tuple[str, str]:
        """Return the ends of a link ("V1-V2")."""
        return next((u, v) for u in self.neighbours for v in self.neighbours[u] if link_name(u, v) == name)

    def has(self, name: str) -> bool:
        """Return whether a switch, a server or a link ("V1-V2", whichever end is first) has this name."""
        if name in self.neighbours:
            return True
        return any(name in (f"{u}-{v}", f"{v}-{u}") for u, others in self.neighbours.items() for v in others)

    def only_switch(self, node: str) -> tuple[str, ...]:
        """Return the switch that a server is connected to, if it is connected to one alone; nothing for other servers
        and for switches."""
        others = () if node in self.switches else self.neighbours[node]
        return others if len(others) == 1 else ()


@dataclass(frozen=True)
class Need:
    """A job's servers, which have to reach each other, and those of them `without` which it goes on."""

    servers: tuple[str, ...]
    without: frozenset[str] = frozenset()

    @property
    def nodes(self) -> list[str]:
        """The servers that have to reach each other."""
        return [node for node in self.servers if node not in self.without]


def link_name(u: str, v: str) -> str:
    """Return the name of a link, whichever end is named first."""
    return "-".join(sorted((u, v)))


def avoidable(off: Iterable[str], layout: Layout, servers: Iterable[str]) -> list[str]:
    """Return those of the disabled switches and links that a job with these servers can do without: all but the only
    switch of one of the servers. A job waits for that one to be back, and is rerouted around what else fails."""
    only = {switch for node in servers for switch in layout.only_switch(node)}
    return [name for name in off if name not in only]


def connected(layout: Layout, nodes: Sequence[str], disabled: Collection[str]) -> bool:
    """Return whether all these servers reach each other over switches, without what is disabled: switches, servers and
    links ("V1-V2", both directions)."""
    if not nodes:
        return True
    reached, waiting = {nodes[0]}, [nodes[0]]
    while waiting:
        node = waiting.pop()
        for other in layout.neighbours[node]:
            off = other in disabled or f"{node}-{other}" in disabled or f"{other}-{node}" in disabled
            if off or other in reached:
                continue
            reached.add(other)
            if other in layout.switches:
                waiting.append(other)
    return reached.issuperset(nodes)


def only_ways(
    layout: Layout, jobs: Iterable[tuple[Sequence[str], Collection[str]]], probation: Sequence[str]
) -> list[str]:
    """Return what has to be used again so that the servers of each job reach each other; nothing, where that does not
    help.

    Args:
        jobs: for each job, its servers and what is disabled for it.
        probation: what may work again, the likeliest first. One that is enough for a job is preferred to several.
    """
    chosen: list[str] = []
    for nodes, disabled in jobs:
        left = set(disabled).difference(chosen)
        if connected(layout, nodes, left):
            continue
        candidates = [name for name in probation if name in left]
        enough = next((name for name in candidates if connected(layout, nodes, left - {name})), None)
        if enough is not None:
            chosen.append(enough)
        elif connected(layout, nodes, left.difference(candidates)):
            chosen += _needed(layout, nodes, left, candidates)
    return chosen


def _needed(layout: Layout, nodes: Sequence[str], disabled: set[str], candidates: Sequence[str]) -> list[str]:
    """Reduce candidates that are enough together to those that are all needed; the likeliest are kept."""
    kept = list(candidates)
    for name in reversed(candidates):
        fewer = [one for one in kept if one != name]
        if connected(layout, nodes, disabled.difference(fewer)):
            kept = fewer
    return kept
