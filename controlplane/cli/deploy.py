"""Puts a plan on the switches, and runs the controller that hands it to the agents.

    python -m controlplane.deploy --topology fattree:k=4 --job workers=8,ps=2 --strategy atp --dry-run
    python -m controlplane.deploy --topology T --job J --strategy S --bmv2 --switches FILE [--serve HOST:PORT]
    python -m controlplane.deploy --bmv2 --switches FILE --remove
    python -m controlplane.deploy --tofino --topology topologies/data/testbed_tofino.json --job workers=6,ps=2 --dry-run

See docs/deploy.md, and docs/tofino.md for --tofino.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from controlplane.common import command_line
from controlplane.common.rpc.client import ControllerError
from controlplane.common.rpc.tls import tls_from
from controlplane.planner.entries import RuleSet
from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import parse_topology
from controlplane.planner.job import JobError, parse_job
from controlplane.planner.plan import Plan, PlanError
from controlplane.planner.plan.limits import DoesNotFit, limited
from controlplane.planner.strategies import STRATEGIES, Infeasible, get_strategy
from controlplane.planner.topology import Topology, TopologyError
from controlplane.service.controller import Controller
from controlplane.service.end_signal import EndSignal
from controlplane.service.epochs import EpochStore, default_file
from controlplane.service.events import EventLog, with_clock
from controlplane.service.failures import Watch
from controlplane.service.listening import Listening, add_listen_arguments, open_listening
from controlplane.service.network import Network
from controlplane.service.room import JOB_IDS, deployment_of, found
from controlplane.service.running import JobsError
from controlplane.service.switches import Switches
from controlplane.targets import fabric
from controlplane.targets.base import SwitchTarget, TargetError
from controlplane.targets.bri import registers
from controlplane.targets.bri.target import BriTarget
from controlplane.targets.kind import Kind
from controlplane.targets.registry import TARGETS, Target, artifact, target
from controlplane.targets.secret import SecretTarget
from controlplane.targets.switches_file import SwitchAddress, SwitchesFileError, connect_targets, load_switches
from p4src.artifacts import ArtifactError

LEAVING_SECONDS = 0.5
"""How long a controller that ends waits for what switches have not answered."""

GENERATIONS = {"1": "tofino", "2": "tofino2"}
"""What `--tofino N` means, by the chip's generation."""


class DeployError(Exception):
    """The command cannot do what was asked; the message says what to change."""


def make_plan(arguments: argparse.Namespace, topology: Topology) -> Plan:
    """The plan that the arguments ask for: from --plan, or by --strategy for --job."""
    if arguments.plan is not None:
        plan = Plan.load(arguments.plan)
        plan.check(topology)
        feasible = evaluate(plan, topology)
        if plan.rate_mbps > feasible.rate_mbps * (1 + 1e-6):
            raise DeployError(
                f"plan {arguments.plan} sends at {plan.rate_mbps:.6g} Mbit/s, but {feasible.bottleneck.name} only "
                f"carries {feasible.rate_mbps:.6g}: plan again for this topology"
            )
        return plan
    if arguments.job is None and not any(topology.role(server) for server in topology.servers):
        raise DeployError("--job is missing: a job file, or workers=8,ps=2,seed=1; or --plan FILE")
    job = parse_job(arguments.job or "", topology)
    return get_strategy(arguments.strategy)(topology, job, seed=arguments.seed)


def target_of(arguments: argparse.Namespace) -> Target | None:
    """The target that the arguments name; None: none is named. Raises DeployError where they name several."""
    names = sorted(set(arguments.targets or ()))
    if len(names) > 1:
        raise DeployError(f"{' and '.join(names)} exclude each other: a deployment has one kind of switches")
    return target(names[0]) if names else None


def kind_of(arguments: argparse.Namespace) -> Kind:
    """The kind of switches that the arguments ask for, with its program; without a target, as for bmv2. Raises
    ArtifactError, SdeMissing."""
    of = target_of(arguments) or target("bmv2")
    try:
        program = artifact(of, arguments.artifacts)
    except ArtifactError as error:
        raise DeployError(str(error)) from None
    kind = of.kind(program, connect=not arguments.dry_run)
    kind.bridge = arguments.bridge
    if arguments.cpu_port is not None:
        kind.cpu_port = arguments.cpu_port + of.first_cpu_port
    return kind


