"""Runs an agent or a coordinator from the command line.

    inart overlay coordinator --topology net.json --job job.json --strategy wan --listen 10.0.0.1:9700
    inart overlay agent --coordinator 10.0.0.1:9700 --node h3 --listen 10.0.0.3:0 --values 4M --rounds 5

The agent submits random values, again and again, and checks the results: a trial of the network without training. Each
round is a line of JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from controlplane.common import command_line
from controlplane.common.config_file import OverlayTable, add_config_argument
from controlplane.common.log_lines import dated
from controlplane.common.rpc.tls import add_tls_arguments, credentials_folder, is_local, tls_from
from controlplane.planner.generators import parse_topology
from controlplane.planner.job import Job, JobError, parse_bytes, parse_job
from controlplane.planner.plan.framing import MTU
from controlplane.planner.plan.model import Plan, PlanError
from controlplane.planner.plan.task import CHUNK_VALUES, Sending
from controlplane.planner.strategies import STRATEGIES, Infeasible
from controlplane.planner.strategies.wan.policy import FollowNetwork, Policy
from controlplane.planner.topology import Topology, TopologyError
from overlay.core.addresses import address
from overlay.core.errors import OverlayError
from overlay.core.systems import COPIED_HEADROOM, SELECTABLE, between_sites, make, planned
from overlay.core.tcp import MOST_CONNECTIONS, Connections
from overlay.net.admission import Admission
from overlay.net.agent import Agent
from overlay.net.coordinator import Coordinator
from overlay.net.tls import Security

if TYPE_CHECKING:
    from overlay.net.replication import Replication


def amount(text: str) -> int:
    """Return the number of values in a text such as 4M (4,000,000), for argparse."""
    try:
        value = parse_bytes(text.replace("k", "K"))  # a number of values, written like one of bytes
    except JobError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 (4M, 250k, 1000)")
    return value


def drawn(node_seed: int, round_: int, values: int) -> np.ndarray:
    """Return the values of an agent with this seed in a round: whole numbers, so that every order of addition gives the
    same sum.
    """
    return np.random.default_rng([node_seed, round_]).integers(-1000, 1000, values).astype(np.float32)


def trial(arguments: argparse.Namespace) -> None:
    """Run `overlay agent`: submit random values and print a line of JSON for each round. Raise OverlayError where a
    round fails.
    """
    settings: OverlayTable = arguments.config.overlay
    agent = Agent(
        arguments.coordinator,
        arguments.node,
        listen=arguments.listen,
        advertise=arguments.advertise,
        connections=Connections(settings.connections, settings.most_connections or MOST_CONNECTIONS),
        security=Security.of(tls_from(arguments)),
        log=dated(sys.stderr),
    )
    try:
        agent.wait_joined()
        for round_ in range(arguments.rounds):
            values = drawn(arguments.seed, round_, arguments.values)
            wanted = None
            if arguments.seeds:
                wanted = sum(drawn(seed, round_, arguments.values) for seed in arguments.seeds)
            begin = time.monotonic()
            done = agent.synchronise(values, arguments.timeout)
            seconds = time.monotonic() - begin
            error = 0.0
            if wanted is not None:
                error = float(np.max(np.abs(values - wanted * np.float32(1 / len(arguments.seeds)))))
            line = {"round": round_, "seconds": seconds, "task_seconds": done.seconds, "error": error}
            print(json.dumps(line), flush=True)
        print(json.dumps(agent.statistics()), flush=True)
        agent.leave()
    finally:
        agent.close()


def security(arguments: argparse.Namespace) -> Security | None:
    """Return the TLS of the coordinator. Raise OverlayError when other machines could join without certificates."""
    folder = credentials_folder(arguments.credentials)
    found = Security.of(tls_from(arguments), None if folder is None else Admission(folder))
    host, port = arguments.listen
    if found is None and not arguments.insecure and not is_local(f"{host}:{port}"):
        raise OverlayError(
            f"{host}:{port} leaves this machine: give --credentials DIR (`inart certificates` makes it), or --insecure"
        )
    return found


def replication(topology: Topology, file: Path) -> Replication:
    """Return the multicasts by the switches of a switches file. Raise OverlayError for a file that does not fit the
    topology.
    """
    from controlplane.targets.switches_file import (
        SwitchesFileError,
        load_switches,
    )  # imported only here, as agents do not need them
    from overlay.net.replication import p4runtime
    from p4src.artifacts import ArtifactError

    try:
        known = load_switches(file)
        missing = [name for name in topology.switches if name not in known]
        if missing:
            raise OverlayError(f"switches file {file} lacks {', '.join(missing)} of the topology")
        return p4runtime(topology, [known[name] for name in topology.switches], print)
    except (SwitchesFileError, ArtifactError) as error:
        raise OverlayError(str(error)) from None


def policy_of(arguments: argparse.Namespace, topology: Topology, job: Job) -> Policy:
    """Return the policy of --system, or that of --strategy: rounds with the strategy's trees, replanned around links
    that are found broken. Raise OverlayError, and as strategies do.
    """
    settings: OverlayTable = arguments.config.overlay
    chunk = settings.chunk or CHUNK_VALUES
    if arguments.system is not None:
        if arguments.switches is not None or settings.detours:
            raise OverlayError("--system: --switches and `detours` of the config file need a --strategy instead")
        graph, p = between_sites(topology, job), arguments.p or min(len(job.workers), 5)
        values = max(1, job.model_bytes // 4)
        return make(arguments.system, graph, values, p=p, chunk=chunk, seed=arguments.seed)

    def plan(now: Topology) -> Plan:
        return planned(
            arguments.strategy, now, job, seed=arguments.seed, chunk=chunk, mtu=settings.mtu or MTU,
            loss=settings.loss,
        )  # fmt: skip

    def link(sender: str, receiver: str) -> tuple[str, str]:
        return topology.access_switch(sender), topology.access_switch(receiver)

    replicated = arguments.switches is not None
    sending = Sending(
        chunk, headroom=COPIED_HEADROOM if replicated else 0.0, detours=settings.detours,
        replicated=replicated,
    )  # fmt: skip
    return FollowNetwork(plan, topology, sending, link=link)


def coordinate(arguments: argparse.Namespace) -> None:
    """Run `overlay coordinator` until a signal ends it."""
    topology = parse_topology(arguments.topology)
    job = parse_job(arguments.job, topology)
    switches = None if arguments.switches is None else replication(topology, arguments.switches)
    policy = policy_of(arguments, topology, job)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    log = dated(sys.stdout)
    host, port = arguments.listen
    with Coordinator(
        policy,
        host,
        port,
        security=security(arguments),
        replication=switches,
        probe_values=(arguments.config.overlay.chunk or CHUNK_VALUES) // 2 if arguments.system is not None else None,
        log=log,
        finished=lambda task, seconds: log(f"task {task.number}: {seconds:.3f} s"),
    ) as coordinator:
        what = policy.plan if isinstance(policy, FollowNetwork) else arguments.system
        here = "{}:{}".format(*coordinator.address)
        print(f"{what}\nwaiting for {', '.join(policy.nodes)} at {here}", flush=True)
        stop.wait()


def add_agent(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `overlay agent` and its options."""
    agent = verbs.add_parser("agent", help="submit values, check the sums, say how long it took")
    agent.add_argument(
        "--coordinator", type=address, required=True, metavar="HOST:PORT", help="where the coordinator listens"
    )
    agent.add_argument("--node", required=True, help="this agent's name: a worker of the job")
    agent.add_argument(
        "--listen",
        type=address,
        default=("0.0.0.0", 0),
        metavar="HOST:PORT",
        help="for other agents, who are told the address that the coordinator sees (default: all, at any port)",
    )
    agent.add_argument("--advertise", type=address, metavar="HOST:PORT",
                       help="where other agents reach this one, if elsewhere; port 0: the one of --listen")  # fmt: skip
    agent.add_argument("--values", type=amount, default=1_000_000, help="float32 values a round (4M; default 1M)")
    agent.add_argument("--rounds", type=int, default=1, help="synchronisations (default: %(default)s)")
    agent.add_argument("--seed", type=int, default=0, help="of this agent's values")
    agent.add_argument("--seeds", type=int, nargs="*", default=[], help="of all agents' values: to check the mean")
    agent.add_argument("--timeout", type=float, default=600.0, help="s of a round")
    add_config_argument(agent)
    add_tls_arguments(agent)
    agent.set_defaults(run=trial)


