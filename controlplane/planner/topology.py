"""The network that a job runs on: switches and servers, directed links, capacities and the load that others put on
them.

All rates are Mbit/s. Links are directed and full duplex: in an undirected file each link stands for both directions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import networkx as nx

from controlplane.planner.frontpanel import FrontPanelPort
from controlplane.planner.topology_cables import with_cables
from controlplane.planner.topology_checks import (
    TopologyError,
    check_cables,
    checked_link,
    checked_node,
    link_of,
    node_of,
    of_kind,
    parse,
    read,
)
from controlplane.planner.topology_hosts import HOST, with_host_switches
from controlplane.planner.topology_numbers import (
    assign_addresses,
    assign_ports,
    check_macs,
    front_panel,
    loopback_ports,
    mac_of,
)

__all__ = ["Topology", "TopologyError", "natural_key"]


ROUNDING = 1e-9
"""A rest of a capacity below this fraction of what is used is an error of the sums, and counts as nothing: a job that
was given 1e-15 Mbit/s would never end.
"""


def _left(capacity: float, used: float) -> float:
    """Return what is left of a capacity."""
    left = capacity - used
    return left if left > ROUNDING * used else 0.0


def _place(node: str, attributes: Mapping[str, Any]) -> tuple[tuple[tuple[int, int, str], ...], bool]:
    """Return a sort key of a node. A switch on a host comes where the host would, so that ports keep their numbers."""
    host = attributes.get(HOST)
    return natural_key(host if isinstance(host, str) else node), isinstance(host, str)


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key of a name under which h2 comes before h10."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


class Topology:
    """A network; it never changes once made. Nodes are strings; the order of `nodes`, `switches` and `servers` is
    natural (h2 before h10).

    Attributes of any node are kind ("switch" or "server") and cable (true of a switch that stands for one of several
    cables between two nodes, topology_cables.py). Switches have aggregation_mbps (input rate that the switch can
    aggregate; absent: unlimited), used_aggregation_mbps (of it, what others use) and host (the server on whose host it
    runs). Servers have ingress_mbps (rate at which a parameter server there takes gradients in; absent: that of its
    access links), used_ingress_mbps, host_ms (what an agent there adds to a round trip), measured_ms (the same as
    agents measured it last, where host_ms is absent: plan/measured.py), ip, mac and role ("worker" or
    "parameter_server": `parse_job` takes such servers for these first). A server that is given an aggregation_mbps
    above 0 (input rate that the host adds inside of trees, as a switch would; None: unlimited) gets a switch on its
    host, which has it (topology_hosts.py).

    Attributes of a link are bandwidth_mbps, delay_ms (0), used_bandwidth_mbps (0), ports ({"u": 1, "v": 3}) and members
    (the number of cables that it is made of, which share its capacity).

    For hardware switches a link has front_panel ({"v": "1/0"}, by switch the port that it is plugged into), speed
    ("100G"), fec ("none", "firecode", "rs") and autoneg ("default", "on", "off"), and a switch has loopback_ports (a
    list of objects with front_panel, speed, fec). Only deployments to such switches read these.
    """

    def __init__(
        self,
        nodes: Mapping[str, Mapping[str, Any]],
        links: Iterable[tuple[str, str, Mapping[str, Any]]],
        name: str = "",
        *,
        results_on_links: bool = True,
    ) -> None:
        """Make a topology from nodes and directed links; a link that is given several times is as many parallel cables.
        Raise TopologyError where something is wrong.

        `results_on_links` says whether the results' way back to the workers counts on the links: it does in any
        network; the InArt paper's model leaves it out, and so does its example, `testbed`.
        """
        self.name = name
        self.results_on_links = results_on_links
        graph: nx.DiGraph = nx.DiGraph(name=name)
        nodes, links = with_host_switches(*with_cables(nodes, links))
        for node in sorted(nodes, key=lambda node: _place(node, nodes[node])):
            graph.add_node(node, **checked_node(node, nodes[node]))
        for u, v, attributes in links:
            for end in (u, v):
                if end not in graph:
                    raise TopologyError(f"link {u} -> {v}: node {end} does not exist")
            if u == v:
                raise TopologyError(f"link {u} -> {v}: both ends are the same node")
            graph.add_edge(u, v, **checked_link(u, v, attributes))
        self.graph: nx.DiGraph = nx.freeze(graph)
        self.nodes: tuple[str, ...] = tuple(graph.nodes)
        self._kinds: dict[str, str] = {node: attributes["kind"] for node, attributes in graph.nodes(data=True)}
        self.switches: tuple[str, ...] = tuple(n for n in self.nodes if self._kinds[n] == "switch")
        self.servers: tuple[str, ...] = tuple(n for n in self.nodes if self._kinds[n] == "server")
        self.links: tuple[tuple[str, str], ...] = tuple(graph.edges)
        """All directed links."""
        self.cables = frozenset(n for n in self.switches if graph.nodes[n].get("cable"))
        """Nodes that are no switches, though listed as such: each stands for one of several cables between two nodes.
        """
        self.devices: tuple[str, ...] = tuple(n for n in self.switches if n not in self.cables)
        """Switches that are machines, and not cables."""
        order = {node: i for i, node in enumerate(self.nodes)}
        self._neighbours: dict[str, tuple[str, ...]] = {
            node: tuple(sorted({*graph.successors(node), *graph.predecessors(node)}, key=order.__getitem__))
            for node in self.nodes
        }
        check_cables(self.cables, self._neighbours)
        self.switch_on = self._switches_on_hosts()
        """The switch on the host of each server that adds inside of trees, by server."""
        self._ports = {node: assign_ports(graph, node, self._neighbours[node]) for node in self.nodes}
        self._panels = {switch: front_panel(graph, switch, self._ports[switch]) for switch in self.devices}
        self._addresses = assign_addresses(graph, self.servers)
        check_macs({server: self.mac(server) for server in self.servers})
        self._residual_bandwidth = {  # planners ask for it often
            (u, v): _left(link["bandwidth_mbps"], link.get("used_bandwidth_mbps", 0.0))
            for u, v, link in graph.edges(data=True)
        }
        out, into = (dict.fromkeys(self.nodes, 0.0) for _ in range(2))
        behind = {switch: server for server, switch in self.switch_on.items()}
        for (u, v), mbps in self._residual_bandwidth.items():
            if behind.get(u) != v and behind.get(v) != u:
                out[u] += mbps
                into[v] += mbps
        for switch, server in behind.items():
            out[server], into[server] = out[switch], into[switch]
        self.residual_rates_mbps = {node: (out[node], into[node]) for node in self.nodes}
        """By node, the residual bandwidth in Mbit/s of all links out of it together, and of all links into it. Of a
        server and the switch on its host, these are the host's links.
        """

    def _switches_on_hosts(self) -> dict[str, str]:
        found = {}
        for switch in self.switches:
            host = self.graph.nodes[switch].get(HOST)
            servers = [near for near in self._neighbours[switch] if self._kinds[near] == "server"]
            if host is not None and servers == [host] and self._neighbours[host] == (switch,):
                found[host] = switch
        return found

    # --- nodes ---

    def __contains__(self, node: object) -> bool:
        return node in self.graph

    def kind(self, node: str) -> str:
        """Return "switch" or "server"."""
        kind = self._kinds.get(node)  # fast, as it is called for every link and node
        return node_of(self.graph, node)["kind"] if kind is None else kind

    def role(self, node: str) -> str | None:
        """Return "worker", "parameter_server" or None, which is a hint for `parse_job`."""
        return node_of(self.graph, node).get("role")

    def aggregation_mbps(self, node: str) -> float:
        """Return the input rate that the node can aggregate, in Mbit/s; infinity for a switch without a limit of its
        own, 0 for a server.
        """
        attributes = node_of(self.graph, node)
        return attributes.get("aggregation_mbps", math.inf if attributes["kind"] == "switch" else 0.0)

    def residual_aggregation_mbps(self, node: str) -> float:
        return _left(self.aggregation_mbps(node), node_of(self.graph, node).get("used_aggregation_mbps", 0.0))

    def ingress_mbps(self, server: str) -> float:
        """Return the Mbit/s at which a parameter server on this server takes gradients in; at most what its access
        links have.
        """
        own = of_kind(self.graph, server, "server").get("ingress_mbps", math.inf)
        switch = self.switch_on.get(server, server)
        return min(own, sum(self.bandwidth_mbps(u, switch) for u in self.graph.predecessors(switch) if u != server))

    def residual_ingress_mbps(self, server: str) -> float:
        """Return what is left of the server's own ingress in Mbit/s; at most what is left of its access links."""
        return min(self.residual_intake_mbps(server), self.residual_rates_mbps[server][1])

    def residual_intake_mbps(self, server: str) -> float:
        """Return what is left of the server's own ingress in Mbit/s, whatever its links carry; infinity where it has no
        limit of its own.
        """
        attributes = of_kind(self.graph, server, "server")
        return _left(attributes.get("ingress_mbps", math.inf), attributes.get("used_ingress_mbps", 0.0))

    # --- links ---

    def has_link(self, u: str, v: str) -> bool:
        return (u, v) in self._residual_bandwidth

    def bandwidth_mbps(self, u: str, v: str) -> float:
        return link_of(self.graph, u, v)["bandwidth_mbps"]

    def delay_ms(self, u: str, v: str) -> float:
        return link_of(self.graph, u, v).get("delay_ms", 0.0)

    def used_bandwidth_mbps(self, u: str, v: str) -> float:
        return link_of(self.graph, u, v).get("used_bandwidth_mbps", 0.0)

    def residual_bandwidth_mbps(self, u: str, v: str) -> float:
        residual = self._residual_bandwidth.get((u, v))
        if residual is None:
            link_of(self.graph, u, v)  # raises, naming what does not exist
            raise AssertionError
        return residual

    def neighbours(self, node: str) -> tuple[str, ...]:
        """Return the nodes with a link to or from this one, in natural order."""
        node_of(self.graph, node)
        return self._neighbours[node]

    def port(self, switch: str, neighbour: str) -> int:
        """Return the port number of `switch` towards `neighbour`: the one in the link's "ports", else the first free
        one, in the order of `neighbours`.
        """
        node_of(self.graph, switch), node_of(self.graph, neighbour)
        try:
            return self._ports[switch][neighbour]
        except KeyError:
            raise TopologyError(f"node {switch} has no link with {neighbour}") from None

    def front_panel(self, switch: str) -> dict[int, FrontPanelPort]:
        """Return the switch's front-panel ports by port number (`port`). Raise TopologyError where a link does not name
        its own.
        """
        of_kind(self.graph, switch, "switch")
        ports = self._ports[switch]
        missing = [other for other in self._neighbours[switch] if ports[other] not in self._panels[switch]]
        if missing:
            raise TopologyError(
                f"switch {switch}: the link with {missing[0]} does not say which port it is plugged into; give it "
                f'"front_panel": {{"{switch}": "1/0"}} and "speed": "100G"'
            )
        return dict(self._panels[switch])

    def loopback_ports(self, switch: str) -> tuple[FrontPanelPort, ...]:
        """Return the front-panel ports of the switch that are set to loop back."""
        return loopback_ports(of_kind(self.graph, switch, "switch"))

    def access_switch(self, server: str) -> str:
        """Return the one switch that the server hangs on. Raise TopologyError where it has no link or several."""
        of_kind(self.graph, server, "server")
        neighbours = self._neighbours[server]
        if len(neighbours) != 1 or self.kind(neighbours[0]) != "switch":
            raise TopologyError(
                f"server {server} must hang on exactly one switch, it is linked with: "
                f"{', '.join(neighbours) or 'nothing'}"
            )
        return neighbours[0]

    def address(self, server: str) -> str:
        """Return a server's IPv4 address on the data network."""
        of_kind(self.graph, server, "server")
        return self._addresses[server]

    def mac(self, server: str) -> str:
        """Return a server's MAC address on the data network: the attribute, else 02:00 and the four bytes of the IPv4
        address.
        """
        return mac_of(of_kind(self.graph, server, "server"), self._addresses[server])

    # --- files ---

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> Topology:
        """Return the topology in networkx node-link JSON (a path or the parsed object). Raise TopologyError, which
        names what is wrong.
        """
        if isinstance(source, Mapping):
            nodes, links, name, counted = parse(source, "")
            return cls(nodes, links, name, results_on_links=counted)
        path = Path(source)
        content = read(path)
        try:
            nodes, links, name, counted = parse(content, path.stem)
            return cls(nodes, links, name, results_on_links=counted)
        except TopologyError as error:
            raise TopologyError(f"topology file {path}: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Return node-link JSON that `load` takes; it is undirected where both directions of every link are alike."""
        alike = all(
            self.graph.has_edge(v, u) and self.graph.edges[v, u] == data for u, v, data in self.graph.edges(data=True)
        )
        position = {node: i for i, node in enumerate(self.nodes)}
        return {
            "directed": not alike,
            "multigraph": False,
            "graph": {"name": self.name, "results_on_links": self.results_on_links},
            "nodes": [{"id": n, **_json(self.graph.nodes[n])} for n in self.nodes],
            "edges": [
                {"source": u, "target": v, **data}
                for u, v, data in self.graph.edges(data=True)
                if not alike or position[u] < position[v]
            ],
        }

    def replace(
        self,
        nodes: Mapping[str, Mapping[str, Any]] | None = None,
        links: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
        remove_nodes: Iterable[str] = (),
        remove_links: Iterable[tuple[str, str]] = (),
    ) -> Topology:
        """Return a copy with changed attributes, or without some nodes and directed links (after a failure, or with a
        new background load).

        Port numbers and addresses stay what they are here. Raise TopologyError for nodes or links that do not exist.
        """
        gone_nodes, gone_links = set(remove_nodes), set(remove_links)
        for node in (*gone_nodes, *(nodes or ())):
            node_of(self.graph, node)
        for u, v in (*gone_links, *(links or ())):
            link_of(self.graph, u, v)
        new_nodes: dict[str, dict[str, Any]] = {}
        for node in self.nodes:
            if node not in gone_nodes:
                own = {"ip": self._addresses[node]} if node in self._addresses else {}
                new_nodes[node] = {**self.graph.nodes[node], **own, **(nodes or {}).get(node, {})}
        new_links = []
        for u, v, data in self.graph.edges(data=True):
            if u not in gone_nodes and v not in gone_nodes and (u, v) not in gone_links:
                ports = {"ports": {u: self._ports[u][v], v: self._ports[v][u]}}
                new_links.append((u, v, {**data, **ports, **(links or {}).get((u, v), {})}))
        return Topology(new_nodes, new_links, self.name, results_on_links=self.results_on_links)

    def __repr__(self) -> str:
        size = f"{len(self.switches)} switches, {len(self.servers)} servers, {len(self.links)} links"
        return f"Topology({self.name!r}: {size})"


def _json(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's attributes as JSON has them, with null for unlimited."""
    return {key: None if value == math.inf else value for key, value in attributes.items()}