def serve(arguments: argparse.Namespace, listening: Listening, network: Network, log: EventLog) -> None:
    """Run the controller on the port that it has until SIGINT or SIGTERM; a second one ends it at once."""
    end = EndSignal()
    network.switches.watch()
    controller = Controller(network, log=log, access=listening.access)
    watch = Watch(network, log)
    hide = listening.show(network, log)
    try:
        port = controller.start(listening.bound)
        watch.start()
        where = arguments.serve
        if not where.startswith("unix:"):
            where = f"{where.rpartition(':')[0]}:{port}"
        for job in network.jobs:
            roles = [config.role for config in job.roster.configs.values()]
            workers, roots = roles.count("worker"), roles.count("parameter_server")
            log(f"job {job.name}: waiting for {workers} workers and {roots} parameter servers")
        print(f"controller serves on {where}", flush=True)
        end.wait()
        log("stopping; the rules stay on the switches (deploy --remove takes them off)")
    finally:
        silent = threading.Timer(LEAVING_SECONDS, network.switches.cut)
        silent.daemon = True
        silent.start()
        hide()
        watch.close()
        controller.stop()
        network.close()
        silent.cancel()


def run(arguments: argparse.Namespace) -> None:
    """Do what the arguments say. Raises the exceptions that `main` turns into messages."""
    started = time.monotonic()
    log = EventLog(lambda line: print(with_clock(line, started), file=sys.stderr, flush=True))
    topology = parse_topology(arguments.topology) if arguments.topology is not None else None
    if arguments.remove is not None:
        remove(arguments, topology, log)
        return
    if topology is None:
        raise DeployError("--topology is missing: a node-link JSON file, fattree:k=4 or testbed")
    kind = kind_of(arguments)
    switches: list[SwitchAddress] = []
    listening = None
    epochs = EpochStore(arguments.epoch_file)
    if not arguments.dry_run:  # what can be wrong is found out before planning, which may take long
        switches = wanted_switches(arguments, topology)
        if arguments.serve is not None:
            epochs.check()
            listening = open_listening(arguments, arguments.serve)
    plan = make_plan(arguments, limited(topology, kind.limits))
    deployment = deployment_of(plan, topology, kind, arguments.job_id)
    if arguments.dry_run:
        deployment = replace(deployment, rulesets=kind.bridged(deployment.rulesets, topology))
        if arguments.json:
            print(json.dumps(kind.json(plan, deployment, topology), indent=2))
        else:
            print("\n".join(kind.lines(plan, deployment, topology)))
        return
    if plan.multicasts and arguments.serve is not None:
        raise DeployError(
            f"{plan.strategy} plans multicasts, which agents of the overlay send: python -m overlay coordinator "
            "--switches FILE serves them (docs/overlay.md)"
        )
    log(f"{plan.strategy}: {plan.rate_mbps:.4g} Mbit/s planned, bottleneck {evaluate(plan, topology).bottleneck.name}")
    polite, labels = not arguments.take_over, epochs.labels()
    targets = connect_targets(switches, kind, arguments.timeout, log, topology, polite=polite, labels=labels)
    try:
        others = found(targets)
        own = others.pop(arguments.job_id, {})
        if others:
            log(f"entries of job {', '.join(map(str, others))} are on the switches, and stay")
        there = {**others, arguments.job_id: own}
        network = Network(topology, kind, targets, epochs=epochs, labels=labels, found=there, log=log)
        deployment, changes = network.install(plan, arguments.job_id)
        log(f"installed: {changes} changes on {len(targets)} switches" if changes else "everything was there already")
        if listening is not None:
            network.run(plan, deployment, arguments.job_id)
            serve(arguments, listening, network, log)
    finally:
        for target in targets:
            target.close()


def wanted_switches(arguments: argparse.Namespace, topology: Topology | None) -> list[SwitchAddress]:
    """The switches of the topology (without one: all of the file). Raises DeployError when one has no address."""
    if arguments.switches is None:
        of = target_of(arguments)
        protocol = of.protocol if of is not None else "P4Runtime"
        raise DeployError(f"--switches FILE is missing: where the {protocol} servers listen (docs/deploy.md)")
    switches = load_switches(arguments.switches)
    if topology is None:
        return list(switches.values())
    missing = [name for name in topology.switches if name not in switches]
    if missing:
        raise DeployError(f"switches file {arguments.switches} lacks {', '.join(missing)} of the topology")
    return [switches[name] for name in topology.switches]


