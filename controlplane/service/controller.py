"""The controller's gRPC service: gives agents their configuration, takes operators' orders, says what is going on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn

import grpc
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from controlplane.common.access import Access, Denied, certificate_began
from controlplane.common.inputs import parse_json
from controlplane.common.log_lines import SILENT, Log
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.channels import NotFree, bind
from controlplane.common.rpc.client import ControllerError
from controlplane.common.rpc.stubs import SERVICE, add_to_server
from controlplane.common.rpc.tls import Tls
from controlplane.planner.job import Job, JobError, parse_next_job
from controlplane.planner.plan import Plan
from controlplane.planner.terms import Terms
from controlplane.planner.topology import Topology
from controlplane.service.core.state import Refused
from controlplane.service.entry_changes import messages
from controlplane.service.keeper import Keeper
from controlplane.service.network import Network
from controlplane.service.next_plan import MigrationError
from controlplane.service.ordered import Order, ordered
from controlplane.service.pair.leadership import NotLeading
from controlplane.service.pair.store import StoreError
from controlplane.service.reload import ReloadError
from controlplane.service.replanning import Late
from controlplane.service.replies import admission_reply, job_statuses, other_traffic, reload_reply, replan_reply
from controlplane.service.running import JobsError, NoJobYet
from controlplane.targets.base import TargetError
from controlplane.targets.fabric import everywhere

STOP_SECONDS = 2.0
WAIT_SECONDS = 1.0
"""Seconds between two checks whether an agent that waits for its job is still connected."""
EVENTS_IN_STATUS = 50
MOST_PARTS = 100
MOST_WORDS = 1500
DENIED_SECONDS = 60.0
MOST_DENIED = 1000
RESERVATION_FIELDS = range(12, 16)
"""Numbers of the fields with which earlier commands ask for a job at a later time."""

Bound = tuple[grpc.Server, int]


def listen(address: str, tls: Tls | None = None, *more: tuple[str, Tls | None]) -> Bound:
    """Return a server that has bound its port but answers nobody yet, and the port. `more` are further addresses. Raise
    ControllerError where one cannot be bound."""
    try:
        return bind(address, tls, *more)
    except NotFree as error:
        raise ControllerError(str(error)) from None


class Controller:
    """The gRPC server of a network's jobs.

    Args:
        log: gets one line per event.
        access: who may do what; without it, everybody who reaches the server may do everything.
    """

    def __init__(
        self,
        network: Network,
        *,
        log: Log = SILENT,
        access: Access | None = None,
    ) -> None:
        self.access = access or Access()
        self.network, self.jobs = network, network.jobs
        self._log = log
        self._server: grpc.Server | None = None
        self._denied: dict[str, float] = {}
        self._stopping = threading.Event()
        self._health = HealthServicer()  # which everybody may ask who gets a connection

    def start(self, address: str | Bound, tls: Tls | None = None) -> int:
        """Serve on "host:port" (port 0 is any free one), or on what `listen` has bound, and return the port. Raise
        ControllerError where the address cannot be bound."""
        self._server, port = listen(address, tls) if isinstance(address, str) else address
        add_to_server(self, self._server, self._guard)
        add_HealthServicer_to_server(self._health, self._server)
        for service in ("", SERVICE):
            self._health.set(service, HealthCheckResponse.SERVING)
        self._server.start()
        return port

    def _log_denied(self, line: str) -> None:
        """Log a denied request, at most once in DENIED_SECONDS, so that nobody can push all else out of the log."""
        now = time.monotonic()
        if now - self._denied.get(line, -DENIED_SECONDS) >= DENIED_SECONDS:
            if len(self._denied) >= MOST_DENIED:
                self._denied.clear()
            self._denied[line] = now
            self._log.warning(line)

    def _guard(self, method: str, context: grpc.ServicerContext) -> None:
        try:
            self.access.check(method, context)
        except Denied as denied:
            self._log_denied(f"denied {context.peer().rpartition(':')[0]}: {denied}")
            context.abort(denied.code, _short(denied))

    def stop(self) -> None:
        """End all streams and the server."""
        self._stopping.set()
        self._health.enter_graceful_shutdown()
        for job in self.jobs:
            job.roster.close()
        if self._server is not None:
            self._server.stop(STOP_SECONDS).wait(2 * STOP_SECONDS)

    # -- agents (inart.proto) ---------------------------------------------------------------------------------------

    def join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> Iterator[pb.Event]:
        """Yield an agent's events until it leaves or is refused. The stream's end tells that the agent is gone."""
        caller = self.access.caller(context)
        if caller is not None:
            if request.node and request.node != caller.name:
                self._deny(context, f"{caller} may not join as {request.node}")
            request.node = caller.name  # not by addresses, which anybody can give
        try:
            for words in self._wait_for_job(request, context):
                yield pb.Event(waiting=pb.Waiting(reason=words))
            if not context.is_active():
                return
            roster = self.jobs.of(request).roster
            if words := roster.in_use(request):
                yield pb.Event(waiting=pb.Waiting(reason=words))
            member = roster.join(request, context.peer())
        except (Refused, OSError) as error:
            if self._stopping.is_set():  # another controller leads next, or this one after its restart
                context.abort(grpc.StatusCode.UNAVAILABLE, "the controller is ending")
            if isinstance(error, StoreError | NotLeading):  # the agent tries again, maybe with the next leader
                context.abort(grpc.StatusCode.UNAVAILABLE, _short(error))
            self._log.warning(f"refused an agent from {context.peer()}: {error}")
            yield pb.Event(refused=pb.Refused(reason=str(error)))
            return
        except Exception as error:  # the agent only sees its stream end, and tries again
            self._log.error(f"an agent from {context.peer()} cannot join: {type(error).__name__}: {error}")
            raise

        def ended() -> None:
            roster.leave(member)
            member.events.put(None)

        if not context.add_callback(ended):
            ended()
        while (event := member.events.get()) is not None:
            yield event

    def _wait_for_job(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> Iterator[str]:
        """Yield what an agent waits for, until its job is there or the agent is gone. Raise Refused if none can
        come."""
        said = ""
        while context.is_active() and not self._stopping.is_set():
            try:
                self.jobs.of(request)
                return
            except NoJobYet as error:
                if not self.network.has_server(request.node, request.addresses):
                    raise
                if str(error) != said:
                    said = str(error)
                    self._log.info(f"an agent from {context.peer()} waits for its job: {said}")
                    yield f"{said}; waiting for one to be added"
            self.jobs.wait_for(request, WAIT_SECONDS)

    def leave(self, request: pb.LeaveRequest, context: grpc.ServicerContext) -> pb.LeaveReply:
        """Take note that an agent is done, or why it goes, before its stream ends."""
        self._check_agent(request.agent, context)
        for job in self.jobs:
            job.roster.announce_leave(request.agent, request.failure)
        return pb.LeaveReply()

    def report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportReply:
        """Take an agent's statistics."""
        caller = self.access.caller(context)
        if caller is not None and request.node != caller.name:
            self._deny(context, f"{caller} may not report for {request.node}")
        for job in self.jobs:  # no two jobs have the same epoch
            job.roster.report(request)
        return pb.ReportReply()

    def report_update(self, request: pb.UpdateReport, context: grpc.ServicerContext) -> pb.UpdateReportReply:
        """Take note of how far an agent is with a migration."""
        self._check_agent(request.agent, context)
        for job in self.jobs:
            job.roster.report_update(request)
        return pb.UpdateReportReply()

    def _check_agent(self, agent: str, context: grpc.ServicerContext) -> None:
        """Check that an agent speaks for its own process only; end the call otherwise."""
        caller = self.access.caller(context)
        if caller is not None:
            nodes = {
                node for job in self.jobs for node, member in job.roster.members().items() if member.agent == agent
            }
            if nodes - {caller.name}:
                self._deny(context, f"{caller} may not speak for another node's agent")

    def _deny(self, context: grpc.ServicerContext, words: str) -> NoReturn:
        self._log_denied(f"denied {context.peer().rpartition(':')[0]}: {words}")
        context.abort(grpc.StatusCode.PERMISSION_DENIED, _short(words))
        raise AssertionError("abort raises")

    # -- operators --------------------------------------------------------------------------------------------------

    def status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:
        """Return the status of one job and of the network. End the call with an error where there is no such job."""
        try:
            job = self.jobs.get(request.job) if request.job or len(self.jobs) == 1 else None
        except JobsError as error:
            _refuse(context, error)
        reply = job.roster.status() if job is not None else pb.StatusReply()
        reply.node = self.network.server_at(request.addresses)
        if job is not None:
            plan = job.plan
            reply.job, reply.strategy, reply.planned_rate_mbps = job.name, plan.strategy, plan.rate_mbps
            reply.plan_version = plan.version
        reply.jobs.extend(job_statuses(self.network))
        reply.uses.extend(self.network.uses(request.parts[:MOST_PARTS]))
        reply.without.extend(f"{name} ({why})" for name, why in self.network.state.disabled.items())
        reply.tenants.extend(self.network.tenants.status())
        reply.others.extend(other_traffic(self.network))
        times = self.network.state.host_times_ms()
        for agent in reply.agents:
            if agent.node in times:
                agent.host_ms = times[agent.node]
        reply.switches.extend(everywhere(self.network.switches.keepers, Keeper.status).values())
        lines = self.network.journal.lines(EVENTS_IN_STATUS)
        reply.events.extend(pb.LogEvent(time=one.time, text=one.text) for one in lines)
        return reply

    def replan(self, request: pb.ReplanRequest, context: grpc.ServicerContext) -> pb.ReplanReply:
        """Do what `Network.replan` does. End the call with its error where it fails."""
        try:
            with self._ordered("replan", request, context):
                migrated = self.network.replan(
                    request.job,
                    given=Topology.load(parse_json(request.topology)) if request.topology else None,
                    changes=request.changes,
                    off=request.without,
                    restored=request.restored,
                    strategy=request.strategy or None,
                    dry_run=request.dry_run,
                    soon=request.soon,
                )
        except (MigrationError, JobsError, ValueError) as error:  # ValueError: it cannot be planned, or is no topology
            self._log.warning(f"replan refused: {error}")
            _refuse(context, error)
        reply = replan_reply(migrated, request.dry_run)
        if request.without and not request.dry_run and self.network.empty(request.without):
            self._log.info(f"{', '.join(request.without)}: empty, no job uses it any more")
            if reply.outcome in ("unchanged", "later"):
                reply.outcome = "drained"
        return reply

    def add_job(self, request: pb.AddJobRequest, context: grpc.ServicerContext) -> pb.AddJobReply:
        """Admit, plan and run a job, or say what it would get (dry run). End the call with the reason if it fails."""
        try:
            return self._add_job(request, context)
        except (JobsError, TargetError, MigrationError, ValueError) as error:
            self._log.warning(f"a job was not added: {error}")
            _refuse(context, error)

    def _add_job(self, request: pb.AddJobRequest, context: grpc.ServicerContext) -> pb.AddJobReply:
        with self._ordered("job add", request, context) as order:
            network = self.network
            unknown = UnknownFieldSet(request)
            if any(unknown[number].field_number in RESERVATION_FIELDS for number in range(len(unknown))):
                raise JobsError(
                    "this controller does not support reservations: run `inart job add` when the job begins, from cron "
                    "or Slurm"
                )
            terms = given_terms(request, tenant_of(self.access, context))
            running, entries = None, 0
            if request.plan:
                given = Plan.from_json(parse_json(request.plan))
                order.job = given.job.name
                admission = network.admissions.admission(given, terms=terms)
                if not request.dry_run:
                    running, entries = network.add(admission.plan, terms=terms)
            else:
                job = parse_given_job(request.job, network, request.hosts, terms.tenant)
                order.job, strategy = job.name, request.strategy or "inart"
                if not request.dry_run:
                    admission, running, entries = network.launch(
                        job, strategy, request.seed, together=request.share, terms=terms
                    )
                elif request.share:
                    admission = network.admissions.shared(job, strategy, request.seed, terms)
                else:
                    admission = network.admissions.admit(job, strategy, request.seed, terms)
            reply = admission_reply(admission)
            if running is not None:
                reply.entries, reply.job_id = entries, running.job_id
            else:
                reply.changes.extend(messages(network.foreseen(admission, terms)))
            return reply

    def reload(self, request: pb.ReloadRequest, context: grpc.ServicerContext) -> pb.ReloadReply:
        """Take the topology's and the switches' files as they are now. End the call with the reason if that fails."""
        try:
            with self._ordered("topology reload", request, context):
                if self.network.read_again is None:
                    raise ReloadError("this controller was started without files that it could read again")
                done = self.network.read_again(request.dry_run)
        except (ReloadError, TargetError, ValueError, OSError) as error:
            self._log.warning(f"topology not reloaded: {error}")
            _refuse(context, error)
        return reload_reply(done)

    def remove_job(self, request: pb.RemoveJobRequest, context: grpc.ServicerContext) -> pb.RemoveJobReply:
        """Do what `Network.remove` does; with `share`, replan the others then. End the call with its error."""
        try:
            network = self.network
            if not request.name:
                raise JobsError(f"say which job: {', '.join(job.name for job in network.jobs) or 'there is none'}")
            with self._ordered("job remove", request, context):
                if (own := tenant_of(self.access, context)) and network.jobs.get(request.name).terms.tenant != own:
                    raise JobsError(f"job {request.name} is none of tenant {own}: an operator may remove it")
                entries, later = network.remove(request.name)
                rates = {}
                if request.share:
                    try:
                        rates = network.replanning.rebalance()
                    except Late as error:
                        self._log.warning(f"not all were replanned: {error}")
        except (JobsError, TargetError, MigrationError, ValueError) as error:
            _refuse(context, error)
        others = [pb.JobRate(name=name, before_mbps=was, after_mbps=now) for name, (was, now) in rates.items()]
        return pb.RemoveJobReply(entries=entries, later=later, others=others)

    def _ordered(self, what: str, request: Message, context: grpc.ServicerContext) -> AbstractContextManager[Order]:
        return ordered(self.network.journal, self.access, what, request, context)

    def renew(self, request: pb.RenewRequest, context: grpc.ServicerContext) -> pb.RenewReply:
        """Return the caller's next certificate (`renewed`)."""
        return renewed(self.access, context, self._log)

    def log(self, request: pb.LogRequest, context: grpc.ServicerContext) -> pb.LogReply:
        """Return a page of the journal."""
        page = self.network.journal.read(request.after, request.since, request.job, request.most)
        records = [
            pb.LogRecord(
                number=one.number, time=one.time, by=one.by, job=one.job, kind=one.kind, text=one.text,
                data=json.dumps(one.data), level=one.level,
            )
            for one in page.entries
        ]  # fmt: skip
        return pb.LogReply(records=records, next=page.next, more=page.more)


