"""Hosts that add: a server with `aggregation_mbps` has a switch of its own between its network cards and its agents.

A host that adds for others inside of trees does what a switch does: it waits for the contributions of a chunk, adds
them, sends the sum on under the next label, and sends an incomplete sum on when it is asked to. So it runs the same
program (softswitch on the host, over its network cards and a virtual interface that the host's agents have), and
everything that holds for a switch's slots holds for the host's: each contribution counts once, a host that forgets its
memory costs time and makes no wrong sum, plans migrate, failures are handled.

    its access switch -- the host's own link -- switch "h1-adds", on the host -- the server h1 with its agents

A topology has that switch from the start (`with_host_switches`), so what is planned is what is deployed: one switch per
host, with all of the host's links. It also forwards packets from one link to another and copies results to several, as
every switch does, and plans count these on the host's links. No strategy, bound or check knows a server that adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.planner.topology_checks import TopologyError

Nodes = Mapping[str, Mapping[str, Any]]
Links = list[tuple[str, str, Mapping[str, Any]]]

INSIDE = 10.0
"""Bandwidth between a host's switch and its agents, in units of the host's own links: memory, and so no limit."""
ADDING = ("aggregation_mbps", "used_aggregation_mbps")
HOST = "host"
"""Attribute of a switch that runs on a host: the server there."""


def adding_switch(server: str) -> str:
    """Return the name of the switch on a host that adds."""
    return f"{server}-adds"


def with_host_switches(nodes: Nodes, links: Iterable[tuple[str, str, Mapping[str, Any]]]) -> tuple[Nodes, Links]:
    """Return nodes and directed links with a switch on each host that adds for others. That switch may add as much as
    the host may, and takes over the host's links with their ports. A host that has its switch already changes its
    rate. Raise TopologyError where a host that adds hangs on something else than switches, or a node has the name that
    the host's switch would get.
    """
    links = list(links)
    hosts = [node for node, own in nodes.items() if own.get("kind") == "server" and _adds(own)]
    there = [host for host in nodes if nodes.get(adding_switch(host), {}).get(HOST) == host]
    told = [host for host in there if any(name in nodes[host] for name in ADDING)]
    if not hosts and not told:
        return nodes, links
    made = {node: dict(own) for node, own in nodes.items()}
    for host in dict.fromkeys((*hosts, *told)):
        own, name = made[host], adding_switch(host)
        rates = {key: own.pop(key) for key in ADDING if key in own}
        if host in there:
            made[name].update(rates)
            continue
        if name in made:
            raise TopologyError(f"node {name!r} has the name of the switch on {host}, which adds for others")
        near = {v if u == host else u for u, v, _ in links if host in (u, v)}
        others = sorted(node for node in near if nodes.get(node, {}).get("kind") == "server")
        if others or not near:
            what = f"it is linked with {', '.join(others)}" if others else "it has no link"
            raise TopologyError(f"server {host} adds for others, and so must hang on switches only: {what}")
        made[name] = {"kind": "switch", HOST: host, **rates}
        come, go = (sum(_mbps(own) for *ends, own in links if ends[at] == host) for at in (1, 0))
        links = [_led((u, v, own), host, name) for u, v, own in links]
        links += [(*pair, {"bandwidth_mbps": INSIDE * max(come, go)}) for pair in ((host, name), (name, host))]
    return made, links


def _adds(own: Mapping[str, Any]) -> bool:
    """Return whether a server's attributes say that it adds; not if they are no numbers, which is refused elsewhere."""
    if "aggregation_mbps" not in own:
        return False
    rate = own["aggregation_mbps"]
    return rate is None or (isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0)


def _mbps(own: Mapping[str, Any]) -> float:
    rate = own.get("bandwidth_mbps", 0.0)
    return float(rate) if isinstance(rate, int | float) else 0.0


def _led(link: tuple[str, str, Mapping[str, Any]], host: str, switch: str) -> tuple[str, str, Mapping[str, Any]]:
    """Return a link that ends at the host's switch if it ended at the host; ports are named by the ends."""
    u, v, own = link
    if host not in (u, v):
        return link
    renamed = {
        name: {switch if end == host else end: port for end, port in own[name].items()}
        for name in ("ports", "front_panel")
        if isinstance(own.get(name), Mapping)
    }
    return (switch if u == host else u), (switch if v == host else v), {**own, **renamed}
