"""Topologies of containerlab (`*.clab.yml`): nodes with a kind, and links between their interfaces, without
bandwidths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.planner.importers.build import Foreign, ForeignLink, entries, listed, node_name, shown
from controlplane.planner.topology import TopologyError

MOST_BYTES = 1 << 20
"""Largest file in bytes: reading YAML takes seconds per MB."""
MOST_KEYS = 1000
"""Most keys that an object may have by merges (<<), which could otherwise grow without end."""
SERVER_KINDS = {"linux", "ext-container", "k8s-kind"}
USED = {"name", "topology", "nodes", "links", "groups", "defaults"}
OUTSIDE = {"host", "mgmt-net", "macvlan", "vxlan", "vxlan-stitch", "dummy"}
"""Ends and types of links that lead to the machine itself or outside of the topology."""


def read(content: bytes) -> Foreign:
    """Return the network in a file. Nodes of kind linux are servers. Raise TopologyError if it is wrong."""
    lab = _mapping(_yaml(content), "the file")
    if "topology" not in lab:
        raise TopologyError("it is YAML without `topology`, and so not of containerlab")
    topology = _mapping(lab["topology"], "topology")
    found = Foreign("containerlab YAML", ignored={"interface names"})
    found.ignored |= {str(key) for key in {*lab, *topology}} - USED
    nodes = _mapping(topology.get("nodes"), "topology.nodes")
    groups = _mapping(topology.get("groups"), "topology.groups")
    default = _mapping(topology.get("defaults"), "topology.defaults").get("kind")
    for given, own in nodes.items():
        node = node_name(given, "a node's name")
        own = _mapping(own, f"node {node}")
        group = _mapping(groups.get(str(own.get("group"))), f"group {own.get('group')}")
        found.nodes.append(node)
        if str(own.get("kind", group.get("kind", default))) in SERVER_KINDS:
            found.servers.add(node)
        found.ignored |= {str(key) for key in own} - {"kind", "group"}
    outside = 0
    for entry in entries(topology.get("links") or [], "topology.links"):
        found.ignored |= {str(key) for key in entry} - {"endpoints", "endpoint", "type"}
        if str(entry.get("type", "veth")) in OUTSIDE:
            outside += 1
            continue
        ends = entry.get("endpoints")
        if not isinstance(ends, list) or len(ends) != 2:
            raise TopologyError(f"a link's endpoints must be a list of two, got {shown(ends)}")
        (u, one), (v, other) = map(_end, ends)
        if {u, v} & (OUTSIDE - set(found.nodes)):
            outside += 1
            continue
        for end in (u, v):
            if end not in found.nodes:
                raise TopologyError(f"link {u}:{one} - {v}:{other}: node {end!r} does not exist")
        found.links.append(ForeignLink(u, v, ports=(one, other)))
    if found.servers:
        found.notes.append(f"servers, by their kind: {listed(sorted(found.servers))}; servers=NAMES names others")
    if outside:
        found.notes.append(f"left out: {outside} links to the machine itself or outside")
    return found


def _end(end: Any) -> tuple[str, str]:
    """Return node and interface of "leaf1:e1-1", or of an object with `node` and `interface`."""
    if isinstance(end, str):
        node, _, interface = end.partition(":")
    elif isinstance(end, Mapping):
        node, interface = node_name(end.get("node"), "an endpoint's node"), str(end.get("interface", ""))
    else:
        raise TopologyError(f"an endpoint must be a text like leaf1:e1-1, got {shown(end)}")
    return node_name(node, "an endpoint's node"), interface


def _mapping(value: Any, what: str) -> Mapping[Any, Any]:
    """Return an object, an empty one for nothing. Raise TopologyError, which begins with `what`, for anything else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TopologyError(f"{what} must be an object, got {shown(value)}")
    return value


def _yaml(content: bytes) -> Any:
    """Return the data in YAML, without running anything that it names. Raise TopologyError if it is none, gives a key
    twice, or grows by its merges.
    """
    import yaml  # imported here, as no other topology needs it

    class Loader(yaml.SafeLoader):
        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            for key, value in node.value:
                if key.tag != "tag:yaml.org,2002:merge":
                    continue
                merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for one in merged:
                    if isinstance(one, yaml.MappingNode):
                        self.flatten_mapping(one)
                if sum(len(one.value) for one in merged) > MOST_KEYS:
                    raise TopologyError(f"its merges (<<) make an object of more than {MOST_KEYS} keys")
            super().flatten_mapping(node)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
            if len(set(keys)) < len(keys):
                twice = next(key for i, key in enumerate(keys) if key in keys[:i])
                raise TopologyError(f"key {twice!r} is given twice in one object (line {node.start_mark.line + 1})")
            return super().construct_mapping(node, deep)

    if len(content) > MOST_BYTES:
        raise TopologyError(f"it has {len(content)} bytes; YAML is read up to {MOST_BYTES} bytes")
    try:
        return yaml.load(content, Loader)  # a SafeLoader
    except RecursionError:
        raise TopologyError("it is nested too deeply") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, TopologyError):
            raise
        hint = "a template, which containerlab renders first: " if b"{{" in content else ""
        raise TopologyError(f"it is no YAML: {hint}{' '.join(str(error).split())}") from None
