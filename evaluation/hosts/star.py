"""A job around one switch, as the control plane sees it: topology, plan, and the rules and configurations for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controlplane.common.agentconfig import AgentConfig
from controlplane.planner.entries import Aggregate, LabelEntry, RuleSet
from controlplane.planner.job import Job
from controlplane.planner.plan.assignments import Assignment, Assignments
from controlplane.planner.plan.limits import Limits
from controlplane.planner.plan.model import Plan, Relay, Tree
from controlplane.planner.rules import build
from controlplane.planner.topology import Topology
from p4src.artifacts import find

SWITCH = "switch"
UNLIMITED_MBPS = 1e6
JOB_ID = 7


@dataclass(frozen=True)
class TreeShape:
    """One tree of a star: its parameter server, its share, and whether the switch aggregates it (else its flows are
    direct).
    """

    root: int = 0
    share: float = 1.0
    aggregated: bool = False


@dataclass(frozen=True)
class Star:
    """A job around one switch: configurations of its workers (ports 1 .. W) and parameter servers (the ports after
    them).

    Attributes:
        rules: the entries that the switch has to hold.
    """

    workers: tuple[AgentConfig, ...]
    servers: tuple[AgentConfig, ...]
    trees: tuple[TreeShape, ...]
    rules: RuleSet

    def beside(self) -> Star:
        """Return the same job, whose gathers run beside its reductions, in half of each tree's slots each."""
        return replace(
            self,
            workers=tuple(in_ways(agent, directions=2) for agent in self.workers),
            servers=tuple(in_ways(agent, directions=2) for agent in self.servers),
        )

    def in_lanes(self, lanes: int) -> Star:
        """Return the same job, each of whose trees has so many ports, with a part of its slots each."""
        return replace(
            self,
            workers=tuple(in_ways(agent, lanes=lanes) for agent in self.workers),
            servers=tuple(in_ways(agent, lanes=lanes) for agent in self.servers),
        )


def star(
    workers: int,
    servers: int = 1,
    trees: Sequence[TreeShape] = (TreeShape(),),
    *,
    values_per_packet: int = 256,
    slots: int = 512,
    rate_mbps: float = 0.0,
    hosts: Sequence[str] = (),
    gathers: bool = False,
) -> Star:
    """Return a star.

    Args:
        workers, servers: numbers of workers and parameter servers.
        trees: the trees.
        values_per_packet: values in a packet.
        slots: window of each tree, whatever its rate.
        rate_mbps: wire rate of a worker in all (0 for one that is not paced).
        hosts: the hosts at the switch's ports 1, 2, .., including some that the job does not use (default: the
            job's).
        gathers: a worker's own values in a gather do not come back to it (see also `Star.beside`).
    """
    names = tuple(f"w{index}" for index in range(workers)), tuple(f"s{index}" for index in range(servers))
    topology = _topology(*names, hosts)
    job = Job("star", *names, model_bytes=4)
    plan = Plan(job, "star", rate_mbps or UNLIMITED_MBPS, tuple(_tree(shape, *names) for shape in trees))
    if gathers:
        plan = replace(plan, gather_speed=workers / (workers - 1))
    limits = Limits.of_program("v1model", find("v1model", values_per_packet).manifest)
    deployment = build(plan, topology, limits, job_id=JOB_ID, epoch=1, gathers=gathers)
    rules = deployment.rulesets[SWITCH]
    agents = {name: _resized(agent, slots, bool(rate_mbps)) for name, agent in deployment.agents.items()}
    return Star(
        tuple(agents[name] for name in names[0]),
        tuple(agents[name] for name in names[1]),
        tuple(trees),
        replace(rules, labels=tuple(_moved(rules.labels, slots))),
    )


def _topology(workers: Sequence[str], servers: Sequence[str], hosts: Sequence[str]) -> Topology:
    addresses = {name: f"10.9.0.{n}" for n, name in enumerate(workers, 1)}
    addresses |= {name: f"10.9.1.{n}" for n, name in enumerate(servers, 1)}
    ports = {name: port for port, name in enumerate(hosts or addresses, 1)}
    nodes = [{"id": SWITCH, "kind": "switch"}]
    nodes += [{"id": name, "kind": "server", "ip": address} for name, address in addresses.items()]
    link = {"bandwidth_mbps": UNLIMITED_MBPS, "delay_ms": 0.0}
    edges = [{"source": SWITCH, "target": name, **link, "ports": {SWITCH: ports[name]}} for name in addresses]
    return Topology.load({"nodes": nodes, "edges": edges})


def _tree(shape: TreeShape, workers: Sequence[str], servers: Sequence[str]) -> Tree:
    root = servers[shape.root]
    back = ((root, SWITCH), *((SWITCH, worker) for worker in workers))
    if not shape.aggregated:
        direct = Assignments.of(Assignment(worker, root, (worker, SWITCH, root)) for worker in workers)
        return Tree(root, shape.share, direct, (), back)
    added = Assignments.of(Assignment(worker, SWITCH, (worker, SWITCH)) for worker in workers)
    return Tree(root, shape.share, added, (Relay(SWITCH, root, (SWITCH, root)),), back)


def _resized(agent: AgentConfig, slots: int, paced: bool) -> AgentConfig:
    """Return the agent's configuration with windows of `slots` chunks, all for one direction and one lane."""
    return replace(
        agent,
        worker_trees=tuple(
            replace(tree, slots=slots, rate_mbps=tree.rate_mbps if paced else 0.0, directions=1, lanes=1)
            for tree in agent.worker_trees
        ),
        root_trees=tuple(replace(tree, slots=slots, directions=1, lanes=1) for tree in agent.root_trees),
    )


def in_ways(agent: AgentConfig, *, directions: int = 0, lanes: int = 0) -> AgentConfig:
    """Return the configuration with so many directions and lanes of each tree; 0 for as many as it has."""
    return replace(
        agent,
        worker_trees=tuple(
            replace(tree, directions=directions or tree.directions, lanes=lanes or tree.lanes)
            for tree in agent.worker_trees
        ),
        root_trees=tuple(
            replace(tree, directions=directions or tree.directions, lanes=lanes or tree.lanes)
            for tree in agent.root_trees
        ),
    )


def _moved(labels: Sequence[LabelEntry], slots: int) -> list[LabelEntry]:
    """Return the entries with `slots` slots for each aggregation point, one after another."""
    bases = sorted({entry.action.slot_base for entry in labels if isinstance(entry.action, Aggregate)})
    return [
        replace(
            entry,
            action=replace(entry.action, slot_base=bases.index(entry.action.slot_base) * slots, slot_mask=slots - 1),
        )
        if isinstance(entry.action, Aggregate)
        else entry
        for entry in labels
    ]
