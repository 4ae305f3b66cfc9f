"""Turns a plan into table entries for each switch and a configuration for each agent, for any kind of switch
(docs/architecture.md, section 5).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from controlplane.common.agentconfig import LANE_MBPS, AgentConfig, Role, RootFlow, RootTree, WorkerTree
from controlplane.planner.entries import Aggregate, Forward, LabelEntry, MulticastGroup, Replicate, Route, RuleSet
from controlplane.planner.frontpanel import FrontPanelPort
from controlplane.planner.plan.limits import (
    DoesNotFit,
    Limits,
    Resource,
    check_fits,
    fan_in,
    switch_limits,
)
from controlplane.planner.plan.model import Multicast, Plan, PlanError, Tree
from controlplane.planner.plan.slots import place_slots, under_way
from controlplane.planner.routing import next_hops
from controlplane.planner.topology import Topology
from controlplane.planner.topology_cables import access_switches, link_of, links_of
from p4src.protocol import PROTOCOL, frame_bytes, udp_port


@dataclass(frozen=True)
class Taken:
    """Resources of a switch that other jobs or versions hold: the number of entries of the label table, the numbers of
    groups, and ranges of slots (first, end; the end is not included).
    """

    labels: int = 0
    groups: frozenset[int] = frozenset()
    slots: tuple[tuple[int, int], ...] = ()

    @classmethod
    def by(cls, rules: RuleSet) -> Taken:
        """Return the resources that these entries take."""
        slots: list[tuple[int, int]] = []
        actions = [entry.action for entry in rules.labels if isinstance(entry.action, Aggregate)]
        for first, end in sorted({(a.slot_base, a.slot_base + a.slot_mask + 1) for a in actions}):
            if slots and first <= slots[-1][1]:
                slots[-1] = slots[-1][0], max(slots[-1][1], end)
            else:
                slots.append((first, end))
        return cls(len(rules.labels), frozenset(group.group for group in rules.groups), tuple(slots))

    def gaps(self, slots: int, declared: int | None = None) -> list[tuple[int, int]]:
        """Return the free ranges of a memory of `slots` slots. Where `declared` is given, only so many slots may be
        used in all; if that leaves less than the gaps have, return the first ones of it.
        """
        found, end = [], 0
        left = slots if declared is None else declared - self.used_slots
        for first, after in (*self.slots, (slots, slots)):
            until = min(first, slots, end + left)
            if end < until:
                found.append((end, until))
                left -= until - end
            end = max(end, after)
        return found

    @property
    def used_slots(self) -> int:
        """The number of slots in the ranges."""
        return sum(end - first for first, end in self.slots)


NOTHING = Taken()
LEAST_OF_TWO = 16
"""Fewest slots of a tree that has two windows, one for gathers and one for reductions."""
LEAST_OF_LANE = 32
"""Fewest slots of a lane, where a tree has several lanes."""


def lanes(mbps: float, slots: int) -> int:
    """Return how many lanes (worker_agent/tree_lanes.py) a tree of this rate in Mbit/s has: as many as it takes for one
    thread to carry each, as long as none has too few slots. A tree of an unknown rate (infinite) has one.
    """
    found = 1
    while math.isfinite(mbps) and mbps > found * LANE_MBPS and slots >= 2 * found * LEAST_OF_LANE:
        found *= 2
    return min(found, PROTOCOL.ports_per_job)


@dataclass(frozen=True)
class Places:
    """Places of a plan's trees on the switches.

    Attributes:
        sizes: Slots of each tree.
        slots: First slot by (aggregation point, tree).
        groups: Group numbers by switch and ports; others are chosen where a group has none here.
    """

    sizes: tuple[int, ...]
    slots: Mapping[tuple[str, int], int]
    groups: Mapping[str, Mapping[tuple[int, ...], int]]


@dataclass(frozen=True)
class Beside:
    """Surroundings in which a deployment is installed.

    Attributes:
        first_label: The deployment's labels are numbered from here.
        taken: What is not free, by switch; None for nothing.
        places: Places of the deployment's trees where they are settled already; None to choose them.
    """

    first_label: int = 1
    taken: Mapping[str, Taken] | None = None
    places: Places | None = None


ALONE = Beside()


@dataclass(frozen=True)
class Deployment:
    """Deployment of one plan version.

    Attributes:
        agents: Configurations by node; a plan of multicasts has none (overlay/net/multicast.py).
        next_label: First label after the deployment's own ones.
        slots: First slot by (aggregation point, tree).
        multicasts: Label of each sender's multicast.
    """

    rulesets: dict[str, RuleSet]
    agents: dict[str, AgentConfig]
    next_label: int
    first_label: int = 1
    slots: dict[tuple[str, int], int] = field(default_factory=dict)
    multicasts: dict[str, int] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The slots of each tree."""
        worker = next((config for config in self.agents.values() if config.role == "worker"), None)
        return () if worker is None else tuple(tree.slots for tree in worker.worker_trees)


