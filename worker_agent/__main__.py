"""Command line of the worker: a trial all-reduce, and the agent service for trainers of this machine.

inart allreduce --controller HOST:PORT --bytes 25M --repeat 5
inart agent --controller HOST:PORT --socket /run/inart/agent.sock
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence

from controlplane.common import command_line
from controlplane.common.config_file import AgentTable, add_config_argument
from controlplane.common.inputs import parse_bytes
from controlplane.common.log_lines import dated
from controlplane.common.rpc.tls import tls_from
from worker_agent.agent import add_agent_arguments, connect, controller_address
from worker_agent.errors import AgentError
from worker_agent.fields import FIELDS
from worker_agent.io_options import IoOptions

WAIT_SECONDS = 60.0
"""Seconds to wait for the other agents of the job, and for operations without progress."""


def parse_size(text: str) -> int:
    """Parse "25M" as 25000000; the units are K, M, G and Ki, Mi, Gi. Raise argparse.ArgumentTypeError for others."""
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size <= 0:
        raise argparse.ArgumentTypeError(f"a size is more than 0, got {text!r}")
    return size


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.make("", "Worker of an in-network all-reduce.")
    commands = parser.add_subparsers(dest="command", required=True)
    allreduce = commands.add_parser("allreduce", help="all-reduce generated data; prints time, bandwidth and error")
    allreduce.add_argument("--bytes", type=parse_size, default=25_000_000, metavar="N", help="tensor size (25M)")
    allreduce.add_argument(
        "--repeat", type=int, default=5, metavar="N", help="number of all-reduces (default: %(default)s)"
    )
    allreduce.add_argument(
        "--dtype", choices=("float32", "float16", "bfloat16"), default="float32", help="default: %(default)s"
    )
    allreduce.add_argument(
        "--bits", type=int, choices=tuple(FIELDS), help="bits per value in packets (default: those of its type)"
    )
    allreduce.add_argument("--op", choices=("sum", "mean"), default="sum", help="default: %(default)s")
    allreduce.add_argument("--seed", type=int, default=0, help="seed of the data, the same on all workers")
    command_line.add_json(allreduce, "print one JSON object")
    serve = commands.add_parser(
        "serve", prog="inart agent", help="run the agent for unprivileged trainers on this machine"
    )
    serve.add_argument("--socket", default="/run/inart/agent.sock", metavar="PATH", help="default: %(default)s")
    add_config_argument(serve)
    serve.add_argument("--metrics", metavar="HOST:PORT", help="serve counters for Prometheus here, under /metrics")
    for command in (allreduce, serve):
        add_agent_arguments(command)
    return parser


def run_allreduce(arguments: argparse.Namespace) -> None:
    from worker_agent.trial import Trial, run

    if arguments.repeat < 1:
        raise ValueError("--repeat must be at least 1")
    trial = Trial(arguments.bytes, arguments.repeat, arguments.dtype, arguments.op, arguments.seed, bits=arguments.bits)
    with connect(
        arguments.controller,
        arguments.node,
        WAIT_SECONDS,
        interface=arguments.interface,
        tls=tls_from(arguments),
        operation_timeout=WAIT_SECONDS,
        job=arguments.job,
        take_over=arguments.take_over,
    ) as agent:
        result = run(agent, trial)
    print(json.dumps(result.to_json()) if arguments.json else result, flush=True)


def run_serve(arguments: argparse.Namespace) -> None:
    from worker_agent.native_worker import library
    from worker_agent.prometheus import serve_metrics
    from worker_agent.service import AgentSettings, Permissions, Service

    controller = controller_address(arguments.controller)
    settings: AgentTable = arguments.config.agent
    library()  # The engine may have to be compiled, which a signal ends.
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with Service(
        controller,
        arguments.socket,
        node=arguments.node,
        settings=AgentSettings(
            interface=arguments.interface,
            tls=tls_from(arguments),
            operation_timeout=WAIT_SECONDS,
            job=arguments.job,
        ),
        take_over=arguments.take_over,
        permissions=Permissions(mode=int(settings.mode, 8), group=settings.group),
        log=dated(sys.stderr, "worker_agent"),
    ) as service:
        print(f"agent serves on {arguments.socket}", flush=True)
        if arguments.metrics is None:
            service.run(stop, stays=True)
            return
        port, close = serve_metrics(arguments.metrics, service)
        print(f"metrics on port {port}", flush=True)
        try:
            service.run(stop, stays=True)
        finally:
            close()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        IoOptions.from_environment()
        (run_allreduce if arguments.command == "allreduce" else run_serve)(arguments)
    except (AgentError, TimeoutError, ValueError, OSError) as error:
        print(f"worker_agent: {error}", file=sys.stderr)
        return command_line.failed(error)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
