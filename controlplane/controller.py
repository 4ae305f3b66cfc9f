"""The controller: gives agents their configuration, keeps switches filled, says what is going on.

python -m controlplane.deploy ... --serve HOST:PORT          installs a plan and runs the controller
python -m controlplane.controller status --controller HOST:PORT
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import json_format

from controlplane.keeper import Keeper
from controlplane.roster import Refused, Roster
from controlplane.rpc import inart_pb2 as pb
from controlplane.rpc.client import ControllerError, fetch_status
from controlplane.rpc.stubs import SERVER_OPTIONS, add_to_server
from controlplane.rpc.tls import Tls, add_tls_arguments, tls_from

STOP_SECONDS = 2.0


@dataclass(frozen=True)
class PlanSummary:
    """What `status` says about the plan. rate: the planned sending rate of each worker, Mbit/s."""

    job: str
    strategy: str
    rate_mbps: float


class Controller:
    """The gRPC server of one job.

    Args:
        roster: the job's agents.
        keepers: of its switches; the controller reads their state but does not own them.
    """

    def __init__(
        self,
        plan: PlanSummary,
        roster: Roster,
        keepers: Sequence[Keeper] = (),
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.plan = plan
        self.roster = roster
        self.keepers = keepers
        self._log = log
        self._server: grpc.Server | None = None

    def start(self, address: str, tls: Tls | None = None) -> int:
        """Serve on "host:port" (port 0: any free one); returns the port. Raises ControllerError."""
        # Every joined agent holds a thread for the life of its stream.
        threads = 2 * len(self.roster.configs) + 8
        server = grpc.server(ThreadPoolExecutor(threads, thread_name_prefix="rpc"), options=SERVER_OPTIONS)
        add_to_server(self, server)
        try:
            if tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, tls.server_credentials())
        except RuntimeError:
            port = 0
        if port == 0:
            raise ControllerError(f"cannot listen on {address}: is the port free, the address one of this machine?")
        server.start()
        self._server = server
        return port

    def stop(self) -> None:
        """End all streams and the server."""
        self.roster.close()
        if self._server is not None:
            self._server.stop(STOP_SECONDS).wait(STOP_SECONDS)

    # -- the service (inart.proto) ----------------------------------------------------------------------------------

    def join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> Iterator[pb.Event]:
        try:
            member = self.roster.join(request, context.peer())
        except (Refused, OSError) as error:
            self._log(f"refused an agent from {context.peer()}: {error}")
            yield pb.Event(refused=pb.Refused(reason=str(error)))
            return

        def ended() -> None:
            self.roster.leave(member)
            member.events.put(None)

        if not context.add_callback(ended):
            ended()
        while (event := member.events.get()) is not None:
            yield event

    def leave(self, request: pb.LeaveRequest, context: grpc.ServicerContext) -> pb.LeaveReply:
        self.roster.announce_leave(request.agent, request.failure)
        return pb.LeaveReply()

    def report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportReply:
        self.roster.report(request)
        return pb.ReportReply()

    def status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:
        reply = self.roster.status()
        reply.job, reply.strategy, reply.planned_rate_mbps = self.plan.job, self.plan.strategy, self.plan.rate_mbps
        if self.keepers:
            with ThreadPoolExecutor(min(32, len(self.keepers))) as pool:
                reply.switches.extend(pool.map(Keeper.status, self.keepers))
        return reply


# -- status in words ------------------------------------------------------------------------------------------------


def format_status(status: pb.StatusReply) -> str:
    """The status as the command prints it."""
    missing = [agent.node for agent in status.agents if not agent.joined]
    lines = [
        f"job {status.job}, strategy {status.strategy}, planned rate {status.planned_rate_mbps:.4g} Mbit/s per worker",
        f"running, epoch {status.epoch}" if status.state == "running" else f"waiting for {', '.join(missing)}",
        "",
        *_table(("agent", "role", "joined", "from", "last report", "statistics"), map(_agent_row, status.agents)),
    ]
    if status.switches:
        rows = map(_switch_row, status.switches)
        lines += ["", *_table(("switch", "address", "state", "labels/groups/routes", "refills", "verdicts"), rows)]
    stuck = [tree for tree in status.trees if tree.HasField("oldest_chunk")]
    if status.trees:
        lines.append("")
    for tree in stuck:
        lines.append(
            f"tree {tree.tree} (root {tree.root}): oldest chunk {tree.oldest_chunk} has lacked "
            f"{', '.join(tree.missing)} for {tree.waiting_seconds:.1f} s"
        )
    if status.trees and not stuck:
        lines.append(f"{len(status.trees)} trees, none has an incomplete chunk")
    return "\n".join(lines)


def status_dict(status: pb.StatusReply) -> dict[str, Any]:
    """The status as `--json` prints it: every field of the message."""
    return json_format.MessageToDict(
        status,
        including_default_value_fields=True,  # type: ignore[call-arg]  # the stubs are of a later protobuf
        preserving_proto_field_name=True,
    )


def _agent_row(agent: pb.AgentStatus) -> tuple[str, ...]:
    statistics = ", ".join(f"{name} {value:g}" for name, value in sorted(agent.statistics.items()))
    return (
        agent.node,
        agent.role.replace("_", " "),
        f"{agent.joined_seconds:.0f} s ago" if agent.joined else "MISSING",
        agent.peer,
        f"{agent.reported_seconds:.0f} s ago" if agent.reported_seconds >= 0 else "-",
        statistics or "-",
    )


def _switch_row(switch: pb.SwitchStatus) -> tuple[str, ...]:
    verdicts = ", ".join(f"{name} {count}" for name, count in sorted(switch.verdicts.items()) if count)
    return (
        switch.name,
        switch.address,
        switch.state,
        f"{switch.labels}/{switch.groups}/{switch.routes}",
        str(switch.refills),
        switch.problem or verdicts or "-",
    )


def _table(header: tuple[str, ...], rows: Any) -> list[str]:
    cells = [header, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m controlplane.controller", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", help="who has joined, what is missing, what the switches and trees do")
    status.add_argument("--controller", required=True, metavar="HOST:PORT")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
    add_tls_arguments(status)
    arguments = parser.parse_args(argv)
    try:
        reply = fetch_status(arguments.controller, tls_from(arguments), arguments.timeout)
    except (ControllerError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(status_dict(reply), indent=2))
    else:
        print(format_status(reply))
    return 0


if __name__ == "__main__":
    sys.exit(main())