def build(
    plan: Plan,
    topology: Topology,
    limits: Limits,
    *,
    job_id: int,
    epoch: int,
    beside: Beside = ALONE,
    gathers: bool | None = None,
) -> Deployment:
    """Return the rules of every switch and the configuration of every agent of the plan's job. Multicasts of layer L3
    are labels that switches replicate; those of L7 need nothing of switches but IPv4.

    `beside` says what is installed already by other jobs and versions. `gathers` gives each worker labels to all others
    (None: where the plan gains by it, and there is room). Both `limits` and what the topology's switches have of their
    own (controlplane/planner/plan/limits.py) hold. Raise DoesNotFit, PlanError or TopologyError where the plan cannot
    be installed.
    """
    plan.check(topology)
    if plan.multicasts:
        return build_multicasts(plan.multicasts, topology, limits, first_label=beside.first_label, taken=beside.taken)
    check_fits(plan, topology)
    if len(plan.job.workers) > limits.max_workers:
        point = next((p for tree in plan.trees for p in tree.points), access_switches(topology, plan.trees[0].root)[0])
        raise DoesNotFit(point, Resource.WORKERS, len(plan.job.workers), limits.max_workers)
    for tree in plan.trees:
        for point, flows in fan_in(tree).items():
            if limits.fan_in is not None and flows > limits.fan_in:
                raise DoesNotFit(point, Resource.FLOWS, flows, limits.fan_in)

    def built(others: bool) -> Deployment:
        builder = _Builder(plan, topology, limits, job_id=job_id, beside=beside)
        for index, tree in enumerate(plan.trees):
            builder.add_tree(index, tree)
        if others and len(plan.job.workers) > 1:  # last, so that their labels change no others
            for index, tree in enumerate(plan.trees):
                builder.add_others(index, tree)
        return builder.deployment(epoch)

    if gathers is None and plan.gather_speed > 1:
        try:
            return built(True)
        except DoesNotFit:
            return built(False)  # or raise, naming what does not fit even without these labels
    return built(bool(gathers))


def build_multicasts(
    multicasts: Sequence[Multicast],
    topology: Topology,
    limits: Limits,
    *,
    first_label: int = 1,
    taken: Mapping[str, Taken] | None = None,
) -> Deployment:
    """Return the rules of every switch for multicasts of layer L3: each has a label, under which switches copy it.

    The arguments are those of `build`. Raise DoesNotFit or PlanError where the multicasts cannot be installed.
    """
    if any(each.layer == "L7" for each in multicasts):
        raise PlanError("a sender that sends to each receiver on its own (L7) needs no rules of switches")
    made = _Entries(topology, limits, first_label, taken or {})
    labels = {each.sender: made.copied(each.sender, each.links, "its model") for each in multicasts}
    return Deployment(made.rulesets(), {}, made.next_label, first_label, multicasts=labels)


