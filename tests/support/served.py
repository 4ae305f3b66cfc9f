"""A network that serves agents whose configurations a test has made: the real controller and one switch in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.log_lines import Log
from controlplane.planner.job import Job
from controlplane.planner.rules import Deployment
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology
from controlplane.service.epochs import EpochStore
from controlplane.service.network import USUALLY, Network, Settings
from controlplane.targets.p4runtime.kind import P4RuntimeKind
from p4src.artifacts import find
from tests.support.memory import MemoryTarget

SWITCH = "switch"
MBPS = 100.0
WORKER, SERVER = "worker", "parameter_server"


def serve(configs: Mapping[str, AgentConfig], folder: Path, log: Log, settings: Settings = USUALLY) -> Network:
    """Serve one job whose agents get these configurations, of which the plan and the switch know nothing."""
    topology = _star(configs)
    roles = {role: tuple(node for node, one in configs.items() if one.role == role) for role in (WORKER, SERVER)}
    job = Job(next(iter(configs.values())).job, roles[WORKER], roles[SERVER], model_bytes=4)
    target, kind = MemoryTarget(SWITCH), P4RuntimeKind(find("v1model", 256))
    network = Network(topology, kind, [target], epochs=EpochStore(folder), log=log, settings=settings)
    plan = get_strategy("lbmm")(topology, job)
    network.run(plan, Deployment({SWITCH: network.switches.rules(1)[SWITCH]}, dict(configs), 1), 1)
    return network


def _star(configs: Mapping[str, AgentConfig]) -> Topology:
    link = {"bandwidth_mbps": MBPS, "delay_ms": 0.0}
    nodes = [{"id": SWITCH, "kind": "switch"}]
    nodes += [{"id": node, "kind": "server", "ip": f"10.9.9.{n}"} for n, node in enumerate(configs, 1)]
    edges = [{"source": SWITCH, "target": node, **link, "ports": {SWITCH: n}} for n, node in enumerate(configs, 1)]
    return Topology.load({"nodes": nodes, "edges": edges})
