"""The controller of a network: jobs are added and removed while it runs, and it remembers them over restarts.

    inart serve --topology T --bmv2 --switches FILE --listen HOST:PORT
    inart job add --controller HOST:PORT --job workers=8,ps=2,name=mine
    inart job list --controller HOST:PORT

--job (or --plan) names a job that exists from the start. --no-state keeps no job over a restart, for a trial. See
docs/deploy.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

from controlplane.cli import options
from controlplane.cli.options import (
    KINDS,
    DeployError,
    add_job_arguments,
    add_switch_arguments,
    check_address,
    given_job,
    given_plan,
    kind_of,
    state_folder,
    target_of,
    wanted_switches,
)
from controlplane.cli.pair import lead
from controlplane.cli.reload import Files
from controlplane.common import command_line
from controlplane.common.config_file import ControllerTable
from controlplane.common.descriptors import raise_limit
from controlplane.common.log_lines import to_stderr
from controlplane.common.rpc.client import ControllerError
from controlplane.planner.generators import parse_topology
from controlplane.planner.job import Job
from controlplane.planner.plan import Plan
from controlplane.planner.topology import Topology
from controlplane.service.epochs import EpochStore
from controlplane.service.journal import Journal, JournalHandler
from controlplane.service.listening import Listening, add_listen_arguments, open_listening
from controlplane.service.network import Network, Settings
from controlplane.service.pair.leadership import Leadership
from controlplane.service.pair.shared_state import SharedEpochs, SharedState
from controlplane.service.room import found
from controlplane.service.running import JobsError
from controlplane.service.serving import LEAVING_SECONDS, EndSignal, Serving
from controlplane.service.state import Keeps, Kept, StateError, StateFolder, Stored, resume
from controlplane.service.tenants import QuotasFile, unlimited
from controlplane.targets.base import SwitchAddress, SwitchTarget, TargetError
from controlplane.targets.switches_file import connect_targets

EARLY_LINES = 1000
"""Maximum number of lines from before the journal that are recorded in it."""


def serve(arguments: argparse.Namespace, topology: Topology, log: logging.Logger) -> None:
    """Be the controller until SIGINT or SIGTERM. Raise the exceptions that `main` turns into messages.

    It starts with the stored jobs, if jobs are kept, and the job that the arguments name.
    """
    own: ControllerTable = arguments.config.controller
    kind = kind_of(arguments)
    switches = wanted_switches(arguments, topology)
    early = MemoryHandler(EARLY_LINES, logging.CRITICAL + 1)  # until this process has the folder of the journal
    log.addHandler(early)
    with ExitStack() as stack:
        leadership = None
        if own.store is not None:
            leadership = lead(arguments, log)
            stack.callback(leadership.end)
            # The file may have changed while it waited.
            topology = parse_topology(arguments.topology)
            switches = wanted_switches(arguments, topology)
        folder = state_folder(arguments, switches)
        epochs = SharedEpochs(folder, leadership) if leadership else EpochStore(folder)
        running: list[Network] = []  # whose topology may be another one after a reload
        quotas = (
            QuotasFile(own.quotas, log, lambda: (running[0].topology if running else topology).servers)
            if own.quotas is not None
            else unlimited
        )
        state, kept = None, Keeps()
        if arguments.keeps:
            state = stack.enter_context(SharedState(folder, leadership) if leadership else StateFolder(folder))
        journal = stack.enter_context(closing(_journal(state, log, early)))
        if state is not None:
            kept = resume(state, epochs)
        else:
            epochs.check()
        for stored in kept.jobs:
            stored.plan.check(topology)
        wanted = _first_job(arguments, topology, kept.jobs)
        listening = open_listening(arguments, arguments.serve)
        # Switches are not touched before this line.
        labels = epochs.labels()
        connect = partial(_connect, arguments, leadership, kind=kind, log=log, labels=labels)
        targets = connect(switches, topology=topology)
        for target in targets:
            stack.callback(target.close)
        there = found(targets)
        settings = replace(_settings(arguments), journal=journal, quotas=quotas)
        network = stack.enter_context(
            Network(topology, kind, targets, epochs=epochs, labels=labels, found=there, log=log, settings=settings)
        )
        running.append(network)
        _say_strangers(set(there).difference((one.job_id for one in kept.jobs), kept.begun, [arguments.job_id]), log)
        if state is not None:
            network.start(kept)
            keeper = Kept(state, network.keeps, log)
            network.changed, network.unkept = keeper.save, keeper.problem
            before = f"{len(kept.jobs)} jobs as before" if kept.jobs else "no job yet"
            log.info(f"{before}; jobs are kept in {state.path}")
        files = Files(
            arguments, network, connect=connect, log=log, close=lambda target: stack.callback(target.close),
            switches=lambda: wanted_switches(arguments, parse_topology(arguments.topology)),
        )  # fmt: skip
        network.read_again = files.read_again
        if isinstance(wanted, Plan):
            network.add(network.admissions.admission(wanted, arguments.job_id).plan, job_id=arguments.job_id)
        elif wanted is not None:
            network.launch(wanted, arguments.strategy, job_id=arguments.job_id)
        _answer(arguments, listening, network, log, files.hangup)


def _journal(state: StateFolder | None, log: logging.Logger, early: MemoryHandler) -> Journal:
    """Return the controller's journal, which records the lines of its log from the early ones on."""
    journal = Journal(state.path / "journal" if state is not None else None, log)
    handler = JournalHandler(journal)
    early.setTarget(handler)
    early.close()
    log.removeHandler(early)
    log.addHandler(handler)
    return journal


