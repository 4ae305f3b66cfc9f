"""The controller of a network: jobs are added to it and removed while it runs, and it remembers them.

    python -m controlplane.serve --topology T --bmv2 --switches FILE --listen HOST:PORT
    python -m controlplane.controller job add --controller HOST:PORT --job workers=8,ps=2,name=mine
    python -m controlplane.controller job list --controller HOST:PORT

One job that is there from the start: python -m controlplane.deploy --serve. See docs/deploy.md.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from controlplane.cli.deploy import (
    DeployError,
    add_switch_arguments,
    kind_of,
    serve,
    target_of,
    wanted_switches,
)
from controlplane.common import command_line
from controlplane.common.rpc.client import ControllerError
from controlplane.planner.generators import parse_topology
from controlplane.planner.topology import TopologyError
from controlplane.service.epochs import EpochStore, default_file
from controlplane.service.events import EventLog, with_clock
from controlplane.service.listening import add_listen_arguments, open_listening
from controlplane.service.network import Network
from controlplane.service.room import found
from controlplane.service.running import JobsError
from controlplane.service.settled import MOST, STEADY
from controlplane.service.state import StateError, StateFolder, default_folder
from controlplane.targets.base import TargetError
from controlplane.targets.registry import TARGETS
from controlplane.targets.switches_file import SwitchesFileError, connect_targets
from p4src.artifacts import ArtifactError


def run(arguments: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM. Raises the exceptions that `main` turns into messages."""
    started = time.monotonic()
    log = EventLog(lambda line: print(with_clock(line, started), file=sys.stderr, flush=True))
    if not re.fullmatch(r"unix:.+|.+:\d+", arguments.serve):
        raise DeployError(f"--listen needs HOST:PORT or unix:PATH, got {arguments.serve!r}")
    if not 0 <= arguments.steady < 100 or arguments.most_changes < 1:
        raise DeployError("--steady is a part in percent, from 0 to below 100; --most-changes is at least 1")
    if target_of(arguments) is None:
        raise DeployError(f"say which kind of switches: --target {'|'.join(TARGETS)}")
    topology = parse_topology(arguments.topology)
    kind = kind_of(arguments)
    switches = wanted_switches(arguments, topology)
    epochs = EpochStore(arguments.epoch_file)
    epochs.check()
    folder = arguments.state or default_folder(f"{switch.address} {switch.device_id}" for switch in switches)
    with StateFolder(folder) as state:
        jobs = state.load()
        for stored in jobs:
            stored.plan.check(topology)
        listening = open_listening(arguments, arguments.serve)
        # From here on switches are touched.
        polite, labels = not arguments.take_over, epochs.labels()
        targets = connect_targets(switches, kind, arguments.timeout, log, topology, polite=polite, labels=labels)
        try:
            there = found(targets)
            network = Network(
                topology, kind, targets, epochs=epochs, labels=labels, found=there, log=log,
                steady=arguments.steady / 100, most=arguments.most_changes,
                journal=lambda job_id: state.journal(job_id, log),
            )  # fmt: skip
            strangers = sorted(set(there) - {stored.job_id for stored in jobs})
            if strangers:
                numbers = ", ".join(map(str, strangers))
                log(f"job {numbers} on the switches is none of this controller's: it stays (deploy --remove N)")
            network.start(jobs, state.kept_off())
            kept = state.keeper(lambda: (network.stored(), network.taken_out()), log)
            network.changed, network.unkept = kept.save, kept.problem
            log(f"{len(jobs)} jobs as before, kept in {folder}" if jobs else f"no job yet; jobs are kept in {folder}")
            serve(arguments, listening, network, log)
        finally:
            for target in targets:
                target.close()


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.make("controlplane.serve", __doc__)
    parser.add_argument("--topology", required=True, metavar="T", help="node-link JSON file, fattree:k=4, testbed")
    parser.add_argument(
        "--listen", dest="serve", required=True, metavar="HOST:PORT", help="for agents and operators; or unix:PATH"
    )
    parser.add_argument("--state", type=Path, metavar="DIR", help="keeps the jobs (default: by the switches)")
    parser.add_argument("--epoch-file", type=Path, metavar="FILE", help=f"last epoch (default: {default_file()})")
    parser.add_argument(
        "--steady", type=float, default=100 * STEADY, metavar="PERCENT",
        help="jobs that share keep their plans this near to their fair rates (%(default)g; 0: always fair)",
    )  # fmt: skip
    parser.add_argument(
        "--most-changes", type=int, default=MOST, metavar="N",
        help="of jobs, in one step, when one comes or goes (%(default)s); the steps follow each other",
    )  # fmt: skip
    parser.add_argument("--take-over", action="store_true", help="take the switches from a controller that lives")
    add_switch_arguments(parser)
    add_listen_arguments(parser)
    parser.set_defaults(dry_run=False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        run(arguments)
    except BrokenPipeError:
        command_line.end_output()
    except (
        DeployError, SwitchesFileError, TopologyError, TargetError, ControllerError, JobsError, StateError,
        ArtifactError, ValueError, OSError,
    ) as error:  # fmt: skip
        print(f"serve: {error}", file=sys.stderr)
        return 2 if isinstance(error, DeployError | SwitchesFileError) else 1
    except KeyboardInterrupt:
        print("serve: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
