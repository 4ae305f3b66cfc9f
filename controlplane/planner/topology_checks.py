"""Topologies as they are given: networkx node-link JSON, the attributes that nodes and links may have and their checks,
and the lookup of nodes and links with errors that name them.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx

from controlplane.common.inputs import read_json, unknown_name
from controlplane.planner.frontpanel import SETTINGS, SPEEDS_GBPS, FrontPanelError, make_port

NODE_NUMBERS = ("aggregation_mbps", "ingress_mbps", "used_aggregation_mbps", "used_ingress_mbps")
LINK_NUMBERS = ("bandwidth_mbps", "delay_ms", "used_bandwidth_mbps")
SWITCH_LIMITS = ("slots", "label_entries", "multicast_groups", "fan_in", "max_workers", "values_per_packet")
ABOUT = ("name", "label", "description", "x", "y")
"""Attributes for people and for drawing, which nothing here reads."""
HOST_TIMES = ("host_ms", "measured_ms")
NODE_ATTRIBUTES = (
    "kind",
    *NODE_NUMBERS,
    *HOST_TIMES,
    "ip",
    "mac",
    "role",
    "loopback_ports",
    "cable",
    "host",
    *SWITCH_LIMITS,
    *ABOUT,
)
TOP_LEVEL = ("directed", "multigraph", "graph", "nodes", "edges", "links")
GRAPH_ATTRIBUTES = ("results_on_links", *ABOUT)
LINK_ATTRIBUTES = (*LINK_NUMBERS, "members", "ports", "front_panel", *SETTINGS, *ABOUT)
KINDS = ("switch", "server")
LONGEST_ID = 100


class TopologyError(ValueError):
    """Error of a topology that is wrong, or was asked for something that it does not have; the message names the node
    or link.
    """


def node_of(graph: nx.DiGraph, node: str) -> dict[str, Any]:
    """Return the node's attributes. Raise TopologyError where it does not exist."""
    try:
        return graph.nodes[node]
    except KeyError:
        raise TopologyError(f"node {node!r} does not exist in topology {graph.name or '(unnamed)'}") from None


def of_kind(graph: nx.DiGraph, node: str, kind: str) -> dict[str, Any]:
    """Return the attributes of a node of this kind, "switch" or "server". Raise TopologyError where it is none."""
    attributes = node_of(graph, node)
    if attributes["kind"] != kind:
        raise TopologyError(f"node {node!r} is a {attributes['kind']}, not a {kind}")
    return attributes


def link_of(graph: nx.DiGraph, u: str, v: str) -> dict[str, Any]:
    """Return the attributes of the link from u to v. Raise TopologyError where it does not exist."""
    node_of(graph, u), node_of(graph, v)
    try:
        return graph.edges[u, v]
    except KeyError:
        raise TopologyError(f"link {u} -> {v} does not exist") from None


def _number(value: Any, what: str, unlimited: bool) -> float:
    """Return a finite number >= 0, or infinity for null and infinity where `unlimited`. Raise TopologyError, whose
    message begins with `what`, for anything else.
    """
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


