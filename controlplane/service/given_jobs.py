"""Reads the job, its terms and its reservation from a request."""

from __future__ import annotations

import math
from collections.abc import Sequence

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.job import Job, JobError, parse_next_job
from controlplane.planner.reservations import Reservation
from controlplane.planner.terms import Terms
from controlplane.service.network import Network
from controlplane.service.reservations import Reservations


def parse_given_job(text: str, network: Network, hosts: Sequence[pb.Host] = ()) -> Job:
    """Return the job of a request, which is JSON or words. For words, servers that no job uses are taken as long as
    there are enough. `hosts` are the machines that are its workers.

    Raise JobError or TopologyError where the request does not describe a job of this network.
    """
    workers = [host.name if network.has_server(host.name, ()) else network.server_at(host.addresses) for host in hosts]
    for host, node in zip(hosts, workers, strict=True):
        if not node:
            tried = f" and no server has {', '.join(host.addresses)}" if host.addresses else ""
            raise JobError(f"machine {host.name!r} is no node of the topology: no server is called so{tried}")
    others = {job.name: list(job.roster.configs) for job in network.jobs}
    return parse_next_job(text, network.topology, others, workers)


def given_terms(request: pb.AddJobRequest, tenant: str) -> Terms:
    """Return what a job of a tenant is to be promised; raise ValueError where the request cannot be."""
    return Terms(request.weight or 1.0, request.guarantee_mbps, request.priority, tenant)


def reserve(reservations: Reservations, request: pb.AddJobRequest, job: Job, terms: Terms) -> pb.AddJobReply:
    """Reserve a job for the time that the request names; in a dry run, only say what it would get. Raise JobsError,
    Infeasible or ValueError where that is impossible."""
    wanted = Reservation(
        job, request.strategy or "inart", request.seed, terms, request.start, request.until or math.inf,
        request.notice_seconds, request.preempt,
    )  # fmt: skip
    rate = (reservations.foresee if request.dry_run else reservations.book)(wanted)
    reply = pb.AddJobReply(name=job.name, rate_mbps=rate, note=f"reserved: {wanted}", workers=job.workers)
    reply.parameter_servers.extend(job.parameter_servers)
    return reply