def _settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings by which jobs are planned, from the options."""
    percent = arguments.config.controller.beside
    beside = None if percent is None else percent / 100
    return Settings(beside=beside)


def _say_strangers(jobs: Collection[int], log: logging.Logger) -> None:
    """Warn of jobs on the switches that this controller does not know."""
    if jobs:
        numbers = ", ".join(map(str, sorted(jobs)))
        log.warning(f"job {numbers} on the switches is none of this controller's: it stays (inart deploy remove N)")


def _connect(
    arguments: argparse.Namespace, leadership: Leadership | None, switches: Sequence[SwitchAddress], **more: Any
) -> list[SwitchTarget]:
    """Return connected targets of switches. A controller that leads takes the switches over from the last leader, any
    other one only with --take-over."""
    polite, confirmed = not arguments.take_over and leadership is None, leadership.confirmed if leadership else None
    return connect_targets(switches, timeout=options.CONNECT_SECONDS, polite=polite, may_connect=confirmed, **more)


def _first_job(arguments: argparse.Namespace, topology: Topology, jobs: Sequence[Stored]) -> Plan | Job | None:
    """Return the job that the arguments name, or its plan; None if they name none, or if it was restored."""
    if arguments.job is None and arguments.plan is None:
        return None
    wanted: Plan | Job
    if arguments.plan is not None:
        wanted = given_plan(arguments, topology)
        strategy, job = wanted.strategy, wanted.job
    else:
        wanted = job = given_job(arguments, topology)
        strategy = arguments.strategy
    before = next((stored for stored in jobs if stored.plan.job.name == job.name), None)
    if before is None:
        return wanted
    if (before.job or before.plan.job, before.plan.strategy) != (job, strategy):
        raise DeployError(
            f"another job named {job.name!r} is there as before: remove it (inart job remove {job.name}), or give this "
            "one another name"
        )
    return None


def _answer(
    arguments: argparse.Namespace,
    listening: Listening,
    network: Network,
    log: logging.Logger,
    hangup: Callable[[], None],
) -> None:
    """Answer on the port that is bound already, until SIGINT or SIGTERM; a second signal ends the process at once."""
    end, address = EndSignal(hangup), arguments.serve
    service = Serving(network, log, listening.access)
    hide = listening.show(network, log)
    try:
        port = service.start(listening.bound)
        if not address.startswith("unix:"):
            address = f"{address.rpartition(':')[0]}:{port}"
        for job in network.jobs:
            configs = job.roster.configs.values()
            workers = sum(config.role == "worker" for config in configs)
            apart, both = len(configs) - workers, sum(config.both_roles for config in configs)
            shared = f" ({both} of the workers are parameter servers, too)" if both else ""
            log.info(f"job {job.name}: waiting for {workers} workers and {apart} parameter servers{shared}")
        print(json.dumps({"serves": address}) if arguments.json else f"controller serves on {address}", flush=True)
        end.wait()
        log.info("stopping; the rules stay on the switches (inart deploy remove takes them off)")
    finally:
        silent = threading.Timer(LEAVING_SECONDS, network.switches.cut)
        silent.daemon = True
        silent.start()
        hide()
        service.close()
        silent.cancel()


def run(arguments: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM. Raise the exceptions that `main` turns into messages."""
    raise_limit()
    log = to_stderr(as_json=arguments.json)
    check_address("--listen", arguments.serve)
    if target_of(arguments) is None:
        raise DeployError(f"say which kind of switches: {KINDS}")
    if not arguments.keeps and (arguments.state is not None or arguments.config.controller.store is not None):
        raise DeployError("--no-state goes with neither --state nor a store: they keep the jobs")
    # A second trial removes what the first one has left of its job on the switches.
    arguments.job_id = None if arguments.keeps else 1
    serve(arguments, parse_topology(arguments.topology), log)


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.make("serve", __doc__)
    parser.add_argument("--topology", required=True, metavar="T", help="node-link JSON file, fattree:k=4, testbed")
    parser.add_argument(
        "--listen",
        dest="serve",
        required=True,
        metavar="HOST:PORT",
        help="address for agents and operators; or unix:PATH",
    )
    parser.add_argument(
        "--state", type=Path, metavar="DIR",
        help="folder of jobs, journal, last epoch and secret (default: one for these switches)",
    )  # fmt: skip
    parser.add_argument(
        "--no-state",
        dest="keeps",
        action="store_false",
        help="keep nothing over a restart, for a trial",
    )
    parser.add_argument("--take-over", action="store_true", help="take the switches from another running controller")
    add_job_arguments(parser.add_argument_group("a job that exists from the start"))
    add_switch_arguments(parser)
    add_listen_arguments(parser)
    command_line.add_json(parser, "print the address, and the log, as JSON")
    parser.set_defaults(dry_run=False)
    return parser


ERRORS = (TargetError, ControllerError, JobsError, StateError, ValueError, OSError)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    return command_line.run("serve", lambda: run(arguments), ERRORS)


if __name__ == "__main__":
    sys.exit(main())
