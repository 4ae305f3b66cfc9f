"""Parallel links: several cables between the same two nodes.

A topology has one link from a node to another. Of several cables the first is that link; each further one is led over a
node of its own, named like "s1=s2#2", which plans and bounds take for a switch that adds nothing ("cable": true). That
node has a link from each end and one to the other end, each with the cable's whole capacity. So further cables have
names and ports of their own, and every flow goes over one cable, as a switch program sends a flow out of one port. Code
that writes to switches leaves cables out (`Topology.devices`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from controlplane.common.agentconfig import MOST_LINKS
from controlplane.planner.frontpanel import SETTINGS
from controlplane.planner.topology_checks import TopologyError

if TYPE_CHECKING:  # topology.py imports this module
    from controlplane.planner.topology import Topology

Links = list[tuple[str, str, Mapping[str, Any]]]
MOST_MEMBERS = 64
"""Most cables that one link may be made of."""
CABLE = {"kind": "switch", "cable": True, "aggregation_mbps": 0.0}
SHARED = ("bandwidth_mbps", "used_bandwidth_mbps")
"""Attributes of a link that its members share evenly."""


def cable_name(one: str, other: str, number: int) -> str:
    """Return the name of the cable of this number (2 or more) between two nodes."""
    return f"{min(one, other)}={max(one, other)}#{number}"


def with_cables(
    nodes: Mapping[str, Mapping[str, Any]], links: Iterable[tuple[str, str, Mapping[str, Any]]]
) -> tuple[Mapping[str, Mapping[str, Any]], Links]:
    """Return nodes and directed links in which no link is there twice. Raise TopologyError where a name is taken or
    "members" is wrong.

    A link that is given several times is several cables, of which the second, third, .. are led over cable nodes; the
    first, second, .. from u to v belongs to the first, second, .. from v to u. A link with "members": n (a LAG, a
    bundle) is n cables that share its capacity.
    """
    seen: dict[tuple[str, str], int] = {}
    made: Links = []
    cables: dict[str, Mapping[str, Any]] = {}
    for u, v, attributes in links:
        for own in _members(u, v, attributes):
            number = seen[u, v] = seen.get((u, v), 0) + 1
            if number == 1:
                made.append((u, v, own))
                continue
            cable = cable_name(u, v, number)
            if cable in nodes:
                raise TopologyError(f"node {cable!r} has the name of cable {number} between {u} and {v}")
            cables[cable] = dict(CABLE)
            made += _halves(u, cable, v, own)
    return ({**nodes, **cables} if cables else nodes), made


def _members(u: str, v: str, attributes: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the attributes of each cable that a link is made of."""
    if "members" not in attributes:
        return [attributes]
    count = attributes["members"]
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_MEMBERS:
        raise TopologyError(f"link {u} -> {v}: members must be a whole number of 1 to {MOST_MEMBERS}, got {count!r}")
    one = {key: value for key, value in attributes.items() if key != "members"}
    if count > 1:
        for name in ("ports", "front_panel"):
            if name in one:
                raise TopologyError(
                    f"link {u} -> {v}: {name} of a link with members: give the link once for each cable, each with its "
                    f"own {name}"
                )
        for name in SHARED:
            if isinstance(one.get(name), int | float) and not isinstance(one[name], bool):
                one[name] /= count
    return [one] * count


def _halves(u: str, cable: str, v: str, attributes: Mapping[str, Any]) -> Links:
    """Return the links from u to the cable's node and from there to v. The delay counts on the first."""
    ends: Mapping[str, Mapping[str, Any]] = {
        name: attributes[name] for name in ("ports", "front_panel") if isinstance(attributes.get(name), Mapping)
    }
    rest = {key: value for key, value in attributes.items() if key not in ("ports", "front_panel")}
    parts: Links = []
    for one, other, end in ((u, cable, u), (cable, v, v)):
        own = {**rest, **{name: {end: value[end]} for name, value in ends.items() if end in value}}
        if "front_panel" not in own:
            own = {key: value for key, value in own.items() if key not in SETTINGS}
        if one == cable:
            own.pop("delay_ms", None)
        parts.append((one, other, own))
    return parts


def beyond(topology: Topology, node: str, neighbour: str) -> str:
    """Return the machine at the other end of the link between a node and this neighbour: the neighbour itself, unless
    that is a cable."""
    if neighbour not in topology.cables:
        return neighbour
    return next(other for other in topology.neighbours(neighbour) if other != node)


def port_back(topology: Topology, node: str, neighbour: str) -> int:
    """Return the port at the other end of the link between a node and this neighbour, at the machine there."""
    other = beyond(topology, node, neighbour)
    return topology.port(other, node if other == neighbour else neighbour)


def access_switches(topology: Topology, server: str) -> tuple[str, ...]:
    """Return the switches that a server hangs on, in the order of its neighbours, and so of its ports: 1, 2, .. unless
    the links say otherwise. A switch to which the server has two cables comes twice.
    """
    ends = (beyond(topology, server, near) for near in topology.neighbours(server))
    return tuple(end for end in ends if topology.kind(end) == "switch")


def links_of(topology: Topology, server: str) -> tuple[str, ...]:
    """Return the switches that a server's links lead to, by port from 1 on; "" for a port without a link at present.
    Return nothing for a server whose only link is at port 1.
    """
    near = {topology.port(server, one): one for one in topology.neighbours(server)}
    last = max(near, default=1)
    if last == 1:
        return ()
    return tuple(beyond(topology, server, near[port]) if port in near else "" for port in range(1, last + 1))


def link_of(topology: Topology, server: str, neighbour: str) -> int:
    """Return the place of a server's link to this neighbour: its port less one, or 0 where it has no such link (traffic
    that stays on the host goes over none).
    """
    return topology.port(server, neighbour) - 1 if neighbour in topology.neighbours(server) else 0


def ports_of(topology: Topology, server: str) -> list[str]:
    """Return the nodes next to a server, cables included, in the order of its ports."""
    return sorted(topology.neighbours(server), key=lambda near: topology.port(server, near))


def access(topology: Topology, server: str, near: str) -> tuple[str, int]:
    """Return the switch that a server's link to this neighbour leads to, and the port there."""
    return beyond(topology, server, near), port_back(topology, server, near)


def near_at(topology: Topology, server: str, link: int) -> str | None:
    """Return the neighbour to which a server's link of this place (`link_of`) leads; None where there is none at
    present.
    """
    return next((near for near in topology.neighbours(server) if topology.port(server, near) == link + 1), None)


def hangs_on_switches(topology: Topology, server: str) -> None:
    """Check that a server hangs on switches only, and on no more than an agent has interfaces for; raise TopologyError
    otherwise.
    """
    near = topology.neighbours(server)
    others = [other for other in near if topology.kind(other) != "switch"]
    if not near or others:
        raise TopologyError(f"server {server} must hang on switches, it is linked with: {', '.join(near) or 'nothing'}")
    if (most := max(topology.port(server, one) for one in near)) > MOST_LINKS:
        raise TopologyError(f"server {server} has port {most}: the interfaces of an agent are ports 1 to {MOST_LINKS}")
