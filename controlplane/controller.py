"""The controller: gives agents their configuration, keeps switches filled, says what is going on.

python -m controlplane.deploy ... --serve HOST:PORT          installs a plan and runs the controller
python -m controlplane.controller status --controller HOST:PORT
python -m controlplane.controller replan --controller HOST:PORT --set V1-V2.used_bandwidth_mbps=40
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google.protobuf
import grpc
from google.protobuf import json_format
from google.protobuf.message import Message

from controlplane.generators import parse_topology
from controlplane.rpc import inart_pb2 as pb
from controlplane.rpc.channels import NotFree, bind
from controlplane.rpc.client import REPLAN_SECONDS, ControllerError, fetch_status, request_replan
from controlplane.rpc.stubs import add_to_server
from controlplane.rpc.tls import Tls, add_tls_arguments, tls_from
from controlplane.runtime.jobs import RunningJob
from controlplane.runtime.keeper import Keeper
from controlplane.runtime.roster import Refused, Roster
from controlplane.runtime.update import Update, UpdateError
from controlplane.topology import Topology, TopologyError

STOP_SECONDS = 2.0


def listen(address: str, tls: Tls | None = None) -> tuple[grpc.Server, int]:
    """A server that has its port, and the port. Raises ControllerError."""
    try:
        return bind(address, tls)
    except NotFree as error:
        raise ControllerError(str(error)) from None


class Controller:
    """The gRPC server of one job.

    Args:
        keepers: of its switches; the controller reads their state but does not own them.
    """

    def __init__(
        self,
        job: RunningJob,
        keepers: Sequence[Keeper] = (),
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.job = job
        self.keepers = keepers
        self._log = log
        self._server: grpc.Server | None = None

    @property
    def roster(self) -> Roster:
        return self.job.roster

    def start(self, address: str, tls: Tls | None = None) -> int:
        """Serve on "host:port" (port 0: any free one); returns the port. Raises ControllerError."""
        self._server, port = listen(address, tls)
        add_to_server(self, self._server)
        self._server.start()
        return port

    def stop(self) -> None:
        """End all streams and the server."""
        self.roster.close()
        if self._server is not None:
            self._server.stop(STOP_SECONDS).wait(2 * STOP_SECONDS)

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
        plan = self.job.plan
        reply.job, reply.strategy, reply.planned_rate_mbps = plan.job, plan.strategy, plan.rate_mbps
        reply.plan_version = plan.version
        if self.keepers:
            with ThreadPoolExecutor(min(32, len(self.keepers))) as pool:
                reply.switches.extend(pool.map(Keeper.status, self.keepers))
        return reply

    def report_update(self, request: pb.UpdateReport, context: grpc.ServicerContext) -> pb.UpdateReportReply:
        self.roster.report_update(request)
        return pb.UpdateReportReply()

    def replan(self, request: pb.ReplanRequest, context: grpc.ServicerContext) -> pb.ReplanReply:
        updater = self.job.updater
        if updater is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this controller cannot change its plan")
        assert updater is not None, "abort raises"
        try:
            given = Topology.load(json.loads(request.topology)) if request.topology else None
            state = updater.state(given, request.changes, request.without)
            update = updater.update(state, request.strategy or None, dry_run=request.dry_run)
        except (UpdateError, ValueError) as error:  # ValueError: what cannot be planned, and what is no topology
            self._log(f"replan refused: {error}")
            code = (
                grpc.StatusCode.FAILED_PRECONDITION
                if isinstance(error, UpdateError)
                else grpc.StatusCode.INVALID_ARGUMENT
            )
            context.abort(code, str(error))
        return update_reply(update, request.dry_run)


def update_reply(update: Update, dry_run: bool) -> pb.ReplanReply:
    """What `replan` answers."""
    return pb.ReplanReply(
        outcome="updated" if update.changed else "planned" if dry_run else "unchanged",
        rate_before_mbps=update.rate_before,
        rate_mbps=update.plan.rate_mbps,
        version=update.plan.version,
        trees_kept=len(update.trees.kept),
        trees_removed=len(update.trees.removed),
        trees_added=len(update.trees.added),
        entries_added=update.entries_added,
        entries_removed=update.entries_removed,
        epoch=update.epoch,
        first_operation=update.first_operation,
        held_seconds=update.held_seconds,
        seconds=update.seconds,
        plan=json.dumps(update.plan.to_json()),
    )


def format_replan(reply: pb.ReplanReply) -> str:
    """The answer as the command prints it."""
    lines = [
        f"the running plan, in this state of the network: {reply.rate_before_mbps:.4g} Mbit/s per worker",
        f"version {reply.version}: {reply.rate_mbps:.4g} Mbit/s; {reply.trees_kept} trees stay, "
        f"{reply.trees_removed} go, {reply.trees_added} come",
    ]
    if reply.outcome == "unchanged":
        return lines[0] + "; it stays, nothing is better"
    if reply.outcome == "planned":
        return "\n".join([*lines, "nothing was changed (--dry-run)"])
    where = (
        f"the job changed over at operation {reply.first_operation} (epoch {reply.epoch}); operations were held back "
        f"for at most {1e3 * reply.held_seconds:.0f} ms"
        if reply.epoch
        else "the job was not running; it starts with the new plan"
    )
    entries = f"{reply.entries_added} entries added, {reply.entries_removed} removed, in {reply.seconds:.1f} s"
    return "\n".join([*lines, where, entries])


# -- status in words ------------------------------------------------------------------------------------------------


def format_status(status: pb.StatusReply) -> str:
    """The status as the command prints it."""
    missing = [agent.node for agent in status.agents if not agent.joined]
    lines = [
        f"job {status.job}, strategy {status.strategy}, version {status.plan_version} of the plan, "
        f"planned rate {status.planned_rate_mbps:.4g} Mbit/s per worker",
        f"running, epoch {status.epoch}" if status.state == "running" else f"waiting for {', '.join(missing)}",
        *([status.update] if status.update else []),
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


def message_dict(message: Message) -> dict[str, Any]:
    """A message as `--json` prints it: every field."""
    old = google.protobuf.__version__.startswith("4.")  # protobuf 5 gave the option another name
    every_field = "including_default_value_fields" if old else "always_print_fields_with_no_presence"
    options: dict[str, Any] = {every_field: True, "preserving_proto_field_name": True}
    return json_format.MessageToDict(message, **options)


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


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m controlplane.controller", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", help="who has joined, what is missing, what the switches and trees do")
    plan = commands.add_parser(
        "replan",
        help="plan again for the network's present state, and change over while the job runs",
        epilog="example: replan --controller HOST:PORT --set V1.aggregation_mbps=10 --set V1-V2.used_bandwidth_mbps=40",
    )
    plan.add_argument("--topology", metavar="T", help="the present state (default: that of the last plan)")
    plan.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="CHANGE",
        help="NODE.X_mbps=N or NODE-NODE.X_mbps=N",
    )
    plan.add_argument("--without", action="append", default=[], metavar="SWITCH", help="keep this switch off")
    plan.add_argument("--strategy", metavar="NAME", help="default: that of the running plan")
    plan.add_argument("--dry-run", action="store_true", help="plan and evaluate, change nothing")
    plan.add_argument("--output", type=Path, metavar="FILE", help="write the new plan; deploy takes it with --plan")
    for command, seconds in ((status, 10.0), (plan, REPLAN_SECONDS)):
        command.add_argument("--controller", required=True, metavar="HOST:PORT")
        command.add_argument("--json", action="store_true", help="print JSON")
        command.add_argument("--timeout", type=float, default=seconds, metavar="SECONDS")
        add_tls_arguments(command)
    return parser


def run_replan(arguments: argparse.Namespace) -> None:
    """The command `replan`. Raises ControllerError, TopologyError, OSError."""
    topology = json.dumps(parse_topology(arguments.topology).to_json()) if arguments.topology else ""
    request = pb.ReplanRequest(
        topology=topology,
        changes=arguments.changes,
        without=arguments.without,
        strategy=arguments.strategy or "",
        dry_run=arguments.dry_run,
    )
    reply = request_replan(arguments.controller, request, tls_from(arguments), arguments.timeout)
    if arguments.output is not None:
        arguments.output.write_text(reply.plan + "\n")
    print(json.dumps(message_dict(reply), indent=2) if arguments.json else format_replan(reply))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        if arguments.command == "replan":
            run_replan(arguments)
            return 0
        reply = fetch_status(arguments.controller, tls_from(arguments), arguments.timeout)
    except (ControllerError, TopologyError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(message_dict(reply), indent=2))
    else:
        print(format_status(reply))
    return 0


if __name__ == "__main__":
    sys.exit(main())