class _Entries:
    """Collects labels and groups of every switch."""

    def __init__(self, topology: Topology, limits: Limits, first_label: int, taken: Mapping[str, Taken]) -> None:
        self.topology, self.limits, self.taken = topology, limits, taken
        self.declared = switch_limits(topology)
        self.first_label = self.next_label = first_label
        self.entries: dict[str, list[LabelEntry]] = {v: [] for v in topology.devices}
        self.groups: dict[str, dict[tuple[int, ...], int]] = {v: {} for v in topology.devices}
        self.numbers: Mapping[str, Mapping[tuple[int, ...], int]] = {}

    def label(self) -> int:
        self.next_label += 1
        return self.next_label - 1

    def forward(self, route: tuple[str, ...], label: int) -> None:
        """Add forwarding entries for the label at every switch strictly inside the route."""
        for before, node, after in zip(route, route[1:], route[2:], strict=False):
            if node in self.topology.cables:
                continue
            action = Forward(self.topology.port(node, after))
            self.entries[node].append(LabelEntry(self.topology.port(node, before), label, action))

    def copied(self, root: str, links: Sequence[tuple[str, str]], what: str) -> int:
        """Add entries that copy packets from the root along all `links`, which are a tree, and return their new label.
        Switches copy where the tree parts. An error calls the packets `what`.
        """
        topology = self.topology
        parent = {child: above for above, child in links}
        children: dict[str, list[str]] = {}
        for above, child in links:
            children.setdefault(above, []).append(child)
        if len(children[root]) != 1:
            raise PlanError(f"{root} sends {what} over several links; an agent has one interface")
        label = self.label()
        for node, below in children.items():
            if node == root or node in topology.cables:
                continue
            ports = tuple(sorted(topology.port(node, child) for child in below))
            action: Forward | Replicate
            if len(ports) == 1:
                action = Forward(ports[0])
            else:
                groups = self.groups[node]
                if ports not in groups:
                    known = self.numbers.get(node, {})
                    used = {*groups.values(), *known.values(), *self.taken.get(node, NOTHING).groups}
                    groups[ports] = known.get(ports) or next(number for number in count(1) if number not in used)
                action = Replicate(groups[ports])
            self.entries[node].append(LabelEntry(topology.port(node, parent[node]), label, action))
        return label

    def new_groups(self, switch: str) -> list[int]:
        """Return the numbers of the groups that are not installed yet (a deployment that replaces another keeps its
        numbers).
        """
        there = self.taken.get(switch, NOTHING).groups
        return [number for number in self.groups[switch].values() if number not in there]

    def rulesets(self) -> dict[str, RuleSet]:
        """Return the entries of every switch, with its IPv4 routes. Raise DoesNotFit where a switch has too little
        room.
        """
        limits, rulesets = self.limits, {}
        ip = routes(self.topology)
        for v in self.topology.devices:
            taken = self.taken.get(v, NOTHING)
            labels = min(limits.label_table_size, self.declared.label_entries.get(v, limits.label_table_size))
            most = min(limits.multicast_groups, self.declared.multicast_groups.get(v, limits.multicast_groups))
            for resource, needed, available in (
                (Resource.LABELS, len(self.entries[v]), labels - taken.labels),
                (Resource.GROUPS, len(self.new_groups(v)), most - len(taken.groups)),
                (Resource.ROUTES, len(ip[v]), limits.route_table_size),
            ):
                if needed > available:
                    raise DoesNotFit(v, resource, needed, available)
            groups = tuple(MulticastGroup(number, ports) for ports, number in self.groups[v].items())
            panel: tuple[FrontPanelPort, ...] = ()
            if limits.front_panel:
                panel = tuple(sorted([*self.topology.front_panel(v).values(), *self.topology.loopback_ports(v)]))
            rulesets[v] = RuleSet(v, tuple(self.entries[v]), groups, ip[v], panel)
        return rulesets


