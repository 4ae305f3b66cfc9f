"""GraphML of the Internet Topology Zoo: its data set, and the drawings (of yEd) from which that is made."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from xml.etree import ElementTree

from controlplane.planner.importers.build import KM_PER_MS, UNITS, Foreign, ForeignLink, node_name, number
from controlplane.planner.topology import TopologyError

RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)bps\s*", re.IGNORECASE)
"""A link's label that is a bandwidth, such as "10 Gbps"."""
PREFIXES = {"": "bit/s", "K": "kbit/s", "M": "Mbit/s", "G": "Gbit/s", "T": "Tbit/s"}
NODE_DATA = {"label", "Latitude", "Longitude"}
LINK_DATA = {"LinkSpeedRaw", "LinkLabel", "label"}


class _Builder(ElementTree.TreeBuilder):
    """Builds elements, and refuses entities, which could expand without end or name other files."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise TopologyError("GraphML with a document type (<!DOCTYPE>) is not read; remove that line")


def read(content: bytes) -> Foreign:
    """Return the network in a file: bandwidths from LinkSpeedRaw (bit/s) or labels such as "10 Gbps", delays from
    coordinates. Raise TopologyError if it is wrong.
    """
    from controlplane.planner.wan_networks import kilometres  # imported here, as other topologies do without numpy

    parser = ElementTree.XMLParser(target=_Builder())
    try:
        parser.feed(content)
        root = parser.close()
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        if isinstance(error, TopologyError):
            raise
        raise TopologyError(f"it is no well-formed XML: {error}") from None
    graphs = list(_children(root, "graph"))
    if _tag(root) != "graphml" or len(graphs) != 1:
        raise TopologyError(f"it is XML, but no GraphML with one graph (its element is {_tag(root)[:40]!r})")
    graph = graphs[0]
    keys = {key.get("id", ""): key.get("attr.name", "") for key in _children(root, "key")}
    drawn = any(name.startswith("yfiles") for key in _children(root, "key") for name in key.attrib)
    # yEd writes "directed" for links that are drawn without arrows.
    found = Foreign("GraphML", directed=graph.get("edgedefault") == "directed" and not drawn, unit="Mbit/s")
    found.ignored |= {_tag(child) for child in graph} - {"node", "edge", "data", "desc"}
    names, places = _nodes(found, graph, keys)
    for edge in _children(graph, "edge"):
        if edge.get("directed", "false") != "false" and not found.directed:
            raise TopologyError("some of its edges are directed, and others are not; make it a directed graph")
        own = _data(edge, keys)
        ends = [edge.get("source", ""), edge.get("target", "")]
        for end in ends:
            if end not in names:
                raise TopologyError(f"an edge ends at node {end!r}, which does not exist")
        u, v = (names[end] for end in ends)
        delay = kilometres(places[u], places[v]) / KM_PER_MS if u in places and v in places else 0.0
        found.links.append(ForeignLink(u, v, _rate(own, f"link {u} - {v}"), round(delay, 6)))
        found.ignored |= set(own) - LINK_DATA
    return found


def _nodes(
    found: Foreign, graph: ElementTree.Element, keys: dict[str, str]
) -> tuple[dict[str, str], dict[str, tuple[float, float]]]:
    """Fill in the nodes; return their names by their ids, and their latitudes and longitudes by name. A node is named
    after its label, followed by its id if several have that label.
    """
    entries = [(node, _data(node, keys)) for node in _children(graph, "node")]
    labels = [str(own.get("label") or _drawn_label(node) or node.get("id", "")) for node, own in entries]
    count = Counter(labels)
    names: dict[str, str] = {}
    places: dict[str, tuple[float, float]] = {}
    for (node, own), label in zip(entries, labels, strict=True):
        identifier = node_name(node.get("id"), "a node's id")
        if identifier in names:
            raise TopologyError(f"node {identifier!r} is given twice")
        name = names[identifier] = label if count[label] == 1 else f"{label}-{identifier}"
        found.nodes.append(name)
        found.ignored |= set(own) - NODE_DATA
        if own.get("Latitude") and own.get("Longitude"):
            places[name] = _degrees(own["Latitude"], name), _degrees(own["Longitude"], name)
    if len(set(found.nodes)) < len(found.nodes):
        raise TopologyError("the labels of two nodes cannot be told apart; give each its own")
    return names, places


def _degrees(text: str, node: str) -> float:
    number(text.removeprefix("-"), f"node {node}: Latitude and Longitude")
    return float(text)


def _rate(own: dict[str, str], what: str) -> float | None:
    """Return a link's bandwidth in Mbit/s, or None if its data have none."""
    if own.get("LinkSpeedRaw"):
        return number(own["LinkSpeedRaw"], f"{what}: LinkSpeedRaw") * UNITS["bit/s"]
    label = RATE.fullmatch(own.get("LinkLabel") or own.get("label") or "")
    return float(label[1]) * UNITS[PREFIXES[label[2].upper()]] if label else None


def _data(element: ElementTree.Element, keys: dict[str, str]) -> dict[str, str]:
    """Return the data of a node or edge by name, without drawings, whose keys have no name. Raise TopologyError if one
    is given twice: only one of the values could be used.
    """
    found: dict[str, str] = {}
    for data in _children(element, "data"):
        name = keys.get(data.get("key", ""), "")
        if name in found:
            raise TopologyError(f"{_tag(element)} {element.get('id', '')}: {name} is given twice")
        if name:
            found[name] = (data.text or "").strip()
    return found


def _drawn_label(node: ElementTree.Element) -> str:
    """Return the label that yEd draws in a node; "" if there is none."""
    return next(((one.text or "").strip() for one in node.iter() if _tag(one) == "NodeLabel"), "")


def _children(element: ElementTree.Element, tag: str) -> Iterator[ElementTree.Element]:
    return (child for child in element if _tag(child) == tag)


def _tag(element: ElementTree.Element) -> str:
    """Return an element's name without its namespace."""
    return element.tag.rpartition("}")[2]
