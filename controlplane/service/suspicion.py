"""Suspicion: which switch, link or host changes packets, by the packets that checks have refused and the ways that
these took.

Packets that arrive changed, and sums that come out wrong, are counted by the label that they had
(ps_server/native/verify.c) and, where they are results, by the worker that refused them. Something that changes what it
carries is on the way of all refused packets, and on no way without refused packets. A switch whose memory is broken is
where all of the wrong sums were added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from controlplane.planner.entries import Aggregate
from controlplane.planner.plan import Plan, Tree
from controlplane.planner.rules import Deployment
from controlplane.planner.topology import Topology

EXPLAINED = 0.9
"""Part of the failures on whose way a culprit must be; not all, since some changed packets name other flows than their
own."""
CLEAN = 0.1
"""Part of the failures expected of a flow below which the flow counts as clean."""
REFUTED = 5.0
"""Failures expected of clean flows from which on a suspect is cleared: if it had caused the others, there would be none
of these in one of 150 cases (e^-5)."""

Link = tuple[str, str]
Key = tuple[int, int, str]
"""A flow: its tree; its label (0 for results); and the worker of a contribution or a result, "" for sums of several
workers."""


@dataclass(frozen=True)
class Way:
    """Way of a flow's packets.

    Attributes:
        carried: all nodes and links (from, to) that the packets, or what is added to them, cross.
        added: switches that add them.
        share: the part of the model that the tree carries.
        alone: these are contributions that travel alone after failures; they are compared only with those of the same
            tree.
    """

    carried: frozenset[str | Link]
    added: frozenset[str]
    share: float
    alone: bool = False


@dataclass(frozen=True)
class Group:
    """Failures while one plan of one job ran: its ways, and how many packets of each have failed."""

    ways: Mapping[Key, Way]
    failures: Mapping[Key, int]


@dataclass(frozen=True)
class Suspect:
    """A switch, a link or a host that may have changed packets. With the kind "carried" it changes what it sends or
    receives, with "added" it adds wrongly."""

    what: str | Link
    kind: str

    def on(self, way: Way) -> bool:
        return self.what in (way.added if self.kind == "added" else way.carried)


def ways_of(plan: Plan, deployment: Deployment) -> dict[Key, Way]:
    """Return all ways of a plan, up to its roots and down to its workers."""
    sums = {
        (switch, entry.label): entry.action.next_label
        for switch, rules in deployment.rulesets.items()
        for entry in rules.labels
        if isinstance(entry.action, Aggregate)
    }
    found: dict[Key, Way] = {}
    for index, tree in enumerate(plan.trees):
        labels = {
            node: part.up_label
            for node, config in deployment.agents.items()
            for part in config.worker_trees
            if part.tree == index
        }
        found.update(_upwards(index, tree, labels, sums))
        parent = {child: above for above, child in tree.return_edges}
        for worker in labels:
            way = [worker]
            while way[-1] != tree.root:
                way.append(parent[way[-1]])
            found[index, 0, worker] = Way(_crossed(way[::-1]), frozenset(), tree.share)
    return found


def _crossed(route: Sequence[str]) -> frozenset[str | Link]:
    return frozenset([*route, *pairwise(route)])


def _upwards(
    index: int, tree: Tree, labels: Mapping[str, int], sums: Mapping[tuple[str, int], int]
) -> Iterable[tuple[Key, Way]]:
    """Yield the flows that end at the root, and each worker's contributions under their labels, which travel alone
    after failures."""
    above = {relay.node: (relay.next, relay.route) for relay in tree.relays}
    below: dict[int, list[tuple[str, frozenset[str | Link], frozenset[str]]]] = {}  # by label: worker, its way, points
    for a in tree.assignments:
        point, label, route, points = a.point, labels[a.worker], list(a.route), set[str]()
        while point != tree.root:
            points.add(point)
            label = sums[point, label]
            point, onwards = above[point]
            route += onwards[1:]
        below.setdefault(label, []).append((a.worker, _crossed(route), frozenset(points)))
    for label, members in below.items():
        carried = frozenset[str | Link]().union(*(way for _, way, _ in members))
        added = frozenset[str]().union(*(points for _, _, points in members))
        if len(members) == 1:
            yield (index, label, members[0][0]), Way(carried, added, tree.share)
            continue
        yield (index, label, ""), Way(carried, added, tree.share)
        for worker, way, _ in members:
            yield (index, label, worker), Way(way, frozenset(), tree.share, alone=True)


def suspects(groups: Sequence[Group]) -> list[Suspect]:
    """Return the suspects that may have caused all failures, and that no flow without failures contradicts."""
    failed = [(group.ways[key], count) for group in groups for key, count in group.failures.items()]
    total = sum(count for _, count in failed)
    every = {Suspect(what, "carried") for way, _ in failed for what in way.carried}
    every |= {Suspect(switch, "added") for way, _ in failed for switch in way.added}
    return sorted(
        (
            one
            for one in every
            if sum(count for way, count in failed if one.on(way)) >= EXPLAINED * total
            and sum(_contradicted(one, group) for group in groups) < REFUTED
        ),
        key=lambda one: (str(one.what), one.kind),
    )


def _contradicted(one: Suspect, group: Group) -> float:
    """Return how many failures there should have been on ways of which hardly any packets failed, if the suspect had
    caused all failures. Packets that travel all the time are compared with each other, and so are those that travel
    alone after a tree's failures."""
    alike: dict[int | None, list[tuple[float, int]]] = {}
    for key, way in group.ways.items():
        if one.on(way):
            alike.setdefault(key[0] if way.alone else None, []).append((way.share, group.failures.get(key, 0)))
    expected = 0.0
    for on in alike.values():
        share = sum(share for share, count in on if count)
        rate = sum(count for _, count in on) / share if share else 0.0
        expected += sum(rate * share for share, count in on if count < CLEAN * rate * share)
    return expected


def points_alone(groups: Sequence[Group], found: Iterable[Suspect]) -> list[Suspect]:
    """Return those suspects that are adding switches, where only sums of several workers failed: what single packets
    crossed after such a switch carried them unchanged. Return none where other packets failed, too."""
    counts = [(key, count) for group in groups for key, count in group.failures.items()]
    sums = sum(count for (_, label, worker), count in counts if label and not worker)
    if sums < EXPLAINED * sum(count for _, count in counts):
        return []
    return [one for one in found if one.kind == "added"]


def named(found: Iterable[Suspect], topology: Topology) -> str:
    """Return the one switch, link ("V1-V2") or server that each of the suspects is or is connected to; "" where they
    are several. For a server's link, the server is returned."""
    whats = {one.what for one in found}
    links = {tuple(sorted(what)) for what in whats if isinstance(what, tuple)}
    nodes = {what for what in whats if isinstance(what, str)}
    if not nodes and len(links) == 1:
        (ends,) = links
        servers = [end for end in ends if topology.kind(end) != "switch"]
        return servers[0] if servers else "-".join(ends)
    if len(nodes) != 1:
        return ""
    (node,) = nodes
    return node if all(node in ends for ends in links) else ""


def in_words(found: Iterable[Suspect]) -> str:
    """Return the names of all suspects, the nodes first."""
    names = sorted({one.what if isinstance(one.what, str) else " to ".join(one.what) for one in found})
    return ", ".join(sorted(names, key=lambda name: " to " in name))
