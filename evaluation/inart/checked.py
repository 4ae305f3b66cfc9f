"""Checks a plan against its network with code of its own: nothing of the planner's evaluation is used, only the JSON of
the topology and of the plan, as docs/planner.md describes them. Every capacity, and every limit of switches and of the
job, has to hold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

ROUNDING = 1e-6
SLOTS_EACH = 16  # least slots that a tree takes of a switch that adds in it

Json = Mapping[str, Any]


def faults(topology: Json, plan: Json) -> list[str]:
    """Return what is wrong with a plan at its own rate, in words; empty where it is feasible."""
    nodes = {str(node["id"]): node for node in topology["nodes"]}
    links = _links(topology)
    workers, roots = list(plan["job"]["workers"]), set(plan["job"]["parameter_servers"])
    loads: dict[tuple[str, ...], float] = {}
    trees_at: Counter[str] = Counter()
    found: list[str] = []
    total = math.fsum(tree["share"] for tree in plan["trees"])
    if abs(total - 1) > ROUNDING:
        found.append(f"shares sum to {total}")
    counted = topology.get("graph", {}).get("results_on_links", True)
    for number, tree in enumerate(plan["trees"]):
        if tree["root"] not in roots:
            found.append(f"tree {number}: {tree['root']} is no parameter server of the job")
        found += [f"tree {number}: {fault}" for fault in _structure(nodes, links, tree, workers)]
        loaded = Counter(_loaded(tree, counted))
        for what, count in loaded.items():
            loads[what] = loads.get(what, 0.0) + count * plan["rate_mbps"] * tree["share"]
        trees_at.update(node for kind, node, *_ in loaded if kind == "point" and nodes[node]["kind"] == "switch")
    for what, load in loads.items():
        most = _capacity(nodes, links, what, workers)
        if load > most * (1 + ROUNDING) + 1e-12:
            found.append(f"{' '.join(what)}: {load:.6g} of {most:.6g} Mbit/s")
    for node, count in trees_at.items():
        if count * SLOTS_EACH > nodes[node].get("slots", math.inf):
            found.append(f"{node}: {count} trees in {nodes[node]['slots']} slots")
    return found + list(_over_limits(nodes, plan))


def _over_limits(nodes: Json, plan: Json) -> Iterator[str]:
    """Yield the limits that a plan exceeds: the job's trees, and the entries, groups and flows of a sum at switches."""
    trees, most = plan["trees"], plan["job"].get("max_trees") or math.inf
    if len(trees) > most:
        yield f"{len(trees)} trees, the job may have {most}"
    entries: Counter[str] = Counter()
    groups: dict[str, set[frozenset[str]]] = {}
    for number, tree in enumerate(trees):
        entries.update(_entries(tree))
        children: dict[str, set[str]] = {}
        for parent, child in tree["return_edges"]:
            children.setdefault(parent, set()).add(child)
        if len(children.get(tree["root"], ())) > 1:
            yield f"tree {number}: {tree['root']} sends results over {len(children[tree['root']])} links"
        for node, copied in children.items():
            if len(copied) > 1:
                groups.setdefault(node, set()).add(frozenset(copied))
        ends = Counter([each["point"] for each in tree["assignments"]] + [each["next"] for each in tree["relays"]])
        for node, count in ends.items():
            if count > nodes[node].get("fan_in", math.inf):
                yield f"tree {number}: {count} flows are added at {node}"
    for node, count in entries.items():
        if count > nodes[node].get("label_entries", math.inf):
            yield f"{node}: {count} entries of {nodes[node]['label_entries']}"
    for node, found in groups.items():
        if len(found) > nodes[node].get("multicast_groups", math.inf):
            yield f"{node}: {len(found)} groups of {nodes[node]['multicast_groups']}"