class _Builder(_Entries):
    """Collects the entries and the agents' configurations of a plan, tree by tree."""

    def __init__(
        self,
        plan: Plan,
        topology: Topology,
        limits: Limits,
        *,
        job_id: int,
        beside: Beside,
    ) -> None:
        taken, places = beside.taken or {}, beside.places
        super().__init__(topology, limits, beside.first_label, taken)
        self.plan, self.job_id = plan, job_id
        self.numbers_of = {worker: i for i, worker in enumerate(plan.job.workers)}
        self.worker_trees: dict[str, list[WorkerTree]] = {w: [] for w in plan.job.workers}
        self.root_trees: dict[str, list[RootTree]] = {s: [] for s in plan.job.parameter_servers}
        self.others: dict[int, tuple[int, ...]] = {}
        if places is None:
            free = {v: taken.get(v, NOTHING).gaps(limits.slots, self.declared.slots.get(v)) for v in topology.switches}
            self.slots, self.slot_base = place_slots(plan, topology, 8 * frame_bytes(limits.values_per_packet), free)
        else:
            self.slots, self.slot_base = places.sizes, dict(places.slots)
            self.numbers = {v: dict(groups) for v, groups in places.groups.items()}

    def add_tree(self, index: int, tree: Tree) -> None:
        topology = self.topology
        relays = {relay.node: relay for relay in tree.relays}
        complete = {point: self.label() for point in relays}
        inner = {relay.node for relay in tree.relays if relay.next != tree.root}
        partial = {point: self.label() if point in inner else label for point, label in complete.items()}
        parts = parts_of(tree, self.numbers_of)
        bits = {point: iter(range(len(parts[point]))) for point in relays}
        flows: list[RootFlow] = []

        def add_up(route: tuple[str, ...], label: int, root_flow: RootFlow) -> None:
            """Add a flow's entries up to the node where it is added. If that node is the root, note `root_flow`, which
            describes the flow to it.
            """
            self.forward(route, label)
            point = route[-1]
            if point == tree.root:
                flows.append(root_flow)
                return
            port = topology.port(point, relays[point].route[1])
            slots = self.slot_base[point, index], self.slots[index] - 1
            everyone = (1 << len(parts[point])) - 1
            action = Aggregate(*slots, 1 << next(bits[point]), everyone, complete[point], partial[point], port)
            self.entries[point].append(LabelEntry(topology.port(point, route[-2]), label, action))

        up: dict[str, int] = {}
        for a in tree.assignments:
            up[a.worker] = self.label()
            direct = ((self.numbers_of[a.worker],),)
            add_up(a.route, up[a.worker], RootFlow(up[a.worker], direct, partial=False))
        for relay in tree.relays:
            sums = RootFlow(partial[relay.node], parts[relay.node], partial=True)
            add_up(relay.route, complete[relay.node], sums)
            if relay.node in inner:
                self.forward(tree.way(relay.node), partial[relay.node])
                flows.append(sums)
        self.add_agents(index, tree, up, flows)

    def add_agents(self, index: int, tree: Tree, up: Mapping[str, int], flows: Sequence[RootFlow]) -> None:
        """Add a tree to its agents' configurations, and the entries that its results need. `up` has the label of each
        worker's flow, `flows` those that end at the root.
        """
        topology = self.topology
        ways = {a.worker: a.route[1] for a in tree.assignments if len(a.route) > 1}
        return_label, answers = self.add_return(tree)
        rate = self.plan.tree_rate_mbps(index)
        port, of_rate = udp_port(self.job_id, index), lanes(rate, self.slots[index])
        for worker in self.plan.job.workers:
            self.worker_trees[worker].append(
                WorkerTree(
                    index,
                    tree.root,
                    tree.share,
                    up[worker],
                    return_label,
                    answers[worker],
                    self.slots[index],
                    rate,
                    port,
                    lanes=of_rate,
                    link=link_of(topology, worker, ways.get(worker, "")),
                )
            )
        answer_labels = tuple(answers[worker] for worker in self.plan.job.workers)
        self.root_trees[tree.root].append(
            RootTree(
                index,
                tuple(flows),
                return_label,
                answer_labels,
                self.slots[index],
                port,
                rate_mbps=rate,
                lanes=of_rate,
                link=link_of(topology, tree.root, tree.first_step),
            )
        )

    def add_return(self, tree: Tree) -> tuple[int, dict[str, int]]:
        """Add the entries for results, and return the label to all workers and the label of answers to each worker."""
        parent = {child: above for above, child in tree.return_edges}
        return_label = self.copied(tree.root, tree.return_edges, "results")
        answers: dict[str, int] = {}
        for worker in self.plan.job.workers:
            route = [worker]
            while route[-1] != tree.root:
                route.append(parent[route[-1]])
            answers[worker] = self.label()
            self.forward(tuple(reversed(route)), answers[worker])
        return return_label, answers

    def add_others(self, index: int, tree: Tree) -> None:
        """Add a label for each worker that leads from the root to all other workers, along the return tree without that
        worker's branch.
        """
        parent = {child: above for above, child in tree.return_edges}
        parts = Counter(above for above, _ in tree.return_edges)
        labels = []
        for worker in self.plan.job.workers:
            branch = {worker}
            node = parent.get(worker, tree.root)  # the root itself has no parent
            while node != tree.root and parts[node] == 1:
                branch.add(node)
                node = parent[node]
            links = [pair for pair in tree.return_edges if pair[1] not in branch]
            labels.append(self.copied(tree.root, links, "what a worker gathers"))
        self.others[index] = tuple(labels)

    def with_others(self, agents: dict[str, AgentConfig]) -> dict[str, AgentConfig]:
        """Return the configurations with the labels of `add_others`."""

        def of_worker(tree: WorkerTree, own: int) -> WorkerTree:
            labels = tuple(label for number, label in enumerate(self.others[tree.tree]) if number != own)
            return replace(
                tree,
                others_labels=labels,
                gather_speed=self.plan.gather_speed,
                directions=self.directions(tree.tree),
            )

        return {
            node: replace(
                config,
                worker_trees=tuple(of_worker(tree, config.index) for tree in config.worker_trees),
                root_trees=tuple(
                    replace(tree, others_labels=self.others[tree.tree], directions=self.directions(tree.tree))
                    for tree in config.root_trees
                ),
            )
            for node, config in agents.items()
        }

    def directions(self, index: int) -> int:
        """Return how many windows a tree has: two where gathers run beside reductions, and half of its slots hold all
        packets under way at its rate; else one.
        """
        bits = 8 * frame_bytes(self.limits.values_per_packet)
        least = max(LEAST_OF_TWO, 2 * under_way(self.plan, self.topology, bits)[index])
        return 2 if self.plan.gathers_beside and self.slots[index] >= least else 1

    def addresses(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Return the addresses of these nodes, without repetitions; none at all where one of them is not known."""
        found = tuple(dict.fromkeys(self.topology.address(node) for node in nodes))
        return found if all(found) else ()

    def shared_link_mbps(self, node: str) -> float:
        """Return the Mbit/s that the links of a node that is worker and parameter server carry outwards; 0 for a node
        of one role, or where the links are unlimited.
        """
        if node not in self.plan.job.both_roles:
            return 0.0
        rate, _ = self.topology.residual_rates_mbps[node]
        return rate if math.isfinite(rate) else 0.0

    def deployment(self, epoch: int) -> Deployment:
        limits, job, rulesets = self.limits, self.plan.job, self.rulesets()
        agents: dict[str, AgentConfig] = {}
        roles: tuple[tuple[Role, tuple[str, ...]], ...] = (
            ("worker", job.workers),
            ("parameter_server", job.parameter_servers),
        )
        for role, nodes in roles:
            for index, node in enumerate(nodes):
                if node in agents:  # it has both roles: its one agent, the worker's, has the trees of both
                    continue
                others = job.parameter_servers if role == "worker" else job.workers
                others = (*job.workers, *job.parameter_servers) if node in job.both_roles else others
                agents[node] = AgentConfig(
                    job=job.name,
                    job_id=self.job_id,
                    epoch=epoch,
                    node=node,
                    role=role,
                    index=index,
                    workers=job.workers,
                    parameter_servers=job.parameter_servers,
                    values_per_packet=limits.values_per_packet,
                    worker_trees=tuple(self.worker_trees.get(node, ())),
                    root_trees=tuple(self.root_trees.get(node, ())),
                    address=self.topology.address(node),
                    sources=self.addresses(others),
                    repeats=len(job.parameter_servers) > 1 or job.may_lose_workers,
                    shrinks=job.may_lose_workers,
                    link_mbps=self.shared_link_mbps(node),
                    links=links_of(self.topology, node),
                )
        if self.others:
            agents = self.with_others(agents)
        return Deployment(rulesets, agents, self.next_label, self.first_label, dict(self.slot_base))


def parts_of(tree: Tree, numbers: Mapping[str, int]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return, by aggregation point, the numbers of the workers behind each of its flows, in the order of the flows'
    bits.
    """
    incoming: dict[str, list[str]] = {relay.node: [] for relay in tree.relays}
    for flow in tree.flows:
        if flow.end != tree.root:
            incoming[flow.end].append(flow.source)

    def behind(node: str) -> tuple[int, ...]:
        if node in numbers:
            return (numbers[node],)
        return tuple(worker for source in incoming[node] for worker in behind(source))

    return {point: tuple(behind(source) for source in sources) for point, sources in incoming.items()}


def routes(topology: Topology) -> dict[str, tuple[Route, ...]]:
    """Return, by switch, an IPv4 /32 route to every server that it reaches, along `next_hops`."""
    result: dict[str, list[Route]] = {v: [] for v in topology.devices}
    for server, hops in next_hops(topology).items():
        for node, following in hops.items():
            if node in result:
                port = topology.port(node, following)
                result[node].append(Route(topology.address(server), 32, topology.mac(server), port))
    return {v: tuple(entries) for v, entries in result.items()}
