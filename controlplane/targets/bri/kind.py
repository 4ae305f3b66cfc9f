"""The kind of Tofino switches, of either generation, over the Barefoot Runtime Interface."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.planner.entries import RuleSet
from controlplane.planner.frontpanel import LANES, SPEEDS_GBPS
from controlplane.planner.plan import Plan
from controlplane.planner.plan.limits import DoesNotFit, Resource
from controlplane.planner.rules import Deployment
from controlplane.planner.topology import Topology, TopologyError
from controlplane.targets.base import SwitchAddress, SwitchTarget
from controlplane.targets.bri.chip import RECIRCULATION_MBPS
from controlplane.targets.bri.entries import Entry, check
from controlplane.targets.bri.ports import FIRST_UNKNOWN, Panel, PortMap
from controlplane.targets.bri.program import Program
from controlplane.targets.bri.schema import local
from controlplane.targets.bri.sde import load_client
from controlplane.targets.bri.target import BriTarget
from controlplane.targets.kind import Kind
from controlplane.targets.show import deployment_json
from p4src.artifacts import Artifact

SLACK = 1e-6
"""Relative tolerance when rates, which are sums of fractions, are compared."""


class TofinoKind(Kind):
    """Tofino 1 or 2 switches with one compiled program, over the Barefoot Runtime Interface. `client` is the SDE's
    client module; without one, entries can be printed, but no switch can be connected."""

    name, architecture = "tofino", "tna"
    help = "Tofino 1 switches over the Barefoot Runtime Interface"
    protocol = "BRI"
    first_cpu_port = FIRST_UNKNOWN
    keeps_registers = True
    front_panel = True

    def __init__(self, artifact: Artifact, client: Any = None) -> None:
        super().__init__(artifact)
        self.program = Program.load(artifact.program)
        self.client = client

    @classmethod
    def to_connect(cls, artifact: Artifact) -> TofinoKind:
        return cls(artifact, load_client())

    def target(self, switch: SwitchAddress, topology: Topology | None = None) -> SwitchTarget:
        panel = Panel.of(topology, switch.name) if topology is not None else None
        return BriTarget(switch, self.program, self.client, panel=panel)

    def check(self, plan: Plan, topology: Topology) -> None:
        """Check what `Kind.check` checks, the chip's ports, and the capacity of the ports through which packets
        recirculate.

        On Tofino 1 every sum passes a loopback port once, so a switch's loopback ports must carry what its aggregation
        points send. With a folded program every contribution recirculates, with half of its values, and each sum
        several times, over the loopback ports and the recirculation ports inside each pipe.
        """
        super().check(plan, topology)
        chip = self.program.chip
        for switch in topology.devices:
            for port in Panel.of(topology, switch).ports:
                if port.speed not in chip.speeds:
                    raise TopologyError(f"switch {switch}: {port}: {chip.name} has {', '.join(chip.speeds)}")
                if port.channel + LANES[port.speed] > chip.lanes:
                    raise TopologyError(f"switch {switch}: {port}: {chip.name} has channels 0 to {chip.lanes - 1}")
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


class Tofino2Kind(TofinoKind):
    name, architecture = "tofino2", "t2na"
    help = "Tofino 2 switches over the Barefoot Runtime Interface"


def planned_entries(program: Program, topology: Topology, rules: RuleSet) -> list[Entry]:
    """Return the switch's entries with front-panel names as ports. Raise TargetError where bf-rt.json does not allow
    one."""
    entries = program.entries(rules, PortMap(Panel.of(topology, rules.switch)))
    check(program.schema, entries, f"switch {rules.switch}")
    return entries


def entry_lines(program: Program, topology: Topology, rules: RuleSet, flows: Mapping[int, str]) -> Iterator[str]:
    """Yield how full the tables are, then one line per entry, each label with the flow that it stands for."""
    entries = planned_entries(program, topology, rules)
    counts = Counter(entry.table for entry in entries)
    full = ", ".join(f"{local(table)} {n}/{program.schema.tables[table].size}" for table, n in counts.items())
    source = os.path.relpath(program.own.source)
    yield f"program {program.name}, {len(entries)} entries, all allowed by {source} ({full})"
    for entry in entries:
        label = {local(name): value for name, value in entry.key}.get("label")
        meaning = f"   # {flows.get(label, 'partial sums')}" if isinstance(label, int) else ""
        yield f"{entry}{meaning}"


def entries_json(program: Program, topology: Topology, rules: RuleSet) -> list[dict[str, Any]]:
    return [entry.to_json() for entry in planned_entries(program, topology, rules)]