def _entries(tree: Json) -> Iterator[str]:
    """Yield each switch as often as a tree takes an entry of its label table: for every flow that passes it or is added
    at it, for the results, for the answers to each worker behind it, and for the incomplete sums that pass it on their
    way past further points to the root.
    """
    onwards = {relay["node"]: relay for relay in tree["relays"]}
    for each in (*tree["assignments"], *tree["relays"]):
        yield from (node for node in each["route"][1:] if node != tree["root"])
    for start, relay in onwards.items():
        if relay["next"] == tree["root"]:
            continue  # the same entries lead incomplete sums and complete ones
        nodes, at = [start], start
        while at != tree["root"]:
            nodes += onwards[at]["route"][1:]
            at = onwards[at]["next"]
        crossed: list[tuple[str, str]] = []
        for link in pairwise(nodes):
            if link in crossed:
                del crossed[crossed.index(link) :]  # the label leads on from each link in one way
            crossed.append(link)
        yield from (node for _, node in crossed[:-1])
    above: dict[str, str] = {child: parent for parent, child in tree["return_edges"]}
    yield from {str(parent) for parent in above.values() if parent != tree["root"]}
    for each in tree["assignments"]:
        node = above.get(each["worker"], str(tree["root"]))
        while node != tree["root"]:
            yield node
            node = above.get(node, str(tree["root"]))


def _links(topology: Json) -> dict[tuple[str, str], float]:
    """Return the unused Mbit/s of every directed link."""
    found: dict[tuple[str, str], float] = {}
    for edge in topology.get("edges", topology.get("links", ())):
        u, v = str(edge["source"]), str(edge["target"])
        left = max(0.0, edge["bandwidth_mbps"] - edge.get("used_bandwidth_mbps", 0.0))
        found[u, v] = left
        if not topology.get("directed", False):
            found[v, u] = left
    return found


def _structure(nodes: Json, links: Mapping[tuple[str, str], float], tree: Json, workers: list[str]) -> list[str]:
    """Return faults of a tree's structure: every worker has to be added once, every route to end at the root, and every
    result to reach every worker.
    """
    found = []
    onwards = {relay["node"]: relay["next"] for relay in tree["relays"]}
    if sorted(each["worker"] for each in tree["assignments"]) != sorted(workers):
        found.append("not every worker is in it once")
    for start in [each["point"] for each in tree["assignments"]] + list(onwards):
        node, steps = start, 0
        while node != tree["root"] and node in onwards and steps <= len(onwards):
            node, steps = onwards[node], steps + 1
        if node != tree["root"]:
            found.append(f"what {start} adds does not come to the root")
    flows = [(each["worker"], each["point"], each["route"]) for each in tree["assignments"]]
    flows += [(relay["node"], relay["next"], relay["route"]) for relay in tree["relays"]]
    for source, target, route in flows:
        if route[0] != source or route[-1] != target or len(set(route)) != len(route):
            found.append(f"the way from {source} to {target} is {route}")
        found += [f"there is no link {u}->{v}" for u, v in pairwise(route) if (u, v) not in links]
        through = [node for node in route[1:-1] if nodes[node]["kind"] != "switch"]
        found += [f"{source}'s way leads over server {node}" for node in through]
    reached, parents = {tree["root"]}, dict[str, str]()
    for parent, child in tree["return_edges"]:
        if parent not in reached or child in parents or (parent, child) not in links:
            found.append(f"the results' link {parent}->{child} is not of a tree of links from the root")
        parents[child] = parent
        reached.add(child)
    found += [f"no result comes to {worker}" for worker in workers if worker not in reached]
    return found


def _loaded(tree: Json, counted: bool) -> Iterator[tuple[str, ...]]:
    """Yield everything that a tree loads with its rate, as often as it does. With `counted`, results load links."""
    ends = [(each["point"], each["route"]) for each in tree["assignments"]]
    ends += [(relay["next"], relay["route"]) for relay in tree["relays"]]
    for end, route in ends:
        yield "root" if end == tree["root"] else "point", end
        for u, v in pairwise(route):
            yield "link", u, v
    for parent, child in tree["return_edges"] if counted else ():
        yield "link", parent, child


def _capacity(nodes: Json, links: Mapping[tuple[str, str], float], what: tuple[str, ...], workers: list[str]) -> float:
    """Return the unused Mbit/s of a link, of a node that adds, or of a root that receives. A root that is a worker,
    too, takes its own gradients over no link: how much comes over its link is the link's load.
    """
    kind, *where = what
    if kind == "link":
        return links.get((where[0], where[1]), 0.0)
    node = nodes[where[0]]
    if kind == "point":
        unlimited = math.inf if node["kind"] == "switch" else 0.0
        return max(0.0, node.get("aggregation_mbps", unlimited) - node.get("used_aggregation_mbps", 0.0))
    own = max(0.0, node.get("ingress_mbps", math.inf) - node.get("used_ingress_mbps", 0.0))
    if where[0] in workers:
        return own
    return min(own, sum(rate for (_, v), rate in links.items() if v == where[0]))