def remove(arguments: argparse.Namespace, topology: Topology | None, log: Callable[[str], None]) -> None:
    """Take a job's entries off the switches, or everything of ours."""
    which = arguments.remove
    if which not in ("", "all") and not which.isdigit():
        raise DeployError(f"--remove takes a job's number, or all; got {which!r}")
    of = target_of(arguments)
    if of is not None and of.keeps_registers and topology is None and (which.isdigit() or arguments.clear_registers):
        what = "--clear-registers" if arguments.clear_registers else f"--remove {which}"
        raise DeployError(f"{what} needs --topology: which ports loop back is not on the switches")
    switches = wanted_switches(arguments, topology)
    polite, labels = not arguments.take_over, EpochStore(arguments.epoch_file).labels()
    kind = kind_of(arguments)
    targets = connect_targets(switches, kind, arguments.timeout, log, topology, polite=polite, labels=labels)
    try:
        jobs = found(targets)
        every = which in ("", "all")
        slots = slots_of(jobs if every else {int(which): jobs.get(int(which), {})})
        there = f"the switches hold entries of job {', '.join(map(str, jobs))}" if jobs else "no job has entries there"
        if which == "" and len(jobs) > 1:
            raise DeployError(f"{there}: say which with --remove N, or --remove all")
        if every:
            removed = fabric.remove(targets, log)
            log(f"removed {sum(one.changes for one in removed)} entries from {len(removed)} switches")
        else:
            if int(which) not in jobs:
                raise DeployError(f"{there}, none of job {which}")
            base = {target.name: target.read() for target in targets if target.runs_program()}
            ours = [target for target in targets if target.name in base]
            changes = Switches(ours, base, jobs, log).remove(int(which))
            log(f"removed {changes} entries of job {which}")
        if arguments.clear_registers:
            clear_registers(targets, slots, log)
    finally:
        for target in targets:
            target.close()


def slots_of(jobs: Mapping[int, Mapping[str, RuleSet]]) -> dict[str, set[int]]:
    """The slots that jobs have, by switch."""
    found: dict[str, set[int]] = {}
    for rulesets in jobs.values():
        for switch, rules in rulesets.items():
            found.setdefault(switch, set()).update(registers.slots_of(rules))
    return found


def clear_registers(
    targets: Sequence[SwitchTarget], slots: Mapping[str, set[int]], log: Callable[[str], None]
) -> None:
    """Set what removed jobs have left in their slots to 0. Raises TargetError."""
    for one in targets:
        switch = one.target if isinstance(one, SecretTarget) else one
        if isinstance(switch, BriTarget) and slots.get(one.name):
            cells = switch.clear_slots(slots[one.name])
            log(f"switch {one.name}: {len(slots[one.name])} slots cleared ({cells} register cells)")


def _generation(text: str) -> str:
    if text not in GENERATIONS:
        raise argparse.ArgumentTypeError(f"got {text!r}; wanted: {' or '.join(GENERATIONS)}, the chip's generation")
    return GENERATIONS[text]


