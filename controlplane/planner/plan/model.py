"""The one intermediate representation: a plan is a set of weighted aggregation trees (docs/planner.md).

A plan may instead have multicasts: workers that send their whole models to each other, where nothing is added on the
way (docs/wan.md). Plans are immutable and comparable, and JSON holds all of them. A route is the tuple of nodes from
its first to its last, both included.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from controlplane.common.inputs import read_json
from controlplane.common.numbers import short
from controlplane.planner.job import Job
from controlplane.planner.plan.assignments import Assignment, Assignments
from controlplane.planner.topology import Topology

SHARE_TOLERANCE = 1e-6
SHOWN_TREES, SHOWN_POINTS = 40, 16
"""Most trees, and most aggregation points of one tree, that a printed plan lists: about a screen."""


class PlanError(ValueError):
    """Error of a plan that is not well formed or does not fit its topology; the message names tree and node."""


class Relay(NamedTuple):
    """The way of the partial sum of the aggregation point `node` to `next`, which is another aggregation point or the
    root.
    """

    node: str
    next: str
    route: tuple[str, ...]


class Flow(NamedTuple):
    """A flow that climbs a tree over one route: a worker's gradients, or an aggregation point's partial sum. It is
    added at `end`.
    """

    source: str
    end: str
    route: tuple[str, ...]


@dataclass(frozen=True)
class Tree:
    """An aggregation tree over all workers, which carries the fraction `share` of the model.

    Attributes:
        root: The parameter server (or overlay node) that has the sum in the end.
        share: The fraction of the model that the tree carries.
        assignments: By worker, where its gradients are added and the route there; may be given as any sequence of
            Assignment.
        relays: By aggregation point, where its partial sum goes.
        return_edges: The links that results take, as (parent, child) from the root down to every worker other than the
            root.
    """

    root: str
    share: float
    assignments: Assignments
    relays: tuple[Relay, ...]
    return_edges: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "assignments", Assignments.of(self.assignments))

    @property
    def first_step(self) -> str:
        """The node to which the root sends results; "" where it sends them to nobody."""
        return next((child for above, child in self.return_edges if above == self.root), "")

    @cached_property
    def points(self) -> tuple[str, ...]:
        """The nodes other than the root that add, in the order of the relays."""
        return tuple(relay.node for relay in self.relays)

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """The flows towards the root: first the workers', then those of partial sums."""
        return tuple(
            [Flow(a.worker, a.point, a.route) for a in self.assignments]
            + [Flow(r.node, r.next, r.route) for r in self.relays]
        )

    def ends(self) -> Counter[str]:
        """Return the number of flows that end at each aggregation point and at the root."""
        found = self.assignments.ends()
        found.update([r.next for r in self.relays])
        return found

    def inner_crossed(self) -> Counter[tuple[str, str]]:
        """Return the number of flows over each link on the way up, without those of workers over their own links."""
        found = self.assignments.inner_links()
        found.update(chain.from_iterable([pairwise(r.route) for r in self.relays]))
        return found

    def crossed(self) -> Counter[tuple[str, str]]:
        """Return the number of flows over each link on the way up."""
        found = self.inner_crossed()
        first = self.assignments.first_nodes()
        found.update([pair for pair in zip(self.assignments.starts, first, strict=True) if pair[0] != pair[1]])
        return found

    def way(self, point: str) -> tuple[str, ...]:
        """Return the nodes from an aggregation point along the relays to the root. Consecutive routes may cross a link
        twice; the part between is then left out, so that a label leads on from each link in one way.
        """
        relays = {relay.node: relay for relay in self.relays}
        nodes = [point]
        at = point
        while at != self.root:
            nodes += relays[at].route[1:]
            at = relays[at].next
        links: list[tuple[str, str]] = []
        for link in pairwise(nodes):
            if link in links:
                del links[links.index(link) + 1 :]
            else:
                links.append(link)
        return (point, *(node for _, node in links))

    def to_json(self) -> dict[str, Any]:
        return {
            "root": self.root,
            "share": self.share,
            "assignments": [{"worker": a.worker, "point": a.point, "route": list(a.route)} for a in self.assignments],
            "relays": [{"node": r.node, "next": r.next, "route": list(r.route)} for r in self.relays],
            "return_edges": [list(edge) for edge in self.return_edges],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tree:
        return cls(
            str(data["root"]),
            float(data["share"]),
            Assignments.of(
                [Assignment(_name(a["worker"]), _name(a["point"]), _route(a["route"])) for a in data["assignments"]]
            ),
            tuple(Relay(_name(r["node"]), _name(r["next"]), _route(r["route"])) for r in data["relays"]),
            tuple((_name(u), _name(v)) for u, v in data["return_edges"]),
        )


@dataclass(frozen=True)
class Multicast:
    """A multicast in which one worker sends its whole model to some others; each receiver mixes the models that it
    gets.

    Attributes:
        layer: "L3" where the network copies (the routes form a tree, each link of which carries the model once), "L7"
            where the sender sends to every receiver on its own.
        routes: One route from the sender to each receiver.
    """

    sender: str
    layer: Literal["L3", "L7"]
    routes: tuple[tuple[str, ...], ...]

    @property
    def receivers(self) -> tuple[str, ...]:
        return tuple(route[-1] for route in self.routes)

    @cached_property
    def links(self) -> tuple[tuple[str, str], ...]:
        """The links that carry the model; in L7 a link is there as often as it carries it."""
        pairs = [pair for route in self.routes for pair in pairwise(route)]
        return tuple(dict.fromkeys(pairs)) if self.layer == "L3" else tuple(pairs)

    def to_json(self) -> dict[str, Any]:
        return {
            "sender": self.sender,
            "layer": self.layer,
            "receivers": list(self.receivers),
            "routes": [list(route) for route in self.routes],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Multicast:
        return cls(str(data["sender"]), data["layer"], tuple(map(_route, data["routes"])))


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not the name of a node")
    return value


def _route(value: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(_name, value))


@dataclass(frozen=True)
class Plan:
    """A plan of a job: a rate, and weighted aggregation trees or multicasts (never both).

    Attributes:
        rate_mbps: Sending rate f of every worker over all trees, in Mbit/s on the wire (only the evaluator computes
            it). Tree i runs at rate_mbps * trees[i].share; each receiver of a multicast gets the model at rate_mbps.
        version: Orders the plans of one job.
        proven_mbps: No plan of the strategy's kind is faster, where the strategy proves that; else None.
        detours: Further routes between two points that exchange sums, fastest first, for chunks whose direct route is
            busy; the rate does not count them.
        gather_speed: All-gathers may go at so many times rate_mbps where no worker's own chunks come back to it
            (controlplane/planner/gathers.py).
        gathers_beside: Whether links and parameter servers carry an all-gather and a reduce-scatter at once.
    """

    job: Job
    strategy: str
    rate_mbps: float
    trees: tuple[Tree, ...]
    version: int = 1
    seed: int | None = None
    multicasts: tuple[Multicast, ...] = ()
    proven_mbps: float | None = None
    detours: tuple[tuple[str, ...], ...] = ()
    gather_speed: float = 1.0
    gathers_beside: bool = False

    @cached_property
    def split(self) -> dict[str, float]:
        """The share of the model by parameter server, which the InArt paper calls x_s; the shares sum to 1."""
        shares = dict.fromkeys(self.job.parameter_servers, 0.0)
        for tree in self.trees:
            shares[tree.root] = shares.get(tree.root, 0.0) + tree.share
        return shares

    def tree_rate_mbps(self, index: int) -> float:
        """Return the Mbit/s on the wire that each worker sends into this tree."""
        return self.rate_mbps * self.trees[index].share

    def with_version(self, version: int) -> Plan:
        """Return the same plan with another version number."""
        return replace(self, version=version)

    def check(self, topology: Topology) -> None:
        """Check the plan's structure against the topology (capacities are checked by the evaluator); raise PlanError or
        JobError where it is violated.

        Every worker adds exactly once per tree, all flows reach the root, routes and return edges exist, there are no
        loops, and the shares sum to 1.
        """
        self.job.check(topology)
        if self.multicasts:
            if self.trees:
                raise PlanError("the plan has aggregation trees and multicasts, it can only have one of them")
            _check_multicasts(self.multicasts, self.job, topology)
            return
        if not self.trees:
            raise PlanError("the plan has no trees")
        total = sum(tree.share for tree in self.trees)
        if abs(total - 1.0) > SHARE_TOLERANCE:
            raise PlanError(f"the trees' shares sum to {total:.9f}, not to 1")
        known = _Known(set(), set(), set())
        for index, tree in enumerate(self.trees):
            _check_tree(f"tree {index} (root {tree.root})", tree, self.job, topology, known)
        good = known.behind
        for route in self.detours:
            _check_route(f"detour {' '.join(route)}", route, route[0], route[-1], topology, good=good)

    def to_json(self) -> dict[str, Any]:
        return {
            "job": self.job.to_json(),
            "strategy": self.strategy,
            "rate_mbps": self.rate_mbps,
            "version": self.version,
            "seed": self.seed,
            "trees": [tree.to_json() for tree in self.trees],
            **({"multicasts": [each.to_json() for each in self.multicasts]} if self.multicasts else {}),
            **({} if self.proven_mbps is None else {"proven_mbps": self.proven_mbps}),
            **({"detours": [list(route) for route in self.detours]} if self.detours else {}),
            **({} if self.gather_speed == 1 else {"gather_speed": self.gather_speed}),
            **({"gathers_beside": True} if self.gathers_beside else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_json` wrote. Raise PlanError or JobError, naming the field, where one is missing or
        wrong.
        """
        if not isinstance(data, Mapping):
            raise PlanError("a plan is an object with a job, a strategy and trees")
        try:
            plan = cls(
                Job.from_json(data["job"]),
                str(data["strategy"]),
                float(data["rate_mbps"]),
                tuple(Tree.from_json(tree) for tree in data["trees"]),
                int(data.get("version", 1)),
                data.get("seed"),
                tuple(Multicast.from_json(each) for each in data.get("multicasts", ())),
                None if data.get("proven_mbps") is None else float(data["proven_mbps"]),
                tuple(tuple(str(node) for node in route) for route in data.get("detours", ())),
                float(data.get("gather_speed", 1.0)),
                bool(data.get("gathers_beside", False)),
            )
            if not (math.isfinite(plan.gather_speed) and plan.gather_speed >= 1):
                raise PlanError(f"plan: gather_speed must be a number of at least 1, got {plan.gather_speed}")
            for what, value in (("rate_mbps", plan.rate_mbps), *(("share", tree.share) for tree in plan.trees)):
                if not (math.isfinite(value) and value >= 0):
                    raise PlanError(f"plan: {what} must be a number of at least 0, got {value}")
            return plan
        except KeyError as error:
            raise PlanError(f"plan: field {error} is missing") from None
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            if isinstance(error, PlanError) or type(error).__name__ == "JobError":
                raise
            raise PlanError(f"plan: a field is not of its type: {error}") from None

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Return the plan in a file of `to_json`'s JSON. Raise PlanError, naming the file or the field, where it is
        none.
        """
        try:
            content = read_json(Path(path))
        except OSError as error:
            raise PlanError(f"cannot read plan file {path}: {error.strerror}") from None
        except ValueError as error:  # no text, or no JSON
            raise PlanError(f"cannot read plan file {path}: {error}") from None
        try:
            return cls.from_json(content)
        except ValueError as error:
            raise type(error)(f"plan file {path}: {error}") from None

    def __str__(self) -> str:
        lines = [
            f"plan of {self.strategy} for job {self.job.name}: {short(self.rate_mbps)} Mbit/s, "
            f"{f'{len(self.multicasts)} multicasts' if self.multicasts else f'{len(self.trees)} trees'}, "
            f"{len(self.job.workers)} workers"
        ]
        lines += [f"  {each.sender} ({each.layer}): to {', '.join(each.receivers)}" for each in self.multicasts]
        for index, tree in enumerate(self.trees[:SHOWN_TREES]):
            counts = tree.assignments.ends()
            where = {point: counts[point] for point in (*tree.points, tree.root) if counts[point]}
            parts = [
                f"{count} at {point}" if point != tree.root else f"{count} direct"
                for point, count in list(where.items())[:SHOWN_POINTS]
            ]
            if len(where) > SHOWN_POINTS:
                rest = sum(list(where.values())[SHOWN_POINTS:])
                parts.append(f"{rest} at {len(where) - SHOWN_POINTS} others")
            lines.append(f"  {index}: root {tree.root}, share {tree.share:.4f}: {', '.join(parts)}")
        if len(self.trees) > SHOWN_TREES:
            rest_share = sum(tree.share for tree in self.trees[SHOWN_TREES:])
            lines.append(f"  and {len(self.trees) - SHOWN_TREES} more trees, share {rest_share:.4f} (--json has all)")
        return "\n".join(lines)


def _check_route(
    what: str, route: tuple[str, ...], first: str, last: str, topology: Topology, *, good: set[tuple[str, ...]]
) -> None:
    """Check that a route leads from first to last over existing links and switches; raise PlanError, whose message
    begins with `what`, otherwise.

    `good` holds routes without their first nodes that are known to be right, as many routes have these in common; the
    route's own is added to it.
    """
    if len(route) < 2 or route[0] != first or route[-1] != last:
        raise PlanError(f"{what}: the route must lead from {first} to {last}, got {' '.join(route)}")
    behind = route[1:]
    new = behind not in good
    if first in behind or (new and len(set(behind)) != len(behind)):
        raise PlanError(f"{what}: the route visits a node twice: {' '.join(route)}")
    for u, v in pairwise(route) if new else ((first, behind[0]),):
        if not topology.has_link(u, v):
            raise PlanError(f"{what}: link {u} -> {v} does not exist")
    if not new:
        return
    for node in behind[:-1]:
        if topology.kind(node) != "switch":
            raise PlanError(f"{what}: the route passes through {node}, which is a server and does not forward")
    good.add(behind)


class _Known(NamedTuple):
    """The parts of a plan's trees that have been checked already: trees share most of them, so none is checked twice.

    Attributes:
        behind: Routes without their first nodes, as in `_check_route`.
        access: Of a tree, the workers, the nodes at which their routes begin, and the nodes next on these.
    """

    behind: set[tuple[str, ...]]
    access: set[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]
    links: set[tuple[str, str]]


def _check_tree(name: str, tree: Tree, job: Job, topology: Topology, known: _Known) -> None:
    if tree.root not in job.parameter_servers:
        raise PlanError(f"{name}: the root is no parameter server of job {job.name!r}")
    if not tree.share > 0:
        raise PlanError(f"{name}: the share must be above 0, got {tree.share!r}")
    workers = tree.assignments.workers
    if workers != job.workers and sorted(workers) != sorted(job.workers):
        wrong = sorted(set(workers) ^ set(job.workers)) or sorted({w for w in workers if workers.count(w) > 1})
        raise PlanError(f"{name}: every worker must be assigned exactly once; wrong: {', '.join(wrong)}")
    onwards = {relay.node: relay.next for relay in tree.relays}
    if len(onwards) != len(tree.relays):
        raise PlanError(f"{name}: an aggregation point has two relays")
    if tree.root in onwards:
        raise PlanError(f"{name}: the root has a relay")
    _check_assignments(name, tree, topology, onwards, known)
    used = {way.point for way in tree.assignments.ways} | {relay.next for relay in tree.relays}
    for relay in tree.relays:
        what = f"{name}, aggregation point {relay.node}"
        _check_route(what, relay.route, relay.node, relay.next, topology, good=known.behind)
        if relay.node not in used:
            raise PlanError(f"{what}: nothing is added there")
        if topology.kind(relay.node) != "switch":
            raise PlanError(f"{what}: it is a server; one that adds for others does so in the switch on its host")
        seen = {relay.node}
        node = relay.next
        while node != tree.root:
            if node not in onwards or node in seen:
                raise PlanError(f"{what}: its sum never reaches the root")
            seen.add(node)
            node = onwards[node]
    _check_return(name, tree, job, topology, known.links)


def _check_assignments(name: str, tree: Tree, topology: Topology, onwards: Mapping[str, str], known: _Known) -> None:
    """Check that every worker's route exists and ends at a point that is the root or has a relay."""
    own = tree.assignments
    access = own.workers, own.starts, own.first_nodes()
    if access in known.access:  # one worker of each way is enough, and the one on the root's host
        first = dict(zip(reversed(own.which), range(len(own) - 1, -1, -1), strict=True))
        looked_at = [own[i] for i in first.values()]
        looked_at += [own[own.workers.index(tree.root)]] if tree.root in own.workers else []
    else:
        looked_at = list(own)
    for a in looked_at:
        if a.worker == tree.root and a.route != (a.worker,):
            raise PlanError(
                f"{name}: what worker {a.worker} adds on its own host, the root's, is to go over {' -> '.join(a.route)}"
            )
        if a.worker != tree.root:
            _check_route(f"{name}, worker {a.worker}", a.route, a.worker, a.point, topology, good=known.behind)
        if a.point != tree.root and a.point not in onwards:
            raise PlanError(f"{name}, worker {a.worker}: aggregation point {a.point} has no relay")
    if own.starts == own.workers:
        known.access.add(access)


def _check_multicasts(multicasts: tuple[Multicast, ...], job: Job, topology: Topology) -> None:
    senders = [each.sender for each in multicasts]
    if len(set(senders)) != len(senders):
        raise PlanError("a worker sends two multicasts")
    good: set[tuple[str, ...]] = set()
    for each in multicasts:
        name = f"multicast of {each.sender}"
        if each.layer not in ("L3", "L7"):
            raise PlanError(f"{name}: the layer must be L3 or L7, got {each.layer!r}")
        if not all(each.routes) or not each.routes:
            raise PlanError(f"{name}: it must have receivers, and every route nodes")
        if len(set(each.receivers)) != len(each.receivers) or each.sender in each.receivers:
            raise PlanError(f"{name}: the receivers must be other workers, each once, got {', '.join(each.receivers)}")
        for node in (each.sender, *each.receivers):
            if node not in job.workers:
                raise PlanError(f"{name}: {node} is no worker of job {job.name!r}")
        for route in each.routes:
            _check_route(f"{name} to {route[-1]}", route, each.sender, route[-1], topology, good=good)
        heads = [v for _, v in each.links]
        if each.layer == "L3" and len(set(heads)) != len(heads):
            twice = next(v for v in heads if heads.count(v) > 1)
            raise PlanError(f"{name}: the routes are no tree, the model reaches {twice} twice")


def _check_return(name: str, tree: Tree, job: Job, topology: Topology, known: set[tuple[str, str]]) -> None:
    """Check that the results reach every worker once, over switches only. `known` has links that exist; the tree's are
    added to it.
    """
    if not known.issuperset(tree.return_edges):
        for u, v in tree.return_edges:
            if not topology.has_link(u, v):
                raise PlanError(f"{name}: return link {u} -> {v} does not exist")
        known.update(tree.return_edges)
    parent = {v: u for u, v in tree.return_edges}
    if len(parent) < len(tree.return_edges) or tree.root in parent:
        heads = Counter([tree.root, *(v for _, v in tree.return_edges)])
        raise PlanError(f"{name}: results reach {heads.most_common(1)[0][0]} twice")
    reached = {tree.root}
    below: dict[str, list[str]] = {}
    for u, v in tree.return_edges:
        if u in reached:
            reached.add(v)
        else:
            below.setdefault(u, []).append(v)
    last = list(reached) if below else []
    while last:  # the links are not in order from the root down
        last = [v for u in last for v in below.get(u, ())]
        reached.update(last)
    for v, u in parent.items():
        if v not in reached:
            raise PlanError(f"{name}: return link {u} -> {v} does not hang on the root")
    inner, workers = set(parent.values()) - {tree.root}, set(job.workers)
    for node in inner.difference(topology.switches):
        raise PlanError(f"{name}: results pass through {node}, which is a server and does not forward")
    for node in parent.keys() - inner - workers:
        raise PlanError(f"{name}: results end at {node}, which is no worker of the job")
    for worker in workers - parent.keys() - {tree.root}:
        raise PlanError(f"{name}: results do not reach worker {worker}")
