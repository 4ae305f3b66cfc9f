"""The properties of a kind of switch that a deployment needs: its program, its limits, and how entries are shown.

`Kind` is what every target has in common; `controlplane/targets/<target>/kind.py` has each target's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.planner.bridging import bridged
from controlplane.planner.entries import RuleSet
from controlplane.planner.plan import Plan
from controlplane.planner.plan.limits import Limits, check_fits, limited
from controlplane.planner.rules import Deployment
from controlplane.planner.topology import Topology
from controlplane.planner.topology_cables import hangs_on_switches
from controlplane.targets.base import SwitchAddress, SwitchTarget
from controlplane.targets.show import deployment_json, deployment_lines, rule_lines
from p4src.artifacts import Artifact


class Kind(ABC):
    """A kind of switch with its compiled program. The attributes of the class are for command lines, which need them
    before they connect to any switch."""

    name: str
    help: str
    """Words for `--help`: which switches, over which protocol."""
    protocol: str
    """The protocol of the switches' servers, as messages call it."""
    architecture: str
    """The architecture that the programs are compiled for, as artifacts call it ("v1model")."""
    default_artifact = ""
    """The default compiled program; "" for the one with as many values per packet as protocol.json says."""
    first_cpu_port = 0
    """The number added to a CPU port to get the port's number in rules."""
    keeps_registers = False
    """Whether `--clear-registers` can clear what a removed job has left in its slots."""
    front_panel = False
    """Whether the switches are hardware, whose ports are configured as the topology says."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.bridge = False
        self.cpu_port: int | None = None

    @classmethod
    def to_connect(cls, artifact: Artifact) -> Kind:
        """Return the kind with this program, for switches that will be connected to, and not only printed: the
        protocol's client must be installed. Raise SdeMissing where it is not."""
        return cls(artifact)

    def bridged(self, rulesets: dict[str, RuleSet], topology: Topology) -> dict[str, RuleSet]:
        """Return every switch's rules, with the rules for bridging added if bridging is wanted."""
        return bridged(topology, rulesets, self.cpu_port) if self.bridge else rulesets

    @property
    def limits(self) -> Limits:
        """The limits of a switch with this program."""
        manifest = self.artifact.manifest
        return Limits.of_program(manifest.target, manifest, front_panel=self.front_panel)

    @abstractmethod
    def target(self, switch: SwitchAddress, topology: Topology | None = None) -> SwitchTarget:
        """Return a switch that is not connected yet. Without a topology, all our entries can be read and removed."""

    def check(self, plan: Plan, topology: Topology) -> None:
        """Check that the switches can hold and carry the plan. Raise DoesNotFit where they cannot, and TopologyError
        where the topology does not suit them."""
        for node in (*plan.job.workers, *plan.job.parameter_servers):
            hangs_on_switches(topology, node)
        check_fits(plan, limited(topology, self.limits))

    def lines(self, plan: Plan, deployment: Deployment, topology: Topology) -> Iterator[str]:
        """Yield the lines that a dry run prints."""
        return deployment_lines(plan, deployment, lambda rules, flows: self.switch_lines(rules, flows, topology))

    def switch_lines(self, rules: RuleSet, flows: Mapping[int, str], topology: Topology) -> Iterator[str]:
        return rule_lines(rules, flows)

    def json(self, plan: Plan, deployment: Deployment, topology: Topology) -> dict[str, Any]:
        """Return what a dry run shows as plain data."""
        return deployment_json(plan, deployment)
