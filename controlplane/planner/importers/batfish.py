"""Layer-1 topologies of Batfish (`layer1_topology.json`): pairs of interfaces, without bandwidths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.planner.importers.build import Foreign, ForeignLink, entries, node_name, shown
from controlplane.planner.topology import TopologyError

USED = {"node1", "node2", "hostname", "interfaceName"}


def read(content: Mapping[str, Any]) -> Foreign:
    """Return the network in a JSON object. A cable may be listed in one or in both directions. Raise TopologyError if
    it is wrong.
    """
    found = Foreign("batfish layer-1 JSON", ignored=set(content) - {"edges"} | {"interface names"})
    for entry in entries(content["edges"], "edges"):
        (u, one), (v, other) = (_end(entry, key) for key in ("node1", "node2"))
        found.links.append(ForeignLink(u, v, ports=(one, other)))
        found.ignored |= {*entry, *entry["node1"], *entry["node2"]} - USED
    return found


def _end(entry: Mapping[str, Any], key: str) -> tuple[str, str]:
    end = entry.get(key)
    if not isinstance(end, Mapping):
        raise TopologyError(f"an edge's {key} must be an object with hostname and interfaceName, got {shown(end)}")
    return node_name(end.get("hostname"), f"{key}: hostname"), node_name(end.get("interfaceName"), "interfaceName")
