"""Puts a plan on the switches, shows its entries, and removes them.

    inart deploy --topology fattree:k=4 --job workers=8,ps=2 --strategy atp --dry-run
    inart deploy --topology T --job J --strategy S --bmv2 --switches FILE
    inart deploy --tofino --topology topologies/data/testbed_tofino.json --job workers=6,ps=2 --dry-run
    inart deploy remove [JOB] --bmv2 --switches FILE
    inart deploy cabling --topology T --bmv2 --switches FILE [--cpu-port N]

`remove` and `cabling` each have a --help with their own options. `inart serve` installs a plan and is the controller of
its agents. See docs/deploy.md, and docs/tofino.md for --tofino.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from controlplane.cli.cabling import WrongCables, check_cables
from controlplane.cli.options import (
    KINDS,
    DeployError,
    add_job_arguments,
    add_switch_arguments,
    connected,
    given_job,
    given_plan,
    kind_of,
    state_folder,
    target_of,
    wanted_switches,
)
from controlplane.cli.serve import ERRORS
from controlplane.common import command_line
from controlplane.common.log_lines import Log, to_stderr
from controlplane.common.numbers import short
from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import parse_topology
from controlplane.planner.plan import Plan
from controlplane.planner.plan.limits import limited
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology
from controlplane.service.epochs import EpochStore
from controlplane.service.network import Network
from controlplane.service.room import JOB_IDS, deployment_of, found
from controlplane.service.switches import Switches
from controlplane.targets import fabric
from controlplane.targets.base import SwitchTarget
from controlplane.targets.kind import Kind


def install(arguments: argparse.Namespace, topology: Topology | None, log: Log) -> None:
    """Install the plan that the arguments ask for; with --dry-run only print its entries."""
    if topology is None:
        raise DeployError("--topology is missing: a node-link JSON file, fattree:k=4 or testbed")
    if not 0 <= arguments.job_id < JOB_IDS:
        raise DeployError(f"--job-id must be in 0..{JOB_IDS - 1}, got {arguments.job_id}")
    kind = kind_of(arguments)
    # Check the switches file before planning, which may take long.
    switches = [] if arguments.dry_run else wanted_switches(arguments, topology)
    plan = make_plan(arguments, limited(topology, kind.limits))
    if arguments.dry_run:
        show(arguments, plan, topology, kind)
        return
    log.info(
        f"{plan.strategy}: {short(plan.rate_mbps)} Mbit/s planned, "
        f"bottleneck {evaluate(plan, topology).bottleneck.name}"
    )
    epochs = EpochStore(state_folder(arguments, switches))
    labels = epochs.labels()
    with connected(arguments, kind, switches, topology, log, labels=labels) as targets:
        there = found(targets)
        others = [str(number) for number in there if number != arguments.job_id]
        if others:
            log.info(f"entries of job {', '.join(others)} are on the switches, and stay")
        network = Network(topology, kind, targets, epochs=epochs, labels=labels, found=there, log=log)
        _, changes = network.install(plan, arguments.job_id)
        log.info(
            f"installed: {changes} changes on {len(targets)} switches" if changes else "everything was there already"
        )
        if arguments.json:
            done = {"job": plan.job.name, "job_id": arguments.job_id, "rate_mbps": plan.rate_mbps, "changes": changes}
            print(json.dumps(done))


def make_plan(arguments: argparse.Namespace, topology: Topology) -> Plan:
    """Return the plan that the arguments ask for: the one in --plan, or one that --strategy makes for --job."""
    if arguments.plan is not None:
        return given_plan(arguments, topology)
    return get_strategy(arguments.strategy)(topology, given_job(arguments, topology), seed=arguments.seed)


def show(arguments: argparse.Namespace, plan: Plan, topology: Topology, kind: Kind) -> None:
    """Print the entries that the plan would put on the switches."""
    deployment = deployment_of(plan, topology, kind, arguments.job_id)
    deployment = replace(deployment, rulesets=kind.bridged(deployment.rulesets, topology))
    if arguments.json:
        print(json.dumps(kind.json(plan, deployment, topology), indent=2))
    else:
        print("\n".join(kind.lines(plan, deployment, topology)))


def cabling(arguments: argparse.Namespace, topology: Topology | None, log: Log) -> None:
    """Check the cables between the switches."""
    if topology is None:
        raise DeployError("--topology is missing: the file that says where the cables lead")
    check_cables(arguments, topology, log)


def remove(arguments: argparse.Namespace, topology: Topology | None, log: Log) -> None:
    """Remove a job's entries from the switches, or all entries of InArt."""
    which = arguments.which
    if which not in ("", "all") and not which.isdigit():
        raise DeployError(f"remove takes a job's number, or all; got {which!r}")
    of = target_of(arguments)
    if arguments.clear_registers and (of is None or not of.keeps_registers):
        raise DeployError("--clear-registers goes with --tofino")
    if of is not None and of.keeps_registers and topology is None and (which.isdigit() or arguments.clear_registers):
        what = "--clear-registers" if arguments.clear_registers else f"remove {which}"
        raise DeployError(f"{what} needs --topology: which ports loop back is not on the switches")
    kind, switches = kind_of(arguments), wanted_switches(arguments, topology)
    epochs = EpochStore(state_folder(arguments, switches))
    if which != "all" and not epochs.has_secret():
        raise DeployError(
            f"{epochs.folder} has no secret, so the labels on the switches cannot be read: give --topology or --state "
            "as when the job was installed, or remove all"
        )
    labels = epochs.labels() if epochs.has_secret() else None
    with connected(arguments, kind, switches, topology, log, labels=labels) as targets:
        jobs = found(targets)
        every = which in ("", "all")
        removed = jobs if every else {int(which): jobs.get(int(which), {})}
        there = f"the switches hold entries of job {', '.join(map(str, jobs))}" if jobs else "no job has entries there"
        if which == "" and len(jobs) > 1:
            raise DeployError(f"{there}: say which: remove N, or remove all")
        if every:
            done = fabric.remove(targets, log)
            log.info(f"removed {sum(done.values())} entries from {len(done)} switches")
        else:
            if int(which) not in jobs:
                raise DeployError(f"{there}, none of job {which}")
            base = {target.name: target.read() for target in targets if target.runs_program()}
            ours = [target for target in targets if target.name in base]
            changes = Switches(ours, base, jobs, log).remove(int(which))
            log.info(f"removed {changes} entries of job {which}")
        if arguments.clear_registers:
            slots: dict[str, set[int]] = {}
            for rulesets in removed.values():
                for switch, rules in rulesets.items():
                    slots.setdefault(switch, set()).update(rules.slots())
            clear_registers(targets, slots, log)


