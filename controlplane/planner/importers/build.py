"""The common part of all importers: a network as another project's file has it, and the topology made from it and from
the data that the user gives beside it.

Files of other projects describe routers or cables, not training networks. They often lack bandwidths and servers, and
none says which switches add. `build` refuses a network without the former two, in one error that asks for them. A
switch adds only if the user says so: in a topology file of ours a switch without `aggregation_mbps` adds without a
limit, so an imported router would add for free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from controlplane.planner.topology import Topology, TopologyError, natural_key

UNITS = {"bit/s": 1e-6, "kbit/s": 1e-3, "Mbit/s": 1.0, "Gbit/s": 1e3, "Tbit/s": 1e6}
"""Units of bandwidth, in Mbit/s."""
KM_PER_MS = 200.0
"""Distance in km that light travels in a fibre in a millisecond."""
MOST_SERVERS = 1000
"""Most servers that are put at one switch."""
MOST_NAMES = 8
"""Most names that a message lists."""


class ForeignLink(NamedTuple):
    """A link in another project's file.

    Attributes:
        rate: Bandwidth in the file's unit; None if the file does not say.
        ports: Names of the two ports, where the file has them: two links between the same nodes are the same link if
            their ports are the same.
    """

    source: str
    target: str
    rate: float | None = None
    delay_ms: float = 0.0
    ports: tuple[str, str] = ("", "")


@dataclass
class Foreign:
    """A network as another project's file has it.

    Attributes:
        format: Name of the file's format, for messages.
        servers: Nodes that are servers, as far as the file shows.
        directed: Whether each link stands for one direction only.
        unit: Unit of the links' rates; "" if the format does not define it.
        ignored: Names of annotations that have no meaning here.
        notes: What else the user should know.
    """

    format: str
    nodes: list[str] = field(default_factory=list)
    links: list[ForeignLink] = field(default_factory=list)
    servers: set[str] = field(default_factory=set)
    directed: bool = False
    unit: str = ""
    ignored: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Supplement:
    """Data that the user gives beside a file which lacks them.

    Attributes:
        unit: Unit of the bandwidths in the file, one of `UNITS`; "" if not given.
        bandwidth_mbps: Bandwidth of links for which the file has none, in Mbit/s.
        servers: A number of servers to put at each switch, or a pattern of the names of servers.
        adding: Pattern of the names of switches that add; "" for none.
    """

    unit: str = ""
    bandwidth_mbps: float | None = None
    servers: str = ""
    adding: str = ""

    @classmethod
    def parse(cls, *, unit: str = "", bandwidth: str = "", servers: str = "", adding: str = "") -> Supplement:
        """Return the data that these texts stand for. Raise TopologyError, which names the datum, if one is wrong."""
        if unit and unit not in UNITS:
            raise TopologyError(f"unit must be one of {', '.join(UNITS)}, got {unit!r}")
        mbps = number(bandwidth, "bandwidth (Mbit/s)") if bandwidth else None
        if servers.isdecimal() and not 1 <= int(servers[:9]) <= MOST_SERVERS:
            raise TopologyError(f"servers must be 1 to {MOST_SERVERS} for each switch, or a pattern, got {servers!r}")
        return cls(unit, mbps, servers, adding)


class Imported(NamedTuple):
    """An imported topology, and notes about it for the user."""

    topology: Topology
    notes: list[str]


def number(value: Any, what: str) -> float:
    """Return a finite number >= 0, which may be written as a text. Raise TopologyError, which begins with `what`, for
    anything else.
    """
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        result = float(value)
    except (ValueError, OverflowError):
        result = math.nan
    if not 0 <= result < math.inf:
        raise TopologyError(f"{what} must be a number that is not negative, got {shown(value)}")
    return result


def node_name(value: Any, what: str) -> str:
    """Return the name of a node: a text or a whole number. Raise TopologyError, which begins with `what`, for anything
    else.
    """
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise TopologyError(f"{what} must be a node's name, got {shown(value)}")
    return str(value).strip()


def entries(value: Any, what: str) -> list[Mapping[str, Any]]:
    """Return a list of objects. Raise TopologyError, which begins with `what`, for anything else."""
    if not isinstance(value, list):
        raise TopologyError(f"{what} must be a list, got {shown(value)}")
    for entry in value:
        if not isinstance(entry, Mapping):
            raise TopologyError(f"{what} must be a list of objects, got {shown(entry)} in it")
    return value


def shown(value: Any) -> str:
    """Return a value for a message, at most 60 characters."""
    if isinstance(value, Mapping | list):
        return f"{'an object' if isinstance(value, Mapping) else 'a list'} of {len(value)} entries"
    text = repr(value[:61] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def listed(names: Iterable[str]) -> str:
    """Return names for a message: the first ones, and how many more there are."""
    every = list(names)
    more = len(every) - MOST_NAMES
    return ", ".join(every[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def build(found: Foreign, supplement: Supplement, name: str) -> Imported:
    """Return the topology of this name. Raise TopologyError if the network lacks data, which the message asks for, or
    if an option cannot be applied.
    """
    notes = list(found.notes)
    links = _merged(found, notes)
    linked = {end for link in links for end in (link.source, link.target)}
    if alone := [node for node in found.nodes if node not in linked]:
        notes.append(f"left out, as they have no link: {listed(alone)}")
    names = sorted({node for node in found.nodes if node in linked} | linked, key=natural_key)
    servers = _servers(found, supplement, names)
    _ask(found, links, servers, supplement)
    rates = [_mbps(found, link, supplement) for link in links]
    adding = _adding(supplement, [node for node in names if node not in servers], notes)
    nodes = {node: _attributes(node in servers, node in adding) for node in names}
    made: list[tuple[str, str, dict[str, float]]] = []
    for link, mbps in zip(links, rates, strict=True):
        own = {"bandwidth_mbps": mbps, **({"delay_ms": link.delay_ms} if link.delay_ms else {})}
        made.append((link.source, link.target, own))
        if not found.directed:
            made.append((link.target, link.source, own))
    if supplement.servers.isdecimal():
        _attach(nodes, made, int(supplement.servers), notes)
    if supplement.bandwidth_mbps is not None and all(link.rate is not None for link in links):
        notes.append("bandwidth= has no effect: the file has the bandwidth of every link")
    if supplement.unit and all(link.rate is None for link in links):
        notes.append("unit= has no effect: the file has no bandwidths")
    if not (found.unit or supplement.unit) and any(link.rate is not None for link in links):
        notes.append("bandwidths are read as Mbit/s; unit=Gbit/s changes that")
    if any(link.delay_ms for link in links):
        notes.append(f"delays are those of light in fibres, {KM_PER_MS:g} km per ms")
    if found.ignored:
        notes.append(f"not used: {listed(sorted(found.ignored))}")
    return Imported(Topology(nodes, made, name), notes)


def _merged(found: Foreign, notes: list[str]) -> list[ForeignLink]:
    """Return the links without those from a node to itself, and each once, with its highest rate."""
    kept: dict[tuple[tuple[str, str], ...], ForeignLink] = {}
    loops, merged = [], 0
    for link in found.links:
        if link.source == link.target:
            loops.append(link.source)
            continue
        ends = ((link.source, link.ports[0]), (link.target, link.ports[1]))
        key = ends if found.directed else tuple(sorted(ends))
        before = kept.get(key)
        merged += before is not None
        if before is None or (link.rate or 0.0) > (before.rate or 0.0):
            kept[key] = link
    if loops:
        notes.append(f"left out: links from a node to itself, at {listed(dict.fromkeys(loops))}")
    if merged:
        notes.append(f"{merged} links that were given again are merged with the first; the highest bandwidth counts")
    return list(kept.values())


def _matching(pattern: str, names: Sequence[str], option: str) -> set[str]:
    """Return the names that match a pattern, whose alternatives are separated by "|". Raise TopologyError if none
    does.
    """
    matching = {name for name in names if any(fnmatchcase(name, one) for one in pattern.split("|"))}
    if not matching:
        raise TopologyError(f"{option}={pattern} matches none of {listed(names) or 'no node'}")
    return matching


def _servers(found: Foreign, supplement: Supplement, names: Sequence[str]) -> set[str]:
    if supplement.servers and not supplement.servers.isdecimal():
        return _matching(supplement.servers, names, "servers")
    return found.servers & set(names)


def _adding(supplement: Supplement, switches: Sequence[str], notes: list[str]) -> set[str]:
    if supplement.adding:
        return _matching(supplement.adding, switches, "adding")
    notes.append("no switch adds: adding=leaf* names those that do")
    return set()


def _ask(found: Foreign, links: Sequence[ForeignLink], servers: set[str], supplement: Supplement) -> None:
    """Raise TopologyError if the network lacks data that a topology needs; the message asks for all of them."""
    if not links:
        raise TopologyError(f"the file ({found.format}) has no link between two nodes")
    lacking, example = [], []
    without = [link for link in links if link.rate is None]
    if without and supplement.bandwidth_mbps is None:
        of = f"{without[0].source} - {without[0].target}"
        lacking.append(f"the bandwidths of {len(without)} of {len(links)} links, such as {of} (in Mbit/s)")
        example.append("bandwidth=10000")
    if not servers and not supplement.servers:
        lacking.append("servers (servers=1 puts one at each switch, servers=host* names nodes that are servers)")
        example.append("servers=1")
    if lacking:
        raise TopologyError(
            f"the file ({found.format}) lacks {' and '.join(lacking)}; give them behind its name: "
            f"FILE:{','.join(example)}"
        )


def _mbps(found: Foreign, link: ForeignLink, supplement: Supplement) -> float:
    if link.rate is None:
        assert supplement.bandwidth_mbps is not None
        return supplement.bandwidth_mbps
    if found.unit and supplement.unit not in ("", found.unit):
        raise TopologyError(f"unit={supplement.unit}: the bandwidths of {found.format} are in {found.unit}")
    return link.rate * UNITS[found.unit or supplement.unit or "Mbit/s"]


def _attributes(server: bool, adds: bool) -> dict[str, Any]:
    if server:
        return {"kind": "server"}
    return {"kind": "switch"} if adds else {"kind": "switch", "aggregation_mbps": 0.0}


def _attach(
    nodes: dict[str, dict[str, Any]], links: list[tuple[str, str, dict[str, float]]], count: int, notes: list[str]
) -> None:
    """Put servers at each switch, on links that carry as much as all other links of the switch together."""
    out, into = (dict.fromkeys(nodes, 0.0) for _ in range(2))
    for u, v, own in links:
        out[u] += own["bandwidth_mbps"]
        into[v] += own["bandwidth_mbps"]
    for switch in [node for node, own in nodes.items() if own["kind"] == "switch"]:
        own = {"bandwidth_mbps": max(out[switch], into[switch])}
        for i in range(1, count + 1):
            server = f"{switch}-h{i}"
            if server in nodes:
                raise TopologyError(f"servers: server {server} exists already in the file; name servers by a pattern")
            nodes[server] = {"kind": "server"}
            links += [(switch, server, own), (server, switch, own)]
    notes.append("each added server's link is as fast as all other links of its switch together")
