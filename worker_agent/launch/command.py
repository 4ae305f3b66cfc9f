"""Runs a training command on this node of a job that is in the network for as long as the command runs.

inart run --nodes node1,node2 -- torchrun --nnodes 2 ... train.py
srun inart run -- torchrun ...                                      # under Slurm the nodes are known

Start the same line on every node. The first node of the list adds the job and removes it when its command has ended,
also after Ctrl-C, an error or `kill -9`; the others wait for it. The command gets INART_CONTROLLER and INART_JOB, which
the hook and the backend read. The exit status is the command's, 128 + N when signal N ended it, or 1 when there is no
job.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from controlplane.common import child, command_line
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.channels import controller_address
from controlplane.common.rpc.client import STATUS_SECONDS, ControllerError, ask
from controlplane.common.rpc.tls import Tls, credentials
from worker_agent.address import addresses
from worker_agent.launch.adding import patiently
from worker_agent.launch.machines import Machines, find_machines, resolve
from worker_agent.launch.wishes import gets

LOOK_SECONDS = 0.3
"""Seconds between two looks of a node at whether its job has been added, or whether the others have left it."""
LEAVING_SECONDS = 10.0
"""Seconds for which the first node, whose command has ended well, keeps the job for others whose commands still run."""
HOLDER_SECONDS = 90.0
NO_JOB, INTERRUPTED = 1, 130


class NoJob(Exception):
    """The command has no job in the network; the message says why and what to do."""


@dataclass(frozen=True)
class Where:
    """The controller that is asked, the credentials, and `node`, this node's name in the topology."""

    controller: str
    tls: Tls | None
    node: str

    def status(self, job: str = "") -> pb.StatusReply:
        """Return the controller's status. Raise ControllerError where it does not answer."""
        reply: pb.StatusReply = ask(self.controller, "status", pb.StatusRequest(job=job), self.tls, STATUS_SECONDS)
        return reply


def say(words: str) -> None:
    """Print words for the user to standard error, beside the output of the command."""
    print(f"inart run: {words}", file=sys.stderr, flush=True)


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.make("run", __doc__)
    parser.add_argument("--controller", metavar="HOST:PORT", help="default: $INART_CONTROLLER")
    parser.add_argument(
        "--nodes", metavar="A,B,C",
        help="all nodes of the job, the same list everywhere: servers of the topology, host names, or a[1-8] "
        "(default: Slurm's)",
    )  # fmt: skip
    parser.add_argument("--node", metavar="NAME", help="this node (default: the one whose address this machine has)")
    parser.add_argument(
        "--job", default="", metavar="WORDS",
        help="more of the job, as `inart job add` takes it: name=x, ps=2 (servers of their own that run `inart ps`; "
        "default: the nodes themselves), at_least=6, gathers=1, model=100M",
    )  # fmt: skip
    parser.add_argument("--strategy", default="inart", help="how it is planned (default: %(default)s)")
    parser.add_argument("--share", action="store_true", help="plan all jobs together, fairly")
    parser.add_argument(
        "--wait", type=float, default=60.0, metavar="SECONDS",
        help="how long the other nodes wait for the first one's job (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--or-gloo", action="store_true", help="without a job run the command all the same, over torch.distributed"
    )
    parser.add_argument(
        "--credentials", type=Path, metavar="DIR", help="the node's folder (default: $INART_CREDENTIALS)"
    )
    parser.add_argument(
        "--operator", type=Path, metavar="DIR", help="an operator's folder, to add the job (default: --credentials)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="what is run")
    return parser


def locate(arguments: argparse.Namespace) -> Where:
    """Find out which node this machine is.

    Raise NoJob where it is none of the topology, ControllerError where no controller answers, and ValueError for bad
    credentials.
    """
    tls, own = credentials(arguments.credentials), list(addresses())
    request = pb.StatusRequest(addresses=own)
    several = "," in arguments.controller  # Another controller may be about to take over.
    reply = patiently(
        lambda: ask(arguments.controller, "status", request, tls, STATUS_SECONDS), None if several else 0.0
    )
    node = arguments.node or reply.node
    if not node:
        raise NoJob(f"no server of the controller's topology has an address of this machine ({', '.join(own)})")
    return Where(arguments.controller, tls, node)


def job_name(words: str, machines: Machines) -> str:
    """Return the job's name, the same on all nodes."""
    given = [word.removeprefix("name=") for word in words.split(",") if word.startswith("name=")]
    return given[0] if given else machines.job


def find_job(where: Where, name: str) -> pb.StatusReply | None:
    """Return the status of the job with this name; None where there is none. Raise NoJob where this node has no part in
    it.
    """
    if all(job.name != name for job in where.status().jobs):
        return None
    try:
        reply = where.status(name)
    except ControllerError:  # The job was removed in between, or the controller is away: the next look tells.
        return None
    nodes = [agent.node for agent in reply.agents]
    if where.node not in nodes:
        raise NoJob(
            f"a job {name} is there, and {where.node} is none of its nodes ({', '.join(nodes)}): give this one another "
            f"name on all nodes (--job name=...), or remove that one (inart job remove {name})"
        )
    return reply


def wait_for_job(where: Where, name: str, seconds: float) -> None:
    """Wait until the first node has added the job. Raise NoJob where that takes too long, ControllerError where no
    controller answers.
    """
    deadline = time.monotonic() + seconds

    def look() -> pb.StatusReply | None:
        return find_job(where, name)

    while patiently(look, max(0.0, deadline - time.monotonic())) is None:
        if time.monotonic() > deadline:
            raise NoJob(f"there is no job {name} after {seconds:g} s: its first node adds it, and says why it cannot")
        time.sleep(LOOK_SECONDS)


class AddedJob:
    """A job that this node has added, and that is removed when this process ends (holder.py)."""

    def __init__(self, controller: str, request: pb.AddJobRequest, folder: Path | None) -> None:
        """Add the job. Raise NoJob where it is refused."""
        environment = dict(os.environ) | ({"INART_CREDENTIALS": str(folder)} if folder is not None else {})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "worker_agent.launch.holder", controller],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"
        line = json_format.MessageToJson(request, indent=None)
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline() or "{}")
        except OSError:
            answer = {}
        if not answer or "error" in answer:
            self.remove()
            raise NoJob(answer.get("error", "the process that holds the job has ended"))
        self.reply = json_format.ParseDict(answer, pb.AddJobReply())

    def remove(self) -> None:
        """Remove the job, and wait until it is removed."""
        assert self._process.stdin is not None, "it is a pipe"
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(HOLDER_SECONDS)
        except subprocess.TimeoutExpired:
            say("the job is still being removed")


