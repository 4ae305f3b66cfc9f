"""The operator's commands to a running controller: status, replan, drain, log, topology, and its jobs.

inart status --controller HOST:PORT [--job NAME] [--watch]
inart replan --controller HOST:PORT --set V1-V2.used_bandwidth_mbps=40
inart drain NODE --wait --controller HOST:PORT
inart log --since 2h --controller HOST:PORT
inart topology reload --controller HOST:PORT
inart topology import FILE:servers=1 --output net.json      (needs no controller)
inart job add|list|show|remove --controller HOST:PORT ...
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import google.protobuf
from google.protobuf import json_format
from google.protobuf.message import Message

from controlplane.cli import drain as drains
from controlplane.cli import log as logs
from controlplane.cli import topology_import
from controlplane.common import command_line
from controlplane.common.numbers import short
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.channels import controller_address
from controlplane.common.rpc.client import REPLAN_SECONDS, ControllerError, ask, fetch_status
from controlplane.common.rpc.tls import add_tls_arguments, tls_from

STATUS_SECONDS = 10.0
WATCH_SECONDS = 1.0
EVENTS_SHOWN = 8
AGENT_COLUMNS = ("agent", "role", "joined", "from", "last report", "host", "statistics")
"""Heads of the agents' table. "host" is the time that the host adds to a round trip, where agents measured it."""


def format_replan(reply: pb.ReplanReply) -> str:
    """Return the answer to a replan as the command prints it.

    It names the job if the reply is about one job; names disabled for all jobs give a reply without a plan.
    """
    job = f"job {json.loads(reply.plan)['job']['name']}: " if reply.plan else ""
    lines = [
        f"{job}the running plan, in this state of the network: {short(reply.rate_before_mbps)} Mbit/s per worker",
        f"version {reply.version}: {short(reply.rate_mbps)} Mbit/s; {reply.trees_kept} trees stay, "
        f"{reply.trees_removed} go, {reply.trees_added} come",
    ]
    if reply.outcome == "unchanged":
        return lines[0] + "; it stays, nothing is better"
    if reply.outcome == "later":
        return "all jobs are replanned now, one after the other (inart job list shows what each has)"
    if reply.outcome == "drained":
        return lines[0] + "; no job uses what is disabled any more"
    if reply.outcome == "planned":
        return "\n".join([*lines, *change_lines(reply.changes), "nothing was changed (--dry-run)"])
    where = (
        f"the job migrated at operation {reply.first_operation} (epoch {reply.epoch}); operations were held back "
        f"for at most {1e3 * reply.held_seconds:.0f} ms"
        if reply.epoch
        else "the job was not running; it starts with the new plan"
    )
    entries = f"{reply.entries_added} entries added, {reply.entries_removed} removed, in {reply.seconds:.1f} s"
    return "\n".join([*lines, where, entries])


# -- status in words ------------------------------------------------------------------------------------------------


def format_status(status: pb.StatusReply) -> str:
    """Return the status as the command prints it."""
    lines = [*(format_jobs(status.jobs) if len(status.jobs) != 1 else []), *(_job_lines(status) if status.job else [])]
    if status.switches:
        rows = map(_switch_row, status.switches)
        lines += ["", *_table(("switch", "address", "state", "labels/groups/routes", "refills", "verdicts"), rows)]
    if status.without:
        lines += ["", f"disabled: {', '.join(status.without)}"]
    if status.others:
        head = ("other traffic from", "to", "measured", "left to it", "of")
        lines += ["", *_table(head, map(_other_row, status.others))]
    if len(status.jobs) != 1 and not status.job and status.jobs:
        lines += ["", "more of one job: --job NAME"]
    if status.events:
        lines += ["", *map(_event_line, status.events[-EVENTS_SHOWN:])]
    return "\n".join(lines)


def format_jobs(jobs: Sequence[pb.JobStatus]) -> list[str]:
    """Return the lines of a table of the jobs."""
    if not jobs:
        return ["no job: add one with `job add`"]
    header = ("job", "number", "strategy", "version", "planned", "state", "epoch", "agents", "bottleneck", "promised")
    return _table(header, map(_job_row, jobs))


def format_tenants(tenants: Sequence[pb.TenantStatus]) -> list[str]:
    """Return the lines of a table of the tenants; none where no job has a tenant."""
    if not tenants:
        return []
    header = ("tenant", "jobs", "rates together", "entries", "slots of a switch", "may have")
    rows = [
        (one.name, str(one.jobs), f"{short(one.rate_mbps)} Mbit/s", str(one.entries), str(one.slots), one.quota or "-")
        for one in tenants
    ]
    return ["", *_table(header, rows)]


