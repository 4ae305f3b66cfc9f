"""Bridging: table entries for frames that are neither InArt's nor IPv4 to a host, so that a switch can share an
ordinary network.

ARP, IPv6, other multicast and frames with a VLAN tag go as over a bridge that does not look at VLANs: frames to a
server of the topology take the links that IPv4 takes, frames to groups and to unknown addresses flood a tree of the
topology's links and never return to the port that they came from. Frames for the bridge itself (addresses
01:80:c2:00:00:00 to 0f, used by LLDP, spanning tree and pause) go to the CPU's port, or are dropped where none is
given.
"""

from __future__ import annotations

from dataclasses import replace

from controlplane.planner.entries import Bridge, Forward, MulticastGroup, Replicate, Route, RuleSet
from controlplane.planner.rules import routes
from controlplane.planner.topology import Topology

FLOOD_GROUPS = 0x7000
"""Multicast group FLOOD_GROUPS + port holds the ports to which frames from that port are flooded. Groups of jobs have
lower numbers.
"""

TO_THE_BRIDGE, ITS_BITS = "01:80:c2:00:00:00", "ff:ff:ff:ff:ff:f0"
ANY = "00:00:00:00:00:00"
ONE = "ff:ff:ff:ff:ff:ff"
HIGH, MIDDLE, LOW = 30, 20, 10


def is_flood(group: MulticastGroup) -> bool:
    """Return whether a multicast group is one for flooding, which belongs to the network and to no job."""
    return group.group > FLOOD_GROUPS


def bridged(topology: Topology, rulesets: dict[str, RuleSet], cpu_port: int | None = None) -> dict[str, RuleSet]:
    """Return the rules of every switch, with groups and entries for bridging added.

    Args:
        cpu_port: Port of the CPU, which gets frames for the bridge itself; None drops them.
    """
    routed, above = routes(topology), tree(topology)
    made = {}
    for name, rules in rulesets.items():
        ports = [topology.port(name, neighbour) for neighbour in flooded(topology, name, above)]
        groups, entries = _of_switch(ports, routed[name], cpu_port)
        made[name] = replace(rules, groups=(*rules.groups, *groups), bridge=(*rules.bridge, *entries))
    return made


def _of_switch(
    tree: list[int], routed: tuple[Route, ...], cpu_port: int | None
) -> tuple[list[MulticastGroup], list[Bridge]]:
    """Return the multicast groups and the bridge entries of a switch that floods over the ports `tree` and has the IPv4
    routes `routed`.
    """
    groups, entries = [], [Bridge(HIGH, None, TO_THE_BRIDGE, ITS_BITS, None if cpu_port is None else Forward(cpu_port))]
    for route in routed:
        entries.append(Bridge(MIDDLE, None, route.mac, ONE, Forward(route.port)))
    for port in tree:
        others = tuple(sorted(other for other in tree if other != port))
        if others:
            groups.append(MulticastGroup(FLOOD_GROUPS + port, others))
            entries.append(Bridge(LOW, port, ANY, ANY, Replicate(FLOOD_GROUPS + port)))
    return groups, entries


def flooded(topology: Topology, switch: str, above: dict[str, str]) -> list[str]:
    """Return the neighbours over which a switch floods: all servers with one link, and the switches next to it in the
    tree (`above`, as `tree` returns it).
    """
    return [
        neighbour
        for neighbour in topology.neighbours(switch)
        if (
            len(topology.neighbours(neighbour)) == 1
            if topology.kind(neighbour) == "server"
            else above.get(neighbour) == switch or above.get(switch) == neighbour
        )
    ]


def tree(topology: Topology) -> dict[str, str]:
    """Return, by switch, the switch above it in a tree of the fewest hops from the first switch (of each connected
    part; the first switches have none above them).
    """
    above: dict[str, str] = {}
    seen: set[str] = set()
    for root in topology.switches:
        if root in seen:
            continue
        seen.add(root)
        queue = [root]
        for switch in queue:
            for neighbour in topology.neighbours(switch):
                if topology.kind(neighbour) == "switch" and neighbour not in seen:
                    seen.add(neighbour)
                    above[neighbour] = switch
                    queue.append(neighbour)
    return above