def add_switch_arguments(parser: argparse.ArgumentParser) -> None:
    """Which switches, of which kind, with which program."""
    where = parser.add_argument_group("where")
    where.add_argument(
        "--target", dest="targets", action="append", choices=tuple(TARGETS), metavar="NAME",
        help="; ".join(f"{name}: {target(name).help}" for name in TARGETS),
    )  # fmt: skip
    where.add_argument("--bmv2", dest="targets", action="append_const", const="bmv2", help="short for --target bmv2")
    where.add_argument(
        "--tofino", dest="targets", action="append", nargs="?", type=_generation, const="1", metavar="1|2",
        help="short for --target tofino; --tofino 2: for --target tofino2",
    )  # fmt: skip
    where.add_argument("--switches", type=Path, metavar="FILE", help='JSON: {"s1": {"address": "h:p", "device_id": 1}}')
    where.add_argument(
        "--artifacts",
        metavar="NAME",
        help="compiled program (default: that of the target)",
    )
    where.add_argument("--timeout", type=float, default=15.0, metavar="S", help="for connecting to the switches")
    where.add_argument(
        "--bridge", action="store_true", help="pass ARP, IPv6, VLAN frames and multicast on (default: drop them)"
    )
    where.add_argument(
        "--cpu-port", type=int, metavar="N", help="with --bridge: where what is for a switch itself goes (LLDP)"
    )


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.make("controlplane.deploy", __doc__)
    what = parser.add_argument_group("what")
    what.add_argument("--topology", metavar="T", help="node-link JSON file, fattree:k=4,bandwidth=20, testbed")
    what.add_argument(
        "--job", metavar="J", help="job file, or workers=8,ps=2,seed=1,model=25M (default: the topology's roles)"
    )
    what.add_argument("--strategy", default="inart", help=f"one of {', '.join(STRATEGIES)} (default: %(default)s)")
    what.add_argument("--seed", type=int, default=0, help="of strategies that draw (default: %(default)s)")
    what.add_argument("--plan", type=Path, metavar="FILE", help="a plan in JSON, instead of --job and --strategy")
    what.add_argument("--job-id", type=int, default=1, metavar="N", help="16-bit number of the job on the wire")
    add_switch_arguments(parser)
    how = parser.add_argument_group("how")
    how.add_argument("--dry-run", action="store_true", help="print every table entry, touch nothing")
    how.add_argument("--json", action="store_true", help="with --dry-run: as JSON")
    how.add_argument(
        "--remove",
        nargs="?",
        const="",
        metavar="JOB",
        help="take a job (its number) or all off the switches again; without a value: everything, if there is one job",
    )
    how.add_argument(
        "--clear-registers",
        action="store_true",
        help="with --remove on Tofino: set what the job left in its slots to 0, too (no job needs it)",
    )
    how.add_argument("--take-over", action="store_true", help="take the switches from a controller that lives")
    how.add_argument("--serve", metavar="HOST:PORT", help="stay and be the controller of the agents")
    how.add_argument("--epoch-file", type=Path, metavar="FILE", help=f"last epoch (default: {default_file()})")
    add_listen_arguments(parser)
    return parser


def check_arguments(arguments: argparse.Namespace) -> None:
    """Raises DeployError for combinations that make no sense."""
    of = target_of(arguments)
    if of is None and not arguments.dry_run:
        raise DeployError(f"say where to: --target {'|'.join(TARGETS)}, or --dry-run to only print")
    if arguments.dry_run and (arguments.remove is not None or arguments.serve is not None):
        raise DeployError("--dry-run goes with neither --remove nor --serve")
    if arguments.remove is not None and arguments.serve is not None:
        raise DeployError("--remove and --serve exclude each other")
    if arguments.clear_registers and (arguments.remove is None or of is None or not of.keeps_registers):
        raise DeployError("--clear-registers goes with --remove and --tofino")
    if arguments.json and not arguments.dry_run:
        raise DeployError("--json needs --dry-run")
    if arguments.serve is not None and not re.fullmatch(r"unix:.+|.+:\d+", arguments.serve):
        raise DeployError(f"--serve needs HOST:PORT or unix:PATH, got {arguments.serve!r}")
    if arguments.cpu_port is not None and not (arguments.bridge and 0 <= arguments.cpu_port < 1 << 9):
        raise DeployError("--cpu-port needs --bridge, and a port that the switch has: 0 to 511")
    if not 0 <= arguments.job_id < JOB_IDS:
        raise DeployError(f"--job-id must be in 0..{JOB_IDS - 1}, got {arguments.job_id}")
    tls_from(arguments)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        check_arguments(arguments)
        run(arguments)
    except BrokenPipeError:
        command_line.end_output()
    except (
        DeployError, SwitchesFileError, TopologyError, JobError, PlanError, Infeasible, DoesNotFit, TargetError,
        ControllerError, JobsError, ArtifactError, ValueError, OSError,
    ) as error:  # fmt: skip
        print(f"deploy: {error}", file=sys.stderr)
        return 2 if isinstance(error, DeployError | SwitchesFileError) else 1
    except KeyboardInterrupt as interrupt:
        print(f"deploy: interrupted; {str(interrupt) or 'run it again, or with --remove'}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
