"""Limits of switches beside their rates: slots, table entries, multicast groups, flows of one sum.

They are attributes of a switch in the topology, all optional (absent: unlimited) and whole numbers, and limit what the
plans of all jobs together may use of it.

- slots: of the aggregation memory; a tree takes at least MINIMUM_SLOTS at each of its aggregation points;
- label_entries: of the label table; multicast_groups: ways to copy results;
- fan_in: flows (of workers, partial sums) that are added to one sum, i.e. at one point of one tree;
- max_workers: workers of one job; values_per_packet: of the program on the switch, the same on all switches.

They make a plan discrete: it matters which trees it has, not only how much each carries. What a plan needs is counted
here from its trees alone, as `rules.build` uses it. `Limits` are those of a compiled program; `limited` puts them into
a topology.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Protocol

from controlplane.planner.plan.model import Plan, Tree
from controlplane.planner.topology import Topology, TopologyError
from p4src.protocol import MAX_WORKERS, PROTOCOL

MINIMUM_SLOTS = 16

MAXIMUM_FLOWS = {name: target.flows for name, target in PROTOCOL.targets.items()}
"""Most flows that a target adds at one point of one tree: the bits of its slots' bitmaps (on Tofino a word of 32 bits,
one of which the program uses itself).
"""


class Resource(StrEnum):
    """A resource of a switch that can be too little."""

    SLOTS = "aggregation slots"
    LABELS = "label table entries"
    GROUPS = "multicast groups"
    FLOWS = "flows added at one point of one tree"
    WORKERS = "workers of one job"
    ROUTES = "IPv4 routes"
    LOOPBACK = "Mbit/s of loopback ports"
    NUMBERS = "labels of one job"


RESOURCES = {
    "slots": Resource.SLOTS,
    "label_entries": Resource.LABELS,
    "multicast_groups": Resource.GROUPS,
    "fan_in": Resource.FLOWS,
    "max_workers": Resource.WORKERS,
}
"""Resources by the name of the attribute that limits them on a switch of the topology."""

ATTRIBUTES = (*RESOURCES, "values_per_packet")


class Sizes(Protocol):
    """Sizes that a compiled program has: values of a packet, slots, entries of tables, multicast groups."""

    @property
    def values_per_packet(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def label_table_size(self) -> int: ...
    @property
    def route_table_size(self) -> int: ...
    @property
    def multicast_groups(self) -> int: ...


class DoesNotFit(ValueError):
    """Error of a plan that needs more of a switch's resource than is available."""

    def __init__(self, switch: str, resource: Resource, needed: int, available: int) -> None:
        super().__init__(f"switch {switch}: the plan needs {needed} {resource}, available are {available}")
        self.switch, self.resource, self.needed, self.available = switch, resource, needed, available


@dataclass(frozen=True)
class Limits:
    """Limits of a switch with a compiled program.

    Attributes:
        label_table_size: Entries of the label table.
        route_table_size: Entries of the IPv4 table.
        multicast_groups: Groups that copy results.
        fan_in: Flows that can be added at one point of one tree; None for any number.
        front_panel: Whether the switches are hardware, whose ports are configured as the topology says.
    """

    values_per_packet: int
    slots: int
    label_table_size: int
    route_table_size: int
    multicast_groups: int = 4096
    max_workers: int = MAX_WORKERS
    fan_in: int | None = None
    front_panel: bool = False

    @classmethod
    def of_target(cls, name: str = "v1model") -> Limits:
        """Return the default limits of a target in p4src/protocol.json. Raise ValueError, naming the known ones, for
        any other name.
        """
        if name not in PROTOCOL.targets:
            raise ValueError(f"unknown target {name!r}; known: {', '.join(PROTOCOL.targets)}")
        return cls.of_program(name, PROTOCOL.targets[name])

    @classmethod
    def of_program(cls, target: str, sizes: Sizes, *, front_panel: bool = False) -> Limits:
        """Return the limits of a program for the target with these sizes, which come from a target's description or an
        artifact's manifest.
        """
        return cls(
            sizes.values_per_packet,
            sizes.slots,
            sizes.label_table_size,
            sizes.route_table_size,
            sizes.multicast_groups,
            fan_in=MAXIMUM_FLOWS.get(target),
            front_panel=front_panel,
        )


@dataclass(frozen=True)
class SwitchLimits:
    """Limits of a topology's switches, by switch; a switch that is in none of the dictionaries is unlimited there."""

    slots: dict[str, int]
    label_entries: dict[str, int]
    multicast_groups: dict[str, int]
    fan_in: dict[str, int]
    max_workers: dict[str, int]
    values_per_packet: int | None

    @property
    def anything(self) -> bool:
        """Whether any switch limits the plan (the packets' size does not)."""
        return any(getattr(self, name) for name in RESOURCES)

    def trees_at(self, switch: str) -> float:
        """Return how many trees may add at the switch; infinity where it has no limit of slots."""
        if switch in self.slots:
            return self.slots[switch] // MINIMUM_SLOTS
        return float("inf")


@lru_cache(maxsize=16)
def switch_limits(topology: Topology) -> SwitchLimits:
    """Return the limits that the topology's switches have. Raise TopologyError, naming switch and attribute, where one
    is wrong.
    """
    found: dict[str, dict[str, int]] = {name: {} for name in ATTRIBUTES}
    for node in topology.nodes:
        for name in ATTRIBUTES:
            value = topology.graph.nodes[node].get(name)
            if value is None:
                continue
            if topology.kind(node) != "switch":
                raise TopologyError(f"node {node!r}: {name} does not belong on a server")
            least = 1 if name in ("values_per_packet", "max_workers") else 0
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise TopologyError(f"node {node!r}: {name} must be a whole number of at least {least}, got {value!r}")
            found[name][node] = value
    packets = sorted(set(found["values_per_packet"].values()))
    if len(packets) > 1:
        raise TopologyError(f"values_per_packet must be the same on all switches, got {packets[0]} and {packets[-1]}")
    return SwitchLimits(**{name: found[name] for name in RESOURCES}, values_per_packet=packets[0] if packets else None)