def add_coordinator(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `overlay coordinator` and its options."""
    coordinator = verbs.add_parser("coordinator", help="plan, and tell the agents what to do")
    coordinator.add_argument("--topology", required=True, help="a file, or as for `inart plan`")
    coordinator.add_argument("--job", required=True, help="a file, or as for `inart plan`")
    coordinator.add_argument("--strategy", default="wan", help=f"one of {', '.join(STRATEGIES)} (default: %(default)s)")
    coordinator.add_argument("--system", choices=SELECTABLE, metavar="NAME",
                             help="instead of rounds with a strategy's trees: a system that adapts to what is "
                             f"measured and to who is ready, one of {', '.join(SELECTABLE)}")  # fmt: skip
    coordinator.add_argument("--p", type=amount, metavar="N",
                             help="agents of a group (crew, opr, a2a), or those that a multicast is to reach and its "
                             "sender (selmcast, orpheus); default: 5, or all where they are fewer")  # fmt: skip
    coordinator.add_argument("--seed", type=int, default=0, help="of strategies that draw (default: %(default)s)")
    coordinator.add_argument(
        "--listen",
        type=address,
        default=("127.0.0.1", 9700),
        metavar="HOST:PORT",
        help="for agents (default: 127.0.0.1:9700)",
    )
    coordinator.add_argument("--switches", type=Path, metavar="FILE",
                             help="switches that copy what a plan multicasts (L3), as for `deploy`")  # fmt: skip
    coordinator.add_argument("--insecure", action="store_true", help="let everybody who reaches it join")
    add_config_argument(coordinator)
    add_tls_arguments(coordinator)
    coordinator.set_defaults(run=coordinate)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_line.make("overlay", (__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    add_agent(verbs)
    add_coordinator(verbs)
    arguments = parser.parse_args(argv)
    try:
        arguments.run(arguments)
    except (OverlayError, TopologyError, JobError, PlanError, Infeasible, OSError, ValueError, TimeoutError) as error:
        print(f"overlay: {error or 'no result in time'}", file=sys.stderr)
        return command_line.failed(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