def _job_row(job: pb.JobStatus) -> tuple[str, ...]:
    missing = f", missing {', '.join(job.missing)}" if job.missing and len(job.missing) <= 4 else ""
    return (
        job.name,
        str(job.job_id),
        job.strategy,
        str(job.plan_version),
        f"{short(job.planned_rate_mbps)} Mbit/s",
        job.state,
        str(job.epoch or "-"),
        f"{job.joined}/{job.agents}{missing}",
        job.bottleneck or "-",
        job.terms or "-",
    )


def _other_row(one: pb.OtherTraffic) -> tuple[str, ...]:
    rates = (one.measured_mbps, one.planned_mbps, one.bandwidth_mbps)
    return (one.source, one.target, *(f"{short(mbps)} Mbit/s" for mbps in rates))


def _event_line(event: pb.LogEvent) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(event.time))}  {event.text}"


def _job_lines(status: pb.StatusReply) -> list[str]:
    missing = [agent.node for agent in status.agents if not agent.joined]
    lines = [
        f"job {status.job}, strategy {status.strategy}, version {status.plan_version} of the plan, "
        f"planned rate {short(status.planned_rate_mbps)} Mbit/s per worker",
        f"running, epoch {status.epoch}" if status.state == "running" else f"waiting for {', '.join(missing)}",
        *([status.update] if status.update else []),
        "",
        *_table(AGENT_COLUMNS, map(_agent_row, status.agents)),
    ]
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
    return lines


def format_added(reply: pb.AddJobReply) -> str:
    """Return the text that `job add` prints."""
    lines = [
        f"job {reply.name}: {short(reply.rate_mbps)} Mbit/s per worker, bottleneck {reply.bottleneck}",
        f"workers {', '.join(reply.workers)}; parameter servers {', '.join(reply.parameter_servers)}",
    ]
    lines += [f"note: {reply.note}"] if reply.note else []
    lines += _rate_lines(reply.others)
    if reply.job_id:
        lines.append(f"installed as job {reply.job_id}: {reply.entries} changes on the switches; its agents can join")
    else:
        lines += [*change_lines(reply.changes), "nothing was installed (--dry-run)"]
    return "\n".join(lines)


def _rate_lines(rates: Sequence[pb.JobRate]) -> list[str]:
    lines = []
    for other in rates:
        stays = abs(other.before_mbps - other.after_mbps) < 1e-6 * other.before_mbps
        after = "stays" if stays else f"then {short(other.after_mbps)}"
        lines.append(f"job {other.name}: {short(other.before_mbps)} Mbit/s, {after}")
    return lines


def message_dict(message: Message) -> dict[str, Any]:
    """Return a protobuf message as `--json` prints it, with every field."""
    old = google.protobuf.__version__.startswith("4.")  # protobuf 5 gave the option another name
    every_field = "including_default_value_fields" if old else "always_print_fields_with_no_presence"
    options: dict[str, Any] = {every_field: True, "preserving_proto_field_name": True}
    return json_format.MessageToDict(message, **options)


