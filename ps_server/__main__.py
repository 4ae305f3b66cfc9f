"""Runs a parameter server as a process, which joins the controller and becomes the root of trees.

inart ps --controller HOST:PORT [--node NAME]
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any, Literal

from controlplane.common import command_line
from controlplane.common.log_lines import dated
from controlplane.common.rpc.tls import tls_from
from ps_server.server import library
from ps_server.versions import Versions
from worker_agent.agent import add_agent_arguments, controller_address
from worker_agent.errors import AgentError
from worker_agent.io_options import IoOptions
from worker_agent.member import Member


class ParameterServer(Member):
    """A parameter server of a job, which serves until `close`."""

    role: Literal["parameter_server"] = "parameter_server"

    def __init__(self, controller: str, node: str | None = None, **options: Any) -> None:
        self.versions = Versions()
        super().__init__(controller, node, self.versions, **options)


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.make("ps", "Parameter server: joins the controller and serves its trees.")
    add_agent_arguments(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    stop = threading.Event()
    try:
        IoOptions.from_environment()
        controller = controller_address(arguments.controller)
        library()  # The engine may have to be compiled, which a signal ends.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        server = ParameterServer(
            controller,
            arguments.node,
            interface=arguments.interface,
            tls=tls_from(arguments),
            job=arguments.job,
            take_over=arguments.take_over,
            log=dated(sys.stderr, "ps_server"),
        )
    except (AgentError, ValueError) as error:
        print(f"ps_server: {error}", file=sys.stderr)
        return command_line.failed(error)
    except KeyboardInterrupt:
        return 130
    try:
        while not stop.is_set():
            server.wait_change(0.2)
    except AgentError as error:
        print(f"ps_server: {error}", file=sys.stderr)
        return 1
    finally:
        server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
