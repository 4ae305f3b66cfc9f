"""The options that `deploy` and `serve` share: the switches, their kind and their program, and the job."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from controlplane.common.config_file import SwitchesTable, add_config_argument
from controlplane.common.log_lines import Log
from controlplane.planner.evaluate import evaluate
from controlplane.planner.job import Job, parse_job
from controlplane.planner.plan import Plan
from controlplane.planner.strategies import STRATEGIES
from controlplane.planner.topology import Topology
from controlplane.service.state import default_folder
from controlplane.targets.base import SwitchAddress, SwitchTarget
from controlplane.targets.kind import Kind
from controlplane.targets.registry import TARGETS, artifact, target
from controlplane.targets.secret_labels import SecretLabels
from controlplane.targets.switches_file import connect_targets, load_switches
from p4src.artifacts import ArtifactError

GENERATIONS = {"1": "tofino", "2": "tofino2"}
"""The target that each value of `--tofino` stands for: the chip's generation."""

KINDS = "|".join(f"--{name}" for name in TARGETS if name == GENERATIONS["1"] or name not in GENERATIONS.values())
"""The options that name a kind of switches, in words."""

CONNECT_SECONDS = 15.0
"""Seconds for which the command tries to connect to the switches."""


class DeployError(ValueError):
    """Error: the command cannot do what was asked; the message says what to change."""


def given_plan(arguments: argparse.Namespace, topology: Topology) -> Plan:
    """Return the plan of --plan, once it is checked. Raise DeployError if the topology cannot carry its rate."""
    plan = Plan.load(arguments.plan)
    plan.check(topology)
    feasible = evaluate(plan, topology)
    if plan.rate_mbps > feasible.rate_mbps * (1 + 1e-6):
        raise DeployError(
            f"plan {arguments.plan} sends at {plan.rate_mbps:.6g} Mbit/s, but {feasible.bottleneck.name} only "
            f"carries {feasible.rate_mbps:.6g}: plan again for this topology"
        )
    return plan


def given_job(arguments: argparse.Namespace, topology: Topology) -> Job:
    """Return the job of --job, or the job that the roles in the topology describe."""
    if arguments.job is None and not any(topology.role(server) for server in topology.servers):
        raise DeployError("--job is missing: a job file, or workers=8,ps=2,seed=1; or --plan FILE")
    return parse_job(arguments.job or "", topology)


def check_address(option: str, address: str) -> None:
    """Check that a controller can listen on the option's address; raise DeployError otherwise."""
    if not re.fullmatch(r"unix:.+|.+:\d+", address):
        raise DeployError(f"{option} needs HOST:PORT or unix:PATH, got {address!r}")


def target_of(arguments: argparse.Namespace) -> type[Kind] | None:
    """Return the target that the arguments name, or None if they name none. Raise DeployError if they name several."""
    names = sorted(set(arguments.targets or ()))
    if len(names) > 1:
        raise DeployError(f"{' and '.join(names)} exclude each other: a deployment has one kind of switches")
    return target(names[0]) if names else None


def kind_of(arguments: argparse.Namespace) -> Kind:
    """Return the kind of switches that the arguments ask for, with its program; bmv2 if no target is named.

    Raise DeployError where there is no such program, or SdeMissing where the kind needs an SDE that is not installed.
    """
    of = target_of(arguments) or target("bmv2")
    settings: SwitchesTable = arguments.config.switches
    try:
        program = artifact(of, settings.artifacts)
    except ArtifactError as error:
        raise DeployError(str(error)) from None
    kind = of(program) if arguments.dry_run else of.to_connect(program)
    kind.bridge = settings.bridge
    if settings.cpu_port is not None:
        kind.cpu_port = settings.cpu_port + of.first_cpu_port
    return kind


def wanted_switches(arguments: argparse.Namespace, topology: Topology | None) -> list[SwitchAddress]:
    """Return the switches of the topology, or all switches of the file if there is no topology. Raise DeployError if a
    switch has no address in the file."""
    if arguments.switches is None:
        of = target_of(arguments)
        protocol = of.protocol if of is not None else "P4Runtime"
        raise DeployError(f"--switches FILE is missing: where the {protocol} servers listen (docs/deploy.md)")
    switches = load_switches(arguments.switches)
    if topology is None:
        return list(switches.values())
    missing = [name for name in topology.devices if name not in switches]
    if missing:
        raise DeployError(f"switches file {arguments.switches} lacks {', '.join(missing)} of the topology")
    return [switches[name] for name in topology.devices]


def state_folder(arguments: argparse.Namespace, switches: Sequence[SwitchAddress]) -> Path:
    """Return the network's state folder: that of --state, or the default one of these switches."""
    return arguments.state or default_folder(f"{one.address} {one.device_id}" for one in switches)


@contextmanager
def connected(
    arguments: argparse.Namespace,
    kind: Kind,
    switches: Sequence[SwitchAddress],
    topology: Topology | None,
    log: Log,
    *,
    labels: SecretLabels | None = None,
) -> Iterator[list[SwitchTarget]]:
    """Yield connected targets of the switches, which are closed at the end; raise the errors of `connect_targets`."""
    polite = not arguments.take_over
    targets = connect_targets(switches, kind, CONNECT_SECONDS, log, topology, polite=polite, labels=labels)
    try:
        yield targets
    finally:
        for target in targets:
            target.close()


def _generation(text: str) -> str:
    if text not in GENERATIONS:
        raise argparse.ArgumentTypeError(f"got {text!r}; wanted: {' or '.join(GENERATIONS)}, the chip's generation")
    return GENERATIONS[text]


def add_switch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the switches: their addresses, their kind and their program."""
    where = parser.add_argument_group("where")
    for name in TARGETS:
        if name not in GENERATIONS.values():
            where.add_argument(f"--{name}", dest="targets", action="append_const", const=name, help=target(name).help)
    where.add_argument(
        "--tofino", dest="targets", action="append", nargs="?", type=_generation, const="1", metavar="1|2",
        help=f"{target('tofino').help}; --tofino 2: {target('tofino2').help}",
    )  # fmt: skip
    where.add_argument("--switches", type=Path, metavar="FILE", help='JSON: {"s1": {"address": "h:p", "device_id": 1}}')
    add_config_argument(where)


def add_job_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options for the job and its strategy, other than --seed."""
    parser.add_argument(
        "--job", metavar="J", help="job file, or workers=8,ps=2,seed=1,model=25M (default: the topology's roles)"
    )
    parser.add_argument("--strategy", default="inart", help=f"one of {', '.join(STRATEGIES)} (default: %(default)s)")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="a plan in JSON, instead of --job and --strategy")
