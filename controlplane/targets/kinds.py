"""The kinds of switches that a deployment can go to, and what differs between them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.common.rpc.tls import Tls
from controlplane.planner.bridging import bridged
from controlplane.planner.frontpanel import LANES, SPEEDS_GBPS
from controlplane.planner.plan import Plan
from controlplane.planner.plan.limits import DoesNotFit, Limits, Resource, check_fits, limited
from controlplane.planner.rules import Deployment, RuleSet
from controlplane.planner.topology import Topology, TopologyError
from controlplane.targets.base import SwitchTarget
from controlplane.targets.bri.chip import RECIRCULATION_MBPS
from controlplane.targets.bri.ports import Panel
from controlplane.targets.bri.program import Program as BriProgram
from controlplane.targets.bri.sde import load_client
from controlplane.targets.bri.show import entries_json, entry_lines
from controlplane.targets.bri.target import BriTarget
from controlplane.targets.p4runtime.program import Program
from controlplane.targets.p4runtime.target import P4RuntimeTarget
from controlplane.targets.show import deployment_json, deployment_lines, rule_lines
from p4src.artifacts import Artifact

LAST_PORT = 510  # v1model has 9 bits, and 511 drops
SLACK = 1e-6
"""Relative; rates are sums of fractions."""


class Kind(ABC):
    """One kind of switches, with the compiled program that they run."""

    front_panel = False
    """Whether the switches are hardware, whose ports are configured as the topology says."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.bridge = False
        self.cpu_port: int | None = None

    def bridged(self, rulesets: dict[str, RuleSet], topology: Topology) -> dict[str, RuleSet]:
        """The rules of every switch with what bridges, where that is wanted."""
        return bridged(topology, rulesets, self.cpu_port) if self.bridge else rulesets

    @property
    def limits(self) -> Limits:
        """What fits on a switch with this program."""
        manifest = self.artifact.manifest
        return Limits.of_program(manifest.target, manifest, front_panel=self.front_panel)

    @abstractmethod
    def target(
        self, name: str, address: str, device_id: int, *, tls: Tls | None = None, topology: Topology | None = None
    ) -> SwitchTarget:
        """A switch, not connected yet. Without a topology everything of ours can be read and removed."""

    def check(self, plan: Plan, topology: Topology) -> None:
        """Raises DoesNotFit where switches cannot hold or carry the plan, TopologyError where it is not for them."""
        for node in (*plan.job.workers, *plan.job.parameter_servers):
            topology.access_switch(node)
        check_fits(plan, limited(topology, self.limits))

    def lines(self, plan: Plan, deployment: Deployment, topology: Topology) -> Iterator[str]:
        """What a dry run prints."""
        return deployment_lines(plan, deployment, lambda rules, flows: self.switch_lines(rules, flows, topology))

    def switch_lines(self, rules: RuleSet, flows: Mapping[int, str], topology: Topology) -> Iterator[str]:
        return rule_lines(rules, flows)

    def json(self, plan: Plan, deployment: Deployment, topology: Topology) -> dict[str, Any]:
        """The same as data."""
        return deployment_json(plan, deployment)


class P4RuntimeKind(Kind):
    """bmv2's simple_switch_grpc, softswitch and others."""

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        self.program = Program.load(artifact.program, artifact.p4info)

    def check(self, plan: Plan, topology: Topology) -> None:
        """Also where a port has a number that these switches do not have."""
        super().check(plan, topology)
        for switch in topology.switches:
            for neighbour in topology.neighbours(switch):
                port = topology.port(switch, neighbour)
                if port > LAST_PORT:
                    raise TopologyError(f"switch {switch}: port {port} towards {neighbour}: ports are 1 to {LAST_PORT}")

    def target(
        self, name: str, address: str, device_id: int, *, tls: Tls | None = None, topology: Topology | None = None
    ) -> SwitchTarget:
        return P4RuntimeTarget(name, address, device_id, self.program, tls=tls)


class TofinoKind(Kind):
    """Tofino 1 or 2 over the Barefoot Runtime Interface, as the program is.

    client: the SDE's; None: nothing can be connected, only printed.
    """

    front_panel = True

    def __init__(self, artifact: Artifact, client: Any = None) -> None:
        super().__init__(artifact)
        self.program = BriProgram.load(artifact.program)
        self.client = client

    @classmethod
    def with_sde(cls, artifact: Artifact) -> TofinoKind:
        """Raises SdeMissing."""
        return cls(artifact, load_client())

    def target(
        self, name: str, address: str, device_id: int, *, tls: Tls | None = None, topology: Topology | None = None
    ) -> SwitchTarget:
        panel = Panel.of(topology, name) if topology is not None else None
        return BriTarget(name, address, device_id, self.program, self.client, panel=panel, tls=tls)

    def check(self, plan: Plan, topology: Topology) -> None:
        """Also what ports the chip has. On Tofino 1 every sum passes a loopback port once: those of a switch must carry
        what its aggregation points send. With a folded program every contribution does, with half of its values, and
        the sum more often: that is for loopback ports and those inside one pipe."""
        super().check(plan, topology)
        chip = self.program.chip
        for switch in topology.switches:
            for port in Panel.of(topology, switch).ports:
                if port.speed not in chip.speeds:
                    raise TopologyError(f"switch {switch}: port {port}: {chip.name} has {', '.join(chip.speeds)}")
                if port.channel + LANES[port.speed] > chip.lanes:
                    raise TopologyError(f"switch {switch}: port {port}: {chip.name} has channels 0 to {chip.lanes - 1}")
        if not chip.rounds:
            return
        sums: dict[str, float] = {}
        for tree in plan.trees:
            flows = Counter(flow.end for flow in tree.flows)
            for point in tree.points:
                contribution, beside = chip.round_parts
                passes = contribution * flows[point] + beside
                sums[point] = sums.get(point, 0.0) + plan.rate_mbps * tree.share * passes
        for switch, mbps in sums.items():
            available = sum(1000 * SPEEDS_GBPS[port.speed] for port in topology.loopback_ports(switch))
            available += RECIRCULATION_MBPS * len(chip.recirculation)
            if mbps > available * (1 + SLACK):
                raise DoesNotFit(switch, Resource.LOOPBACK, math.ceil(mbps), available)

    def switch_lines(self, rules: RuleSet, flows: Mapping[int, str], topology: Topology) -> Iterator[str]:
        return entry_lines(self.program, topology, rules, flows)

    def json(self, plan: Plan, deployment: Deployment, topology: Topology) -> dict[str, Any]:
        made = deployment_json(plan, deployment)
        for name, rules in deployment.rulesets.items():
            made["switches"][name]["entries"] = entries_json(self.program, topology, rules)
        return made