def _attributes(limits: Limits) -> dict[str, int]:
    """Return the limits of a target, by attribute of a switch."""
    own = {
        "slots": limits.slots,
        "label_entries": limits.label_table_size,
        "multicast_groups": limits.multicast_groups,
        "max_workers": limits.max_workers,
        "values_per_packet": limits.values_per_packet,
    }
    if limits.fan_in is not None:
        own["fan_in"] = limits.fan_in
    return own


def limited(topology: Topology, limits: Limits) -> Topology:
    """Return the topology in which every switch has the target's limits, or its own ones where these are lower."""
    own = _attributes(limits)
    switch_limits(topology)
    nodes = {
        v: {name: min(value, topology.graph.nodes[v].get(name, value)) for name, value in own.items()}
        for v in topology.switches
    }
    return topology.replace(nodes=nodes)


def label_entries(tree: Tree) -> Counter[str]:
    """Return the entries of the label table that a tree takes, by switch. A flow takes one at each switch that it
    passes or is added at; the results take one at each switch; the answers to a worker take one at each switch on their
    way. Where an aggregation point sends to another one, its incomplete sums take one at each switch on their way to
    the root.
    """
    entries: Counter[str] = Counter()
    for way, count in tree.assignments.counts():
        for node in way.behind[:-1]:
            entries[node] += count
    entries.update(chain.from_iterable([r.route[1:-1] for r in tree.relays]))
    entries.update(fan_in(tree))
    for relay in tree.relays:
        if relay.next != tree.root:
            entries.update(tree.way(relay.node)[1:-1])
    parent = {child: above for above, child in tree.return_edges}
    entries.update({above for above, _ in tree.return_edges if above != tree.root})
    for above, workers in Counter([parent[w] for w in tree.assignments.workers if w != tree.root]).items():
        node = above
        while node != tree.root:
            entries[node] += workers
            node = parent[node]
    return entries


def fan_in(tree: Tree) -> Counter[str]:
    """Return the number of flows that are added at each aggregation point of a tree."""
    found = tree.ends()
    del found[tree.root]
    return found


def copies(tree: Tree) -> dict[str, frozenset[str]]:
    """Return the switches at which a tree's results are copied, each with the neighbours that get a copy."""
    below: dict[str, set[str]] = {}
    for above, child in tree.return_edges:
        below.setdefault(above, set()).add(child)
    return {v: frozenset(children) for v, children in below.items() if len(children) > 1 and v != tree.root}


@dataclass(frozen=True)
class Needs:
    """Needs of a plan on each switch, by resource as in `SwitchLimits`; for slots the least that is possible."""

    fan_in: dict[str, int]
    slots: dict[str, int]
    label_entries: dict[str, int]
    multicast_groups: dict[str, int]

    @classmethod
    def of(cls, plan: Plan, entries: bool = True) -> Needs:
        """Return a plan's needs; without `entries`, those of the label table are left out, as they take longest to
        count.
        """
        labels: Counter[str] = Counter()
        points: Counter[str] = Counter()
        groups: dict[str, set[frozenset[str]]] = {}
        inputs: dict[str, int] = {}
        for tree in plan.trees:
            points.update(tree.points)
            for v, count in fan_in(tree).items():
                inputs[v] = max(inputs.get(v, 0), count)
            if entries:
                labels.update(label_entries(tree))
            for v, children in copies(tree).items():
                groups.setdefault(v, set()).add(children)
        slots = {v: MINIMUM_SLOTS * count for v, count in points.items()}
        return cls(inputs, slots, labels, {v: len(found) for v, found in groups.items()})


def check_fits(plan: Plan, topology: Topology) -> None:
    """Check that the plan is within the limits of the topology's switches; raise DoesNotFit for the first one that is
    exceeded.
    """
    limits = switch_limits(topology)
    if limits.anything:
        _check_within(plan, limits, lambda: Needs.of(plan, bool(limits.label_entries)))


def _check_within(plan: Plan, limits: SwitchLimits, counted: Callable[[], Needs]) -> None:
    """Check that a plan is within these limits; raise DoesNotFit for the first one that is exceeded. `counted` counts
    the plan's needs; it is called only where the job has few enough workers, as it takes long.
    """
    for v, available in limits.max_workers.items():
        if len(plan.job.workers) > available:
            raise DoesNotFit(v, RESOURCES["max_workers"], len(plan.job.workers), available)
    needs = counted()
    for name in ("fan_in", "slots", "label_entries", "multicast_groups"):
        needed: dict[str, int] = getattr(needs, name)
        available_at: dict[str, int] = getattr(limits, name)
        for v, available in available_at.items():
            if needed.get(v, 0) > available:
                raise DoesNotFit(v, RESOURCES[name], needed[v], available)


def unfit_for(plan: Plan, topology: Topology) -> dict[str, str]:
    """Return, by target, why its programs cannot hold the plan; targets that can are left out."""
    found = {}
    needs, own = cache(lambda: Needs.of(plan)), switch_limits(topology)
    for target in PROTOCOL.targets:
        holds = _attributes(Limits.of_target(target))
        least: dict[str, Any] = {
            name: {v: min(value, getattr(own, name).get(v, value)) for v in topology.switches}
            for name in RESOURCES
            if (value := holds.get(name)) is not None
        }
        try:
            _check_within(plan, replace(own, **least), needs)
        except DoesNotFit as error:
            found[target] = str(error)
    return found