def renewed(access: Access, context: grpc.ServicerContext, log: Log) -> pb.RenewReply:
    """Return the caller's next certificate, for the role and name that its present one shows."""
    caller = access.caller(context)
    found = context.auth_context()
    if access.issuer is None or caller is None or "x509_pem_cert" not in found:
        context.abort(
            grpc.StatusCode.FAILED_PRECONDITION,
            "this controller renews no certificates: that takes a certificate, and the folder `authority` here",
        )
        raise AssertionError("abort raises")
    certificate, key = access.issuer(caller, certificate_began(found))
    log.info(f"a new certificate for {caller}")
    return pb.RenewReply(certificate=certificate, key=key)


def _refuse(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    """End the call with the message of the error."""
    wrong = isinstance(error, ValueError)
    code = grpc.StatusCode.INVALID_ARGUMENT if wrong else grpc.StatusCode.FAILED_PRECONDITION
    context.abort(code, _short(error))
    raise AssertionError("abort raises")


def _short(words: object) -> str:
    """Return as much of a text as fits into gRPC's 8 KiB of headers, since an error may quote a request."""
    text = str(words)
    return text if len(text) <= MOST_WORDS else f"{text[:MOST_WORDS]} ..."


def tenant_of(access: Access, context: grpc.ServicerContext) -> str:
    """Return the tenant that has sent a request, who adds and removes only jobs of its own; "" where nobody of a tenant
    has."""
    caller = access.caller(context)
    return caller.name if caller is not None and caller.role == "tenant" else ""


def parse_given_job(text: str, network: Network, hosts: Sequence[pb.Host] = (), tenant: str = "") -> Job:
    """Return the job of a request, which is JSON or words. For words, servers that no job uses and that the tenant may
    use are taken as long as there are enough. `hosts` are the machines that are its workers.

    Raise JobError or TopologyError where the request does not describe a job of this network.
    """
    workers = [host.name if network.has_server(host.name, ()) else network.server_at(host.addresses) for host in hosts]
    for host, node in zip(hosts, workers, strict=True):
        if not node:
            tried = f" and no server has {', '.join(host.addresses)}" if host.addresses else ""
            raise JobError(f"machine {host.name!r} is no node of the topology: no server is called so{tried}")
    others = {job.name: list(job.roster.configs) for job in network.jobs}
    quota = network.tenants.quota(tenant)
    barred = [node for node in network.topology.servers if not quota.allows(node)] if quota.known else []
    return parse_next_job(text, network.topology, others, workers, barred)


def given_terms(request: pb.AddJobRequest, own: str) -> Terms:
    """Return what a job is to be promised; raise ValueError where the request cannot be. `own` is the tenant that sent
    the request, or ""."""
    if own and request.tenant not in ("", own):
        raise ValueError(f"tenant {own}: it adds jobs for itself, not for tenant {request.tenant}, as an operator may")
    tenant = own or request.tenant
    return Terms(request.weight or 1.0, request.guarantee_mbps, request.priority, tenant)
