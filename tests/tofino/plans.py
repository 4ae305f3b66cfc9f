"""Makes deployments on the Tofino testbed, and on networks that hypothesis draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from controlplane.planner.job import parse_job
from controlplane.planner.plan.limits import limited
from controlplane.planner.rules import Beside, Deployment, build
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology
from controlplane.targets.base import difference
from controlplane.targets.bri.entries import Entry, problems
from controlplane.targets.bri.kind import TofinoKind
from controlplane.targets.bri.ports import Panel, PortMap
from controlplane.targets.bri.program import Program
from controlplane.targets.bri.reading import rule_set
from p4src.artifacts import find


def deployment(
    topology: Topology, strategy: str = "inart", job: str = "workers=6,ps=2", target: str = "tna", **numbers: Any
) -> Deployment:
    limits = TofinoKind(find(target)).limits
    plan = get_strategy(strategy)(limited(topology, limits), parse_job(job, topology), seed=0)
    return build(plan, topology, limits, job_id=1, epoch=0, beside=Beside(**numbers))


def with_front_panel(topology: Topology, loopback: int = 1) -> Topology:
    """Return the topology with every link of a switch plugged in, connectors in order, and loopback ports after
    them.
    """
    links = {}
    for u, v in topology.links:
        panel = {end: f"{topology.port(end, other)}/0" for end, other in ((u, v), (v, u)) if end in topology.switches}
        links[u, v] = {"front_panel": panel, "speed": "100G", "bandwidth_mbps": topology.bandwidth_mbps(u, v)}
    nodes = {
        switch: {
            "loopback_ports": [
                {"front_panel": f"{len(topology.neighbours(switch)) + 1 + i}/0", "speed": "100G"}
                for i in range(loopback)
            ]
        }
        for switch in topology.switches
    }
    return topology.replace(nodes=nodes, links=links)


def installed(
    program: Program, topology: Topology, device: Callable[[int, int], int], *, target: str
) -> Iterator[tuple[Entry, ...]]:
    """Yield the entries that the testbed's plan puts on each switch, port connector/channel being ``device(connector,
    channel)``.

    The program allows them, and they read back as the rules that they were made of.
    """
    for name, rules in deployment(topology, target=target).rulesets.items():
        panel = Panel.of(topology, name)
        ports = PortMap(panel, {port.name: device(port.connector, port.channel) for port in panel.ports})
        entries = program.entries(rules, ports)
        assert problems(program.schema, entries) == []
        assert difference(rule_set(program, name, entries, ports), rules) == []
        yield tuple(entries)
