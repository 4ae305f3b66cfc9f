"""Runs a rank of an MPI program with this node's agent beside it; large collectives then go through the network.

mpirun -H node1,node2 inart mpi --controller HOST:PORT -- ./program                 # with a job that is there
mpirun -H node1,node2 inart run --nodes node1,node2 -- inart mpi -- ./program       # with a job of its own

There is one rank a node. The program is not changed: a library that is loaded before MPI's own (LD_PRELOAD) takes its
MPI_Allreduce, MPI_Reduce_scatter, MPI_Reduce_scatter_block, MPI_Allgather and MPI_Bcast. The exit status is the
program's, or 128 + N when signal N ended it. With $INART_AGENT (unix:PATH), the rank uses an agent that is already
running (inart agent).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from controlplane.common import child, command_line
from controlplane.common.native_build import BuildError
from controlplane.common.rpc.tls import add_tls_arguments, tls_from
from worker_agent.agent import controller_address
from worker_agent.clients.build import mpi_library
from worker_agent.errors import AgentError
from worker_agent.service import AgentSettings, Service

OPERATION_SECONDS = 1800.0
"""Seconds without any progress after which an operation has failed. They are many, because a rank may be late."""


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.make("mpi", __doc__)
    parser.add_argument("--controller", metavar="HOST:PORT", help="default: $INART_CONTROLLER")
    parser.add_argument("--node", metavar="NAME", help="this node (default: the one whose address this machine has)")
    parser.add_argument("--job", metavar="NAME", help="of a node of several jobs (default: $INART_JOB)")
    add_tls_arguments(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help="what is run")
    return parser


@contextmanager
def agent(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the address of this node's agent: $INART_AGENT, or an agent that runs as long as the context.

    Raise AgentError if the agent cannot run.
    """
    if running := os.environ.get("INART_AGENT"):
        yield running
        return
    stop = threading.Event()
    with tempfile.TemporaryDirectory(prefix="inart-mpi-") as folder:
        path = f"{folder}/agent.sock"
        with Service(
            controller_address(arguments.controller),
            path,
            node=arguments.node,
            settings=AgentSettings(tls=tls_from(arguments), operation_timeout=OPERATION_SECONDS, job=arguments.job),
        ) as service:
            thread = threading.Thread(target=service.run, args=(stop,), name="inart-agent")
            thread.start()
            try:
                yield f"unix:{path}"
            finally:
                stop.set()
                thread.join()


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(argv)
    command = command_line.program(arguments.command)
    if not command:
        parser.error("what is to be run? For example: mpirun -H a,b inart mpi -- ./program")
    try:
        before = [str(mpi_library()), *filter(None, [os.environ.get("LD_PRELOAD")])]
        with agent(arguments) as address:
            return child.run(command, os.environ | {"LD_PRELOAD": ":".join(before), "INART_AGENT": address})
    except (AgentError, BuildError, ValueError) as error:
        print(f"inart mpi: {error}", file=sys.stderr)
        return command_line.failed(error)


if __name__ == "__main__":
    sys.exit(main())
