"""Node-link JSON of networkx: of teal, whose links have a `capacity`, and of topohub, whose links have a length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.planner.importers.build import KM_PER_MS, Foreign, ForeignLink, entries, node_name, number, shown
from controlplane.planner.topology import TopologyError

TOP_LEVEL = {"directed", "multigraph", "graph", "nodes", "links", "edges", "name"}


def read(content: Mapping[str, Any]) -> Foreign:
    """Return the network in a JSON object: links may have `capacity`, and `dist`, their length in km. Raise
    TopologyError if it is wrong.
    """
    if "links" in content and "edges" in content:
        raise TopologyError('node-link JSON has its links in "links" or in "edges", not in both')
    found = Foreign("node-link JSON", directed=_flag(content, "directed"))
    several = _flag(content, "multigraph")
    about = content.get("graph", {})
    if not isinstance(about, Mapping):
        raise TopologyError(f"graph must be an object, got {shown(about)}")
    found.ignored |= (set(content) | set(about)) - TOP_LEVEL
    for entry in entries(content.get("nodes"), "nodes"):
        found.nodes.append(node_name(entry.get("id"), "a node's id"))
        found.ignored |= set(entry) - {"id"}
    if len(set(found.nodes)) < len(found.nodes):
        twice = next(node for i, node in enumerate(found.nodes) if node in found.nodes[:i])
        raise TopologyError(f"node {twice!r} is given twice")
    known = set(found.nodes)
    for entry in entries(content.get("links", content.get("edges")), "links"):
        u, v = (node_name(entry.get(end), f"a link's {end}") for end in ("source", "target"))
        for end in (u, v):
            if end not in known:
                raise TopologyError(f"link {u} - {v}: node {end!r} does not exist")
        rate = number(entry["capacity"], f"link {u} - {v}: capacity") if "capacity" in entry else None
        length = number(entry.get("dist", 0.0), f"link {u} - {v}: dist")
        key = str(entry.get("key", "")) if several else ""
        found.links.append(ForeignLink(u, v, rate, round(length / KM_PER_MS, 6), (key, key)))
        found.ignored |= set(entry) - {"source", "target", "key", "capacity", "dist"}
    return found


def _flag(content: Mapping[str, Any], key: str) -> bool:
    value = content.get(key, False)
    if not isinstance(value, bool):
        raise TopologyError(f"{key} must be true or false, got {value!r}")
    return value
