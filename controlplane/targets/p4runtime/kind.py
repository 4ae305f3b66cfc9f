"""The kind of switch that speaks P4Runtime and runs the v1model program: bmv2's simple_switch_grpc, softswitch and
others."""

from __future__ import annotations

from controlplane.planner.plan import Plan
from controlplane.planner.topology import Topology, TopologyError
from controlplane.targets.base import SwitchAddress, SwitchTarget
from controlplane.targets.kind import Kind
from controlplane.targets.p4runtime.program import Program
from controlplane.targets.p4runtime.target import P4RuntimeTarget
from p4src.artifacts import Artifact

LAST_PORT = 510  # v1model's port numbers have 9 bits, and 511 means drop.


class P4RuntimeKind(Kind):
    name = "bmv2"
    help = "P4Runtime switches: bmv2, softswitch or another"
    protocol = "P4Runtime"
    architecture = "v1model"
    default_artifact = "v1model-256"

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        self.program = Program.load(artifact.program, artifact.p4info)

    def check(self, plan: Plan, topology: Topology) -> None:
        """Check what `Kind.check` checks, and that these switches can have the topology's port numbers."""
        super().check(plan, topology)
        for switch in topology.devices:
            for neighbour in topology.neighbours(switch):
                port = topology.port(switch, neighbour)
                if port > LAST_PORT:
                    raise TopologyError(f"switch {switch}: port {port} towards {neighbour}: ports are 1 to {LAST_PORT}")

    def target(self, switch: SwitchAddress, topology: Topology | None = None) -> SwitchTarget:
        return P4RuntimeTarget(switch, self.program)