def checked_node(node: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's attributes with numbers and addresses checked. Raise TopologyError where one is wrong."""
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
    if not isinstance(attributes.get("cable", False), bool) or (attributes.get("cable") and kind != "switch"):
        raise TopologyError(f"node {node!r}: cable must be true or false, of a switch, got {attributes['cable']!r}")
    if "host" in attributes and (kind != "switch" or not isinstance(attributes["host"], str)):
        raise TopologyError(f"node {node!r}: host is the server that a switch runs on, got {attributes['host']!r}")
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


def check_cables(cables: Collection[str], neighbours: Mapping[str, Sequence[str]]) -> None:
    """Check that each cable has two ends, which are no cables themselves; raise TopologyError otherwise."""
    for cable in cables:
        ends = neighbours[cable]
        if len(ends) != 2 or not set(ends).isdisjoint(cables):
            raise TopologyError(
                f"node {cable!r} is a cable: it must have links with two switches or servers, it has links with: "
                f"{', '.join(ends) or 'nothing'}"
            )


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


def checked_link(u: str, v: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the link from u to v with numbers checked. Raise TopologyError where one is wrong."""
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


class Parsed(NamedTuple):
    """Parts of a parsed topology; its links are directed."""

    nodes: dict[str, Mapping[str, Any]]
    links: list[tuple[str, str, Mapping[str, Any]]]
    name: str
    results_on_links: bool


def read(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file. Raise TopologyError where there is none."""
    try:
        content = read_json(path)
    except OSError as error:
        raise TopologyError(f"cannot read topology file {path}: {error.strerror}") from None
    except ValueError as error:
        raise TopologyError(f"cannot read topology file {path}: {error}") from None
    if not isinstance(content, Mapping):
        raise TopologyError(f'topology file {path} must hold an object with "nodes" and "edges"')
    return content


def parse(source: Mapping[str, Any], name: str) -> Parsed:
    """Return the parts of the topology in a JSON object; `name` is the topology's where the object gives none. Raise
    TopologyError where something is wrong.
    """
    node_list = source.get("nodes")
    edge_list = source.get("edges", source.get("links"))
    if not isinstance(node_list, list) or not isinstance(edge_list, list):
        raise TopologyError('a topology is node-link JSON: an object with the lists "nodes" and "edges" (or "links")')
    if "edges" in source and "links" in source:
        raise TopologyError('a topology has its links in "edges" or in "links" (older networkx), not in both')
    for key in source:
        if key in GRAPH_ATTRIBUTES:
            raise TopologyError(f'{key} belongs in the object "graph"')
    if unknown := unknown_name(source, TOP_LEVEL, (*TOP_LEVEL, *GRAPH_ATTRIBUTES)):
        raise TopologyError(unknown)
    if not node_list:
        raise TopologyError("the topology has no nodes")
    about = source.get("graph", {})
    if not isinstance(about, Mapping):
        raise TopologyError(f'"graph" must be an object, like {{"name": "rack 7"}}, got {about!r}')
    if unknown := unknown_name(about, GRAPH_ATTRIBUTES):
        raise TopologyError(f"graph: {unknown}")
    directed, _ = (_flag(source, key, default=False) for key in ("directed", "multigraph"))
    counted, given_name = _flag(about, "results_on_links", default=True), about.get("name", name)
    if not isinstance(given_name, str):
        raise TopologyError(f"graph: name must be a text, got {given_name!r}")
    return Parsed(_nodes(node_list), _links(edge_list, directed=directed), given_name, counted)


def _flag(given: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """Return a value that is true or false; raise TopologyError if it is something else (the text "false", say)."""
    value = given.get(key, default)
    if not isinstance(value, bool):
        raise TopologyError(f"{key} must be true or false, got {value!r}")
    return value


def _nodes(node_list: list[Any]) -> dict[str, Mapping[str, Any]]:
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
    return nodes


def _links(edge_list: list[Any], directed: bool) -> list[tuple[str, str, Mapping[str, Any]]]:
    links: list[tuple[str, str, Mapping[str, Any]]] = []
    for entry in edge_list:
        if not isinstance(entry, Mapping) or not all(isinstance(entry.get(e), str | int) for e in ("source", "target")):
            raise TopologyError(f'each link needs "source" and "target" (node ids), got {entry!r}')
        u, v = str(entry["source"]), str(entry["target"])
        attributes = {key: value for key, value in entry.items() if key not in ("source", "target", "key")}
        if unknown := unknown_name(attributes, LINK_ATTRIBUTES):
            raise TopologyError(f"link {u} -> {v}: {unknown}")
        links.append((u, v, attributes))
        if not directed:
            links.append((v, u, attributes))
    return links