def add_job(arguments: argparse.Namespace, where: Where, machines: Machines) -> AddedJob | None:
    """Add the job, from its first node; return None if it exists already. Raise NoJob where it is refused,
    ControllerError where no controller answers.
    """
    name = job_name(arguments.job, machines)
    if patiently(lambda: find_job(where, name), None if "," in arguments.controller else 0.0) is not None:
        say(f"job {name} is there already; it stays when this ends")
        return None
    words = ",".join(filter(None, [arguments.job, "" if "name=" in arguments.job else f"name={name}"]))
    request = pb.AddJobRequest(job=words, strategy=arguments.strategy, share=arguments.share)
    for position, one in enumerate(machines.names):
        mine = position == machines.position
        request.hosts.add(name=where.node if mine else one, addresses=[] if mine else resolve(one))
    added = AddedJob(arguments.controller, request, arguments.operator or arguments.credentials)
    reply = added.reply
    say(
        f"job {reply.name}: {gets(reply)}; workers {', '.join(reply.workers)}; parameter servers "
        f"{', '.join(reply.parameter_servers)}"
    )
    return added


def wait_for_others(where: Where, name: str) -> None:
    """Wait, for at most LEAVING_SECONDS, until the agents of other nodes have left the job."""
    deadline = time.monotonic() + LEAVING_SECONDS
    try:
        while time.monotonic() < deadline:
            reply = find_job(where, name)
            if reply is None or not any(agent.joined and agent.role == "worker" for agent in reply.agents):
                return
            time.sleep(LOOK_SECONDS)
    except (ControllerError, NoJob):
        pass


def run(arguments: argparse.Namespace, command: Sequence[str], start: Callable[..., int] = child.run) -> int:
    """Run the command with its job, and return the exit status. Raise NoJob where there is no job, ValueError for bad
    arguments.
    """
    environment = dict(os.environ) | {"INART_CONTROLLER": arguments.controller}
    if arguments.credentials is not None:
        environment["INART_CREDENTIALS"] = str(arguments.credentials)
    added: AddedJob | None = None
    try:
        where = locate(arguments)
        machines = find_machines(arguments.nodes, os.environ, where.node, addresses())
        environment["INART_JOB"] = name = job_name(arguments.job, machines)
        if len(machines.names) == 1:
            raise NoJob("one node has nothing to send through the network")
        if machines.first:
            added = add_job(arguments, where, machines)
        else:
            wait_for_job(where, name, arguments.wait)
    except (NoJob, ControllerError) as error:
        if not arguments.or_gloo:
            raise NoJob(f"{error} (--or-gloo runs the command without the network)") from None
        say(f"{error}; the command runs without the network")
    try:
        status = start(command, environment)
        if added is not None and status == 0:
            wait_for_others(where, name)
        return status
    finally:
        if added is not None:
            added.remove()


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(argv)
    command = command_line.program(arguments.command)
    if not command:
        parser.error("what is to be run? For example: inart run --nodes a,b -- torchrun ...")
    try:
        arguments.controller = controller_address(arguments.controller)
        return run(arguments, command)
    except NoJob as error:
        say(str(error))
        return NO_JOB
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
