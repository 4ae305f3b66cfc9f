"""Bridging: entries for frames that are neither ours nor IPv4 to a host, so that a switch can share an ordinary
network.

ARP, IPv6, other multicast and frames with a VLAN tag go as over a bridge that does not look at VLANs: to a server of
the topology over the same links as IPv4, to groups and to unknown addresses over a tree of the topology's links,
everywhere but back. What is for the bridge itself (01:80:c2:00:00:00 to 0f: LLDP, spanning tree, pause) goes to the
CPU's port, or nowhere.
"""

from __future__ import annotations

from dataclasses import replace

from controlplane.planner.entries import Bridge, Forward, MulticastGroup, Replicate, Route, RuleSet
from controlplane.planner.rules import routes
from controlplane.planner.topology import Topology

FLOOD_GROUPS = 0x7000
"""Multicast group FLOOD_GROUPS + port: to where frames from that port are flooded. Groups of jobs are below."""

TO_THE_BRIDGE, ITS_BITS = "01:80:c2:00:00:00", "ff:ff:ff:ff:ff:f0"
ANY = "00:00:00:00:00:00"
ONE = "ff:ff:ff:ff:ff:ff"
HIGH, MIDDLE, LOW = 30, 20, 10


def is_flood(group: MulticastGroup) -> bool:
    """Return whether a group is the network's own."""
    return group.group > FLOOD_GROUPS


def bridged(topology: Topology, rulesets: dict[str, RuleSet], cpu_port: int | None = None) -> dict[str, RuleSet]:
    """The rules of every switch with what bridges."""
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
    """Groups and entries of a switch that floods over these ports."""
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
    """Neighbours of a switch over which floods go: all servers with one link, and switches next to it in the tree."""
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
    """Switch -> the switch above it, in a tree of the fewest hops from the first switch (of each connected part)."""
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
