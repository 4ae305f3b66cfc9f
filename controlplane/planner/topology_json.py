"""Reads a topology from networkx node-link JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from controlplane.common.inputs import parse_json, unknown_name
from controlplane.planner.topology_checks import LINK_ATTRIBUTES, NODE_ATTRIBUTES, TopologyError


class Parsed(NamedTuple):
    """Parts of a parsed topology; its links are directed."""

    nodes: dict[str, Mapping[str, Any]]
    links: list[tuple[str, str, Mapping[str, Any]]]
    name: str
    results_on_links: bool


def read(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file. Raise TopologyError where there is none."""
    try:
        content = parse_json(path.read_text())
    except OSError as error:
        raise TopologyError(f"cannot read topology file {path}: {error.strerror}") from None
    except ValueError as error:
        raise TopologyError(f"topology file {path} is not JSON: {error}") from None
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
    if not node_list:
        raise TopologyError("the topology has no nodes")
    nodes = _nodes(node_list)
    links = _links(edge_list, directed=bool(source.get("directed", False)))
    graph = source.get("graph")
    about = graph if isinstance(graph, Mapping) else {}
    counted = about.get("results_on_links", True)
    if not isinstance(counted, bool):
        raise TopologyError(f"results_on_links must be true or false, got {counted!r}")
    given_name = about.get("name")
    return Parsed(nodes, links, given_name if isinstance(given_name, str) else name, counted)


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