def _agent_row(agent: pb.AgentStatus) -> tuple[str, ...]:
    statistics = ", ".join(f"{name} {short(value, 6)}" for name, value in sorted(agent.statistics.items()))
    return (
        agent.node,
        agent.role.replace("_", " "),
        f"{agent.joined_seconds:.0f} s ago" if agent.joined else "MISSING",
        agent.peer,
        f"{agent.reported_seconds:.0f} s ago" if agent.reported_seconds >= 0 else "-",
        f"{agent.host_ms:.3g} ms" if agent.HasField("host_ms") else "-",
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


Orders: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.make("", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", help="show agents, missing ones, switches and trees")
    status.add_argument("--job", default="", metavar="NAME", help="show all about this job (default: the only one)")
    status.add_argument("--watch", action="store_true", help="show it again every second, until Ctrl-C")
    plan = _add_replan(commands)
    log = commands.add_parser("log", help="show the journal: who did what, when, and what changed")
    logs.add_arguments(log)
    drain = commands.add_parser("drain", help="take a switch, link or parameter server out of service")
    undrain = commands.add_parser("undrain", help="put it back into service")
    drains.add_arguments(drain, undrain)
    job = commands.add_parser("job", help="add, show, list or remove jobs")
    orders = job.add_subparsers(dest="order", required=True)
    add = _add_job_add(orders)
    show = orders.add_parser("show", help="show all about one job")
    remove = orders.add_parser("remove", help="end a job and remove its entries from the switches")
    remove.add_argument(
        "--share", action="store_true", help="plan the other jobs together again, with the capacity that is free then"
    )
    for order in (show, remove):
        order.add_argument("job", metavar="NAME", help="the job's name")
    listed = orders.add_parser("list", help="show a table of the jobs")
    topology = commands.add_parser("topology", help="change the network itself, or import one")
    networks = topology.add_subparsers(dest="order", required=True)
    reload = networks.add_parser(
        "reload", help="read the controller's topology and switches file again, with jobs running"
    )
    topology_import.add_arguments(
        networks.add_parser("import", help="make a topology file from another project's (docs/topologies.md)")
    )
    reload.add_argument("--dry-run", action="store_true", help="print each entry that would change, and change nothing")
    for command in (status, show, listed, log):
        _add_controller(command, STATUS_SECONDS)
    for command in (plan, drain, undrain, add, remove, reload):
        _add_controller(command, REPLAN_SECONDS)
    for command in (status, show, listed, log, drain, undrain, add, remove, reload):
        command_line.add_json(command)
    return parser


def _add_controller(command: argparse.ArgumentParser, seconds: float) -> None:
    """Add the options that name the controller; set the seconds to wait for its answer."""
    command.add_argument(
        "--controller", metavar="HOST:PORT", help="where the controller listens (default: $INART_CONTROLLER)"
    )
    command.set_defaults(timeout=seconds, refuse=command.error)
    add_tls_arguments(command)


def _add_replan(commands: Orders) -> argparse.ArgumentParser:
    plan = commands.add_parser(
        "replan",
        help="plan again for the network's present state, and migrate the running job",
        epilog="example: replan --controller HOST:PORT --set V1.aggregation_mbps=10 --set V1-V2.used_bandwidth_mbps=40",
    )
    plan.add_argument("--job", default="", metavar="NAME", help="job to replan (default: the only one)")
    plan.add_argument("--topology", metavar="T", help="the network's present state (default: that of the last plan)")
    plan.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="CHANGE",
        help="change an attribute of a node or link: NODE.X_mbps=N or NODE-NODE.X_mbps=N",
    )
    plan.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="disable a switch, link (V1-V2) or parameter server",
    )
    plan.add_argument("--with", dest="restored", action="append", default=[], metavar="NAME", help="use it again")
    plan.add_argument("--strategy", metavar="NAME", help="strategy (default: that of the running plan)")
    plan.add_argument("--dry-run", action="store_true", help="plan and evaluate, change nothing")
    command_line.add_json(plan)
    plan.add_argument(
        "--output",
        type=command_line.new_file,
        metavar="FILE",
        help="write the new plan there, as JSON; deploy takes it with --plan",
    )
    return plan


def _add_job_add(orders: Orders) -> argparse.ArgumentParser:
    add = orders.add_parser("add", help="plan a job for the capacity that other jobs leave, and install it")
    add.add_argument("--job", default="", metavar="J", help="job file, or workers=8,ps=2,seed=1,name=x")
    add.add_argument("--strategy", default="inart", help="strategy that plans it (default: %(default)s)")
    add.add_argument("--seed", type=int, default=0, help="seed of strategies that draw (default: %(default)s)")
    add.add_argument("--plan", type=Path, metavar="FILE", help="a plan in JSON, instead of --job and --strategy")
    add.add_argument("--share", action="store_true", help="plan all jobs together, with fair rates")
    add.add_argument("--weight", type=float, default=1.0, metavar="W", help="fair rates are in proportion to this")
    add.add_argument(
        "--guarantee", type=float, default=0.0, metavar="MBPS", help="least rate at which a worker may send"
    )
    add.add_argument("--priority", type=int, default=0, metavar="N", help="jobs of the highest priority come first")
    add.add_argument(
        "--tenant", default="", metavar="NAME", help="of an operator: tenant that owns the job (default: none)"
    )
    add.add_argument("--dry-run", action="store_true", help="print the rates that all jobs would get, install nothing")
    return add


def run_replan(arguments: argparse.Namespace) -> None:
    """Run the command `replan`. Raise ControllerError, ValueError or OSError where it fails."""
    topology = ""
    if arguments.topology:
        # Imported here, as an agent's machine has no networkx.
        from controlplane.planner.generators import parse_topology

        topology = json.dumps(parse_topology(arguments.topology).to_json())
    request = pb.ReplanRequest(
        topology=topology,
        changes=arguments.changes,
        without=arguments.without,
        restored=arguments.restored,
        strategy=arguments.strategy or "",
        dry_run=arguments.dry_run,
        job=arguments.job,
    )
    reply = _ask(arguments, "replan", request)
    if arguments.output is not None:
        arguments.output.write_text(reply.plan + "\n")
    words = format_replan(reply)
    if (arguments.without or arguments.restored) and not arguments.dry_run:
        words += "\ndisabled parts are so for all jobs: job list shows what each job has now"
    _print(arguments, reply, words)


