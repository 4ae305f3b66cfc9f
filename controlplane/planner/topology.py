"""The network a job runs on: switches and servers, directed links, capacities and the load that others put on them.

All rates are Mbit/s. Links are directed and full duplex: an undirected file stands for both directions of each link.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx as nx

from controlplane.common.inputs import parse_json, unknown_name
from controlplane.planner.frontpanel import SETTINGS, SPEEDS_GBPS, FrontPanelError, FrontPanelPort, make_port, overlaps

NODE_NUMBERS = ("aggregation_mbps", "ingress_mbps", "used_aggregation_mbps", "used_ingress_mbps")
LINK_NUMBERS = ("bandwidth_mbps", "delay_ms", "used_bandwidth_mbps")
SWITCH_LIMITS = ("slots", "label_entries", "multicast_groups", "fan_in", "max_workers", "values_per_packet")
ABOUT = ("name", "label", "description", "x", "y")
"""For people and for drawing; nothing here reads them."""
HOST_TIMES = ("host_ms", "measured_ms")
NODE_ATTRIBUTES = ("kind", *NODE_NUMBERS, *HOST_TIMES, "ip", "mac", "role", "loopback_ports", *SWITCH_LIMITS, *ABOUT)
LINK_ATTRIBUTES = (*LINK_NUMBERS, "ports", "front_panel", *SETTINGS, *ABOUT)
FIRST_ADDRESS = ipaddress.IPv4Address("10.0.0.1")
KINDS = ("switch", "server")
LONGEST_ID = 100


class TopologyError(ValueError):
    """The topology is wrong, or was asked for something that it does not have; names the node or link."""


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which h2 comes before h10."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def _number(value: Any, what: str, unlimited: bool) -> float:
    """A finite number >= 0; null and infinity mean unlimited where `unlimited`."""
    if value is None and unlimited:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TopologyError(f"{what} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise TopologyError(f"{what} is larger than any number that can be computed with") from None
    if math.isnan(number):
        raise TopologyError(f"{what} must be a number, got NaN (not a number)")
    if number < 0:
        raise TopologyError(f"{what} must not be negative, got {value!r}")
    if math.isinf(number) and not unlimited:
        raise TopologyError(f"{what} must be finite, got {value!r}")
    return number


class Topology:
    """Frozen once made. Nodes are strings; the order of `nodes`, `switches`, `servers` is natural (h2 before h10).

    Node attributes: kind ("switch" or "server");
    switches: aggregation_mbps (input rate that it can aggregate; absent: unlimited), used_aggregation_mbps (by others);
    servers: aggregation_mbps (input rate that the host adds inside of trees, as a switch would; absent: none),
    ingress_mbps (rate at which a parameter server there takes gradients in; absent: its access link's),
    used_ingress_mbps, host_ms (what an agent there adds to a round trip), measured_ms (the same as agents measured it
    last, where host_ms does not say: plan/measured.py), ip, mac, role ("worker" or "parameter_server": `parse_job`
    places those there first).
    Link attributes: bandwidth_mbps, delay_ms (0), used_bandwidth_mbps (0), ports ({"u": 1, "v": 3}).

    For hardware switches, on a link: front_panel ({"v": "1/0"}: which port it is plugged into, per switch), speed
    ("100G"), fec ("none", "firecode", "rs"), autoneg ("default", "on", "off"); on a switch: loopback_ports (a list of
    objects with front_panel, speed, fec). Nothing but a deployment to such switches reads them.
    """

    def __init__(
        self,
        nodes: Mapping[str, Mapping[str, Any]],
        links: Iterable[tuple[str, str, Mapping[str, Any]]],
        name: str = "",
        *,
        results_on_links: bool = True,
    ) -> None:
        """`links` are directed. Raises TopologyError.

        results_on_links: whether the results' way back to the workers counts on the links (it does in any network; the
        InArt paper's model leaves it out, and so does its example, `testbed`).
        """
        self.name = name
        self.results_on_links = results_on_links
        graph: nx.DiGraph = nx.DiGraph()
        for node in sorted(nodes, key=natural_key):
            graph.add_node(node, **_checked_node(node, nodes[node]))
        for u, v, attributes in links:
            for end in (u, v):
                if end not in graph:
                    raise TopologyError(f"link {u} -> {v}: node {end} does not exist")
            if u == v:
                raise TopologyError(f"link {u} -> {v}: both ends are the same node")
            if graph.has_edge(u, v):
                raise TopologyError(f"link {u} -> {v} is given twice (parallel links are not supported)")
            graph.add_edge(u, v, **_checked_link(u, v, attributes))
        self.graph: nx.DiGraph = nx.freeze(graph)
        self.nodes: tuple[str, ...] = tuple(graph.nodes)
        self.switches: tuple[str, ...] = tuple(n for n in self.nodes if graph.nodes[n]["kind"] == "switch")
        self.servers: tuple[str, ...] = tuple(n for n in self.nodes if graph.nodes[n]["kind"] == "server")
        self._neighbours: dict[str, tuple[str, ...]] = {
            node: tuple(sorted({*graph.successors(node), *graph.predecessors(node)}, key=natural_key))
            for node in self.nodes
        }
        self._ports = {node: self._assign_ports(node) for node in self.nodes}
        self._panels = {switch: self._front_panel(switch) for switch in self.switches}
        self._addresses = self._assign_addresses()
        self._check_macs()

    # --- nodes ---

    def _node(self, node: str) -> dict[str, Any]:
        try:
            return self.graph.nodes[node]
        except KeyError:
            raise TopologyError(f"node {node!r} does not exist in topology {self.name or '(unnamed)'}") from None

    def _of_kind(self, node: str, kind: str) -> dict[str, Any]:
        attributes = self._node(node)
        if attributes["kind"] != kind:
            raise TopologyError(f"node {node!r} is a {attributes['kind']}, not a {kind}")
        return attributes

    def __contains__(self, node: object) -> bool:
        return node in self.graph

    def kind(self, node: str) -> str:
        """ "switch" or "server"."""
        return self._node(node)["kind"]

    def role(self, node: str) -> str | None:
        """ "worker", "parameter_server" or None: a hint for `parse_job`."""
        return self._node(node).get("role")

    def aggregation_mbps(self, node: str) -> float:
        """Input rate that the node can aggregate; infinity: a switch without a limit; 0: a server that does not say."""
        attributes = self._node(node)
        return attributes.get("aggregation_mbps", math.inf if attributes["kind"] == "switch" else 0.0)

    def used_aggregation_mbps(self, node: str) -> float:
        return self._node(node).get("used_aggregation_mbps", 0.0)

    def residual_aggregation_mbps(self, node: str) -> float:
        return max(0.0, self.aggregation_mbps(node) - self.used_aggregation_mbps(node))

    @cached_property
    def adding_servers(self) -> frozenset[str]:
        """Servers that may add inside of trees."""
        return frozenset(s for s in self.servers if self.residual_aggregation_mbps(s) > 0)

    def ingress_mbps(self, server: str) -> float:
        """Rate at which a parameter server on this server takes gradients in (absent: its access links)."""
        own = self._of_kind(server, "server").get("ingress_mbps", math.inf)
        return min(own, sum(self.bandwidth_mbps(u, server) for u in self.graph.predecessors(server)))

    def residual_ingress_mbps(self, server: str) -> float:
        """What is left of the server's own ingress; at most what is left of its access links."""
        links = sum(self.residual_bandwidth_mbps(u, server) for u in self.graph.predecessors(server))
        return min(self.residual_intake_mbps(server), links)

    def residual_intake_mbps(self, server: str) -> float:
        """What is left of the server's own ingress, whatever its links carry; infinity when not limited."""
        attributes = self._of_kind(server, "server")
        return max(0.0, attributes.get("ingress_mbps", math.inf) - attributes.get("used_ingress_mbps", 0.0))

    # --- links ---

    def _link(self, u: str, v: str) -> dict[str, Any]:
        self._node(u), self._node(v)
        try:
            return self.graph.edges[u, v]
        except KeyError:
            raise TopologyError(f"link {u} -> {v} does not exist") from None

    @cached_property
    def links(self) -> tuple[tuple[str, str], ...]:
        """All directed links."""
        return tuple(self.graph.edges)

    def has_link(self, u: str, v: str) -> bool:
        return (u, v) in self._residual_bandwidth

    def bandwidth_mbps(self, u: str, v: str) -> float:
        return self._link(u, v)["bandwidth_mbps"]

    def delay_ms(self, u: str, v: str) -> float:
        return self._link(u, v).get("delay_ms", 0.0)

    def used_bandwidth_mbps(self, u: str, v: str) -> float:
        return self._link(u, v).get("used_bandwidth_mbps", 0.0)

    def residual_bandwidth_mbps(self, u: str, v: str) -> float:
        residual = self._residual_bandwidth.get((u, v))
        if residual is None:
            self._link(u, v)  # says what is not there
            raise AssertionError
        return residual

    @cached_property
    def _residual_bandwidth(self) -> dict[tuple[str, str], float]:
        """Planners ask for it often."""
        links = self.links
        return {(u, v): max(0.0, self.bandwidth_mbps(u, v) - self.used_bandwidth_mbps(u, v)) for u, v in links}

    def neighbours(self, node: str) -> tuple[str, ...]:
        """Nodes with a link to or from this one, in natural order."""
        self._node(node)
        return self._neighbours[node]

    def port(self, switch: str, neighbour: str) -> int:
        """Port of `switch` towards `neighbour`: from the link's "ports", else 1, 2, .. in the order of `neighbours`."""
        self._node(switch), self._node(neighbour)
        try:
            return self._ports[switch][neighbour]
        except KeyError:
            raise TopologyError(f"node {switch} has no link with {neighbour}") from None

    def front_panel(self, switch: str) -> dict[int, FrontPanelPort]:
        """The switch's front-panel ports by port number (`port`). Raises TopologyError when a link lacks its own."""
        self._of_kind(switch, "switch")
        ports = self._ports[switch]
        missing = [other for other in self._neighbours[switch] if ports[other] not in self._panels[switch]]
        if missing:
            raise TopologyError(
                f"switch {switch}: the link with {missing[0]} does not say which port it is plugged into; give it "
                f'"front_panel": {{"{switch}": "1/0"}} and "speed": "100G"'
            )
        return dict(self._panels[switch])

    def loopback_ports(self, switch: str) -> tuple[FrontPanelPort, ...]:
        """Front-panel ports of the switch that are set to loop back."""
        given = self._of_kind(switch, "switch").get("loopback_ports", ())
        return tuple(make_port(port["front_panel"], port, loopback=True) for port in given)

    def _front_panel(self, switch: str) -> dict[int, FrontPanelPort]:
        panel: dict[int, FrontPanelPort] = {}
        for other in self._neighbours[switch]:
            for u, v in ((switch, other), (other, switch)):
                attributes = self.graph.edges[u, v] if self.graph.has_edge(u, v) else {}
                if switch in attributes.get("front_panel", {}):
                    port = make_port(attributes["front_panel"][switch], attributes)
                    if panel.setdefault(self._ports[switch][other], port) != port:
                        raise TopologyError(f"link {switch} - {other}: its two directions name different ports")
        ports = [*panel.values(), *self.loopback_ports(switch)]
        for i, one in enumerate(ports):
            for two in ports[:i]:
                if overlaps(one, two):
                    raise TopologyError(f"switch {switch}: ports {two} and {one} are the same or share lanes")
        return panel

    def access_switch(self, server: str) -> str:
        """The one switch that the server hangs on. Raises TopologyError when it has none or several links."""
        self._of_kind(server, "server")
        neighbours = self._neighbours[server]
        if len(neighbours) != 1 or self.kind(neighbours[0]) != "switch":
            raise TopologyError(
                f"server {server} must hang on exactly one switch, it is linked with: "
                f"{', '.join(neighbours) or 'nothing'}"
            )
        return neighbours[0]

    def address(self, server: str) -> str:
        """IPv4 address on the data network."""
        self._of_kind(server, "server")
        return self._addresses[server]

    def mac(self, server: str) -> str:
        """MAC address on the data network: the attribute, else 02:00 and the four bytes of the address."""
        attributes = self._of_kind(server, "server")
        if "mac" in attributes:
            return attributes["mac"]
        return ":".join(f"{byte:02x}" for byte in b"\x02\x00" + ipaddress.IPv4Address(self._addresses[server]).packed)

    def _assign_ports(self, node: str) -> dict[str, int]:
        ports: dict[str, int] = {}
        for other in self._neighbours[node]:
            for u, v in ((node, other), (other, node)):
                given = self.graph.edges[u, v].get("ports", {}) if self.graph.has_edge(u, v) else {}
                if node in given and ports.setdefault(other, given[node]) != given[node]:
                    raise TopologyError(f"link {node} - {other}: two port numbers at {node}")
        if len(set(ports.values())) != len(ports):
            raise TopologyError(f"node {node}: two links have the same port number")
        free = (n for n in range(1, 1 << 16) if n not in set(ports.values()))
        for other in self._neighbours[node]:
            if other not in ports:
                ports[other] = next(free)
        return ports

    def _assign_addresses(self) -> dict[str, str]:
        given = {s: self.graph.nodes[s]["ip"] for s in self.servers if "ip" in self.graph.nodes[s]}
        owners: dict[str, str] = {}
        for server, address in given.items():
            if address in owners:
                raise TopologyError(f"servers {owners[address]} and {server} have the same address {address}")
            owners[address] = server
        addresses = dict(given)
        candidate = FIRST_ADDRESS
        for server in self.servers:
            if server in addresses:
                continue
            while str(candidate) in owners or candidate.packed[3] in (0, 255):
                candidate += 1
            addresses[server] = str(candidate)
            candidate += 1
        return addresses

    def _check_macs(self) -> None:
        owners: dict[str, str] = {}
        for server in self.servers:
            other = owners.setdefault(self.mac(server).lower(), server)
            if other != server:
                raise TopologyError(f"servers {other} and {server} have the same MAC address {self.mac(server)}")

    # --- files ---

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> Topology:
        """From networkx node-link JSON (a path or the parsed object). Raises TopologyError, naming what is wrong."""
        if isinstance(source, Mapping):
            return cls._from_json(source, "")
        path = Path(source)
        try:
            content = parse_json(path.read_text())
        except OSError as error:
            raise TopologyError(f"cannot read topology file {path}: {error.strerror}") from None
        except ValueError as error:
            raise TopologyError(f"topology file {path} is not JSON: {error}") from None
        if not isinstance(content, Mapping):
            raise TopologyError(f'topology file {path} must hold an object with "nodes" and "edges"')
        try:
            return cls._from_json(content, path.stem)
        except TopologyError as error:
            raise TopologyError(f"topology file {path}: {error}") from None

    @classmethod
    def _from_json(cls, source: Mapping[str, Any], name: str) -> Topology:
        """name: where the object has none of its own."""
        node_list = source.get("nodes")
        edge_list = source.get("edges", source.get("links"))
        if not isinstance(node_list, list) or not isinstance(edge_list, list):
            raise TopologyError(
                'a topology is node-link JSON: an object with the lists "nodes" and "edges" (or "links")'
            )
        if "edges" in source and "links" in source:
            raise TopologyError('a topology has its links in "edges" or in "links" (older networkx), not in both')
        if not node_list:
            raise TopologyError("the topology has no nodes")
        nodes: dict[str, Mapping[str, Any]] = {}
        for entry in node_list:
            given = entry.get("id") if isinstance(entry, Mapping) else None
            if not isinstance(given, str | int) or isinstance(given, bool):
                raise TopologyError(f'each node needs an "id" (a string), got {entry!r}')
            node = str(entry["id"])
            if node in nodes:
                raise TopologyError(f"node {node!r} is given twice")
            nodes[node] = {key: value for key, value in entry.items() if key != "id"}
            if unknown := unknown_name(nodes[node], NODE_ATTRIBUTES):
                raise TopologyError(f"node {node!r}: {unknown}")
        links: list[tuple[str, str, Mapping[str, Any]]] = []
        for entry in edge_list:
            if not isinstance(entry, Mapping) or not all(
                isinstance(entry.get(e), str | int) for e in ("source", "target")
            ):
                raise TopologyError(f'each link needs "source" and "target" (node ids), got {entry!r}')
            u, v = str(entry["source"]), str(entry["target"])
            attributes = {key: value for key, value in entry.items() if key not in ("source", "target", "key")}
            if unknown := unknown_name(attributes, LINK_ATTRIBUTES):
                raise TopologyError(f"link {u} -> {v}: {unknown}")
            links.append((u, v, attributes))
            if not source.get("directed", False):
                links.append((v, u, attributes))
        graph = source.get("graph")
        about = graph if isinstance(graph, Mapping) else {}
        counted = about.get("results_on_links", True)
        if not isinstance(counted, bool):
            raise TopologyError(f"results_on_links must be true or false, got {counted!r}")
        given_name = about.get("name")
        return cls(nodes, links, given_name if isinstance(given_name, str) else name, results_on_links=counted)

    def to_json(self) -> dict[str, Any]:
        """Node-link JSON that `load` takes; undirected when both directions of every link are alike."""
        alike = all(
            self.graph.has_edge(v, u) and self.graph.edges[v, u] == data for u, v, data in self.graph.edges(data=True)
        )
        position = {node: i for i, node in enumerate(self.nodes)}
        return {
            "directed": not alike,
            "multigraph": False,
            "graph": {"name": self.name, "results_on_links": self.results_on_links},
            "nodes": [{"id": n, **self.graph.nodes[n]} for n in self.nodes],
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
        """A copy with changed attributes, or without some nodes and directed links (a failure, new background load).

        Port numbers and addresses stay what they are here. Raises TopologyError for what does not exist.
        """
        gone_nodes, gone_links = set(remove_nodes), set(remove_links)
        for node in (*gone_nodes, *(nodes or ())):
            self._node(node)
        for u, v in (*gone_links, *(links or ())):
            self._link(u, v)
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


def _checked_node(node: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    if not node:
        raise TopologyError("a node's id must not be empty")
    if not node.isprintable() or len(node) > LONGEST_ID:
        raise TopologyError(f"a node's id has at most {LONGEST_ID} characters that can be printed, got {node[:200]!r}")
    kind = attributes.get("kind")
    if kind not in KINDS:
        raise TopologyError(f'node {node!r}: kind must be "switch" or "server", got {kind!r}')
    result = dict(attributes)
    for key in NODE_NUMBERS:
        if key in attributes:
            if key.endswith("ingress_mbps") and kind == "switch":
                raise TopologyError(f"node {node!r}: {key} does not belong on a {kind}")
            result[key] = _number(attributes[key], f"node {node!r}: {key}", unlimited=not key.startswith("used_"))
            if math.isinf(result[key]):
                del result[key]
    for key in HOST_TIMES:
        if key in attributes:
            result[key] = _number(attributes[key], f"node {node!r}: {key}", unlimited=False)
    if kind != "server":
        for key in ("ip", "role", *HOST_TIMES):
            if key in attributes:
                raise TopologyError(f"node {node!r}: {key} belongs on a server")
    if "loopback_ports" in attributes:
        _check_loopback_ports(node, kind, attributes["loopback_ports"])
    if "ip" in result:
        try:
            address = ipaddress.IPv4Address(str(result["ip"]))
        except ValueError:
            raise TopologyError(f"node {node!r}: ip must be an IPv4 address, got {attributes['ip']!r}") from None
        if address.is_multicast or address.is_loopback or address.is_unspecified or address.is_reserved:
            raise TopologyError(f"node {node!r}: ip {address} cannot be a server's")
        result["ip"] = str(address)
    if "mac" in result and not re.fullmatch(r"([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", str(result["mac"])):
        raise TopologyError(f"node {node!r}: mac must be like 02:00:0a:00:00:07, got {attributes['mac']!r}")
    if "mac" in result and int(result["mac"][:2], 16) & 1:
        raise TopologyError(f"node {node!r}: mac {result['mac']} is a group's (its first byte is odd), not a server's")
    if result.get("role") not in (None, "worker", "parameter_server"):
        raise TopologyError(f'node {node!r}: role must be "worker" or "parameter_server", got {result["role"]!r}')
    return result


def _check_loopback_ports(node: str, kind: str, given: Any) -> None:
    if kind != "switch":
        raise TopologyError(f"node {node!r}: loopback_ports belong on a switch")
    if not isinstance(given, list | tuple) or not all(isinstance(port, Mapping) for port in given):
        example = '[{"front_panel": "31/0", "speed": "100G"}]'
        raise TopologyError(f"node {node!r}: loopback_ports must be a list like {example}, got {given!r}")
    for port in given:
        unknown = set(port) - {"front_panel", *SETTINGS}
        if unknown:
            raise TopologyError(f"node {node!r}: loopback_ports: unknown {', '.join(sorted(unknown))}")
        try:
            make_port(port.get("front_panel"), port, loopback=True)
        except FrontPanelError as error:
            raise TopologyError(f"node {node!r}: loopback_ports: {error}") from None


def _checked_link(u: str, v: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    where = f"link {u} -> {v}"
    if "bandwidth_mbps" not in attributes:
        raise TopologyError(f"{where}: bandwidth_mbps is missing")
    result = dict(attributes)
    for key in LINK_NUMBERS:
        if key in attributes:
            result[key] = _number(attributes[key], f"{where}: {key}", unlimited=False)
    ports = attributes.get("ports", {})
    if not isinstance(ports, Mapping) or not all(
        end in (u, v) and isinstance(port, int) and not isinstance(port, bool) and 0 < port < 1 << 16
        for end, port in ports.items()
    ):
        raise TopologyError(f"{where}: ports must map its ends to port numbers, like {{{u!r}: 1}}, got {ports!r}")
    _check_front_panel(u, v, result)
    return result


def _check_front_panel(u: str, v: str, attributes: Mapping[str, Any]) -> None:
    where = f"link {u} -> {v}"
    panel = attributes.get("front_panel")
    if panel is None:
        stray = [key for key in SETTINGS if key in attributes]
        if stray:
            raise TopologyError(f"{where}: {stray[0]} is a port's: say which with front_panel, like {{{v!r}: '1/0'}}")
        return
    if not isinstance(panel, Mapping) or not all(end in (u, v) for end in panel):
        raise TopologyError(f"{where}: front_panel must map its ends to ports, like {{{v!r}: '1/0'}}, got {panel!r}")
    for end, name in panel.items():
        try:
            port = make_port(name, attributes)
        except FrontPanelError as error:
            raise TopologyError(f"{where}: front_panel at {end}: {error}") from None
        if attributes["bandwidth_mbps"] > SPEEDS_GBPS[port.speed] * 1000:
            raise TopologyError(
                f"{where}: bandwidth_mbps is {attributes['bandwidth_mbps']:g}, more than port {name}'s {port.speed}"
            )