def clear_registers(targets: Sequence[SwitchTarget], slots: Mapping[str, set[int]], log: Log) -> None:
    """Set the slots that removed jobs used to 0. Raise TargetError where a switch refuses."""
    for one in targets:
        if slots.get(one.name):
            cells = one.clear_slots(slots[one.name])
            log.info(f"switch {one.name}: {len(slots[one.name])} slots cleared ({cells} register cells)")


COMMANDS: dict[str, Callable[[argparse.Namespace, Topology | None, Log], None]] = {
    "": install, "remove": remove, "cabling": cabling,
}  # fmt: skip
"""The function of each word that may stand first on the command line, and that of none."""

HELP = {
    "": __doc__,
    "remove": "Takes a job's entries, or all, off the switches.",
    "cabling": "Says whether the cables between the switches lead where the topology says (needs their CPU ports).",
}


def make_parser(command: str = "") -> argparse.ArgumentParser:
    """Return the parser of a command; without a name, that of the one that installs."""
    parser = command_line.make(f"deploy {command}", HELP[command])
    parser.set_defaults(dry_run=False)
    if command == "remove":
        parser.add_argument(
            "which", nargs="?", default="", metavar="JOB",
            help="the job's number, or all (default: everything, if there is one job)",
        )  # fmt: skip
    what = parser.add_argument_group("what")
    what.add_argument("--topology", metavar="T", help="node-link JSON file, fattree:k=4,bandwidth=20, testbed")
    if not command:
        add_job_arguments(what)
        what.add_argument(
            "--seed", type=int, default=0, help="random seed, for strategies that use one (default: %(default)s)"
        )
        what.add_argument("--job-id", type=int, default=1, metavar="N", help="16-bit number of the job on the wire")
    add_switch_arguments(parser)
    how = parser.add_argument_group("how")
    if not command:
        how.add_argument("--dry-run", action="store_true", help="print every table entry, change nothing")
    command_line.add_json(how, "print what it does, and the log, as JSON")
    if command == "cabling":
        how.add_argument(
            "--cpu-port", type=command_line.whole(0, 511, "a port that the switch has, 0 to 511"), default=64,
            metavar="N", help="port of the switches' CPUs, where packets enter (%(default)s)",
        )  # fmt: skip
    if command == "remove":
        how.add_argument(
            "--clear-registers", action="store_true",
            help="on Tofino: set what the job left in its slots to 0, too (no job needs it)",
        )  # fmt: skip
    how.add_argument("--take-over", action="store_true", help="take the switches from another running controller")
    how.add_argument(
        "--state", type=Path, metavar="DIR",
        help="the network's state folder, with the secret of its labels (default: one for these switches)",
    )  # fmt: skip
    return parser


def check_arguments(arguments: argparse.Namespace, command: str) -> None:
    """Check that no options exclude each other or lack another one that they need; raise DeployError otherwise."""
    if target_of(arguments) is None and not arguments.dry_run:
        raise DeployError(f"say which kind of switches: {KINDS}{'' if command else ', or --dry-run to only print'}")


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    command = words.pop(0) if words and words[0] in ("remove", "cabling") else ""
    arguments = make_parser(command).parse_args(words)

    def work() -> None:
        check_arguments(arguments, command)
        topology = arguments.topology
        topology = parse_topology(topology) if topology is not None else None
        COMMANDS[command](arguments, topology, to_stderr(as_json=arguments.json))

    return command_line.run("deploy", work, (WrongCables, *ERRORS), "run it again, or inart deploy remove")


if __name__ == "__main__":
    sys.exit(main())