def run_job(arguments: argparse.Namespace) -> None:
    """Run the command `job`. Raise ControllerError or OSError where it fails."""
    if arguments.order == "add":
        given = arguments.job
        if given and "=" not in given:
            try:
                given = Path(given).read_text()
            except OSError as error:
                raise ControllerError(
                    f"cannot read job file {given}: {error.strerror}; a job is a file or workers=8,ps=2,seed=1"
                ) from None
        plan = arguments.plan.read_text() if arguments.plan else ""
        request = pb.AddJobRequest(
            job=given,
            strategy=arguments.strategy,
            seed=arguments.seed,
            plan=plan,
            dry_run=arguments.dry_run,
            share=arguments.share,
            weight=arguments.weight,
            guarantee_mbps=arguments.guarantee,
            priority=arguments.priority,
            tenant=arguments.tenant,
        )
        reply = _ask(arguments, "add_job", request)
        _print(arguments, reply, format_added(reply))
    elif arguments.order == "remove":
        gone = _ask(arguments, "remove_job", pb.RemoveJobRequest(name=arguments.job, share=arguments.share))
        later = f"; {', '.join(gone.later)} when it answers again" if gone.later else ""
        lines = [f"job {arguments.job} removed: {gone.entries} entries{later}", *_rate_lines(gone.others)]
        _print(arguments, gone, "\n".join(lines))
    else:
        name = arguments.job if arguments.order == "show" else ""
        status = fetch_status(arguments.controller, tls_from(arguments), arguments.timeout, job=name)
        tables = [*format_jobs(status.jobs), *format_tenants(status.tenants)]
        lines = _job_lines(status) if name else tables
        _print(arguments, status, "\n".join(lines))


def _ask(arguments: argparse.Namespace, method: str, request: Message) -> Any:
    return ask(arguments.controller, method, request, tls_from(arguments), arguments.timeout)


def _print(arguments: argparse.Namespace, reply: Message, words: str) -> None:
    print(json.dumps(message_dict(reply), indent=2) if arguments.json else words)


def show_status(arguments: argparse.Namespace) -> None:
    """Run the command `status`. Raise ControllerError where the controller does not answer, except that --watch goes on
    through a controller's restart."""
    seen = False
    while True:
        try:
            reply = fetch_status(arguments.controller, tls_from(arguments), arguments.timeout, job=arguments.job)
        except ControllerError as error:
            if not seen:
                raise
            print(error, file=sys.stderr, flush=True)
            time.sleep(WATCH_SECONDS)
            continue
        if arguments.watch and sys.stdout.isatty():
            print("\x1b[H\x1b[2J", end="")
        _print(arguments, reply, format_status(reply))
        if not arguments.watch:
            return
        seen = True
        sys.stdout.flush()
        time.sleep(WATCH_SECONDS)


def run_topology(arguments: argparse.Namespace) -> None:
    """Run the commands `topology`. Raise ControllerError, ValueError or OSError where one fails."""
    if arguments.order == "import":
        topology_import.run(arguments)
        return
    reply = _ask(arguments, "reload", pb.ReloadRequest(dry_run=arguments.dry_run))
    _print(arguments, reply, format_reload(reply, dry_run=arguments.dry_run))


def change_lines(changes: Sequence[pb.EntryChange]) -> list[str]:
    """Return a line for each entry, under a line that counts them."""
    if not changes:
        return ["no entry on any switch would change"]
    off = sum(one.operation == "delete" for one in changes)
    switches = len({one.switch for one in changes})
    lines = [f"entries: {len(changes) - off} written, {off} taken off, on {switches} switches"]
    return lines + [f"  {one.switch}: {one.operation} {one.entry}" for one in changes]


def format_reload(reply: pb.ReloadReply, *, dry_run: bool) -> str:
    """Return the answer to `topology reload` as the command prints it."""
    if not dry_run:
        return f"{reply.summary}; {reply.entries} changes on the switches"
    return "\n".join([reply.summary, *change_lines(reply.changes), "nothing was changed (--dry-run)"])


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "replan": run_replan,
    "job": run_job,
    "status": show_status,
    "drain": drains.run_drain,
    "undrain": drains.run_undrain,
    "log": logs.run_log,
    "topology": run_topology,
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        if "controller" in arguments:
            arguments.controller = controller_address(arguments.controller)
    except ValueError as error:
        arguments.refuse(str(error))

    def work() -> None:
        with suppress(KeyboardInterrupt):  # which ends --watch and --follow
            COMMANDS[arguments.command](arguments)

    return command_line.run("", work, (ControllerError, ValueError, OSError))


if __name__ == "__main__":
    sys.exit(main())
