"""Makes room for a reserved job by removing jobs of a lower priority from the network.

Which jobs have to go is planned before any is touched, by the guarantees of the jobs that stay and by the room on the
switches. Where the reserved job would not be admitted even without all of them, none goes. What is planned can still
fail (a switch refuses entries, or other jobs cannot migrate): then the removed jobs are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from controlplane.common.log_lines import of_job, warning
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.reservations import Reservation
from controlplane.service.network import Network
from controlplane.service.next_plan import UpdateError
from controlplane.service.room import deployment_of
from controlplane.service.running import JobsError, RunningJob
from controlplane.targets.base import TargetError

REFUSALS = (JobsError, TargetError, UpdateError, ValueError)
"""Errors that mean that a job is not admitted."""


def launch(network: Network, one: Reservation) -> str:
    """Add a reserved job beside all that run. Return why that is not possible, or ""."""
    try:
        network.launch(one.job, one.strategy, one.seed, together=True, terms=one.terms)
    except REFUSALS as error:
        return str(error)
    return ""


def who_must_go(network: Network, one: Reservation, lower: Sequence[RunningJob]) -> list[RunningJob]:
    """Return which of the jobs that give way (`lower`, in the order in which they go) have to be removed so that a
    reserved job is admitted; none where it is not admitted even without all of them."""
    count = next((n for n in range(1, len(lower) + 1) if _fits(network, one, lower[:n])), 0)
    gone = list(lower[:count])
    for job in reversed(gone[:-1]):  # a job with the lowest priority need not be in the way
        fewer = [other for other in gone if other is not job]
        if _fits(network, one, fewer):
            gone = fewer
    return gone


def launch_instead(network: Network, one: Reservation, gone: Sequence[RunningJob], log: Callable[[str], None]) -> str:
    """Remove these jobs and add the reserved one. Return why that is not possible, or "". Where it is not, the removed
    jobs are put back, and their agents join when they are started again."""
    for job in gone:
        notify(job, f"is taken off the network for {one.name}, which is not admitted beside it", log)
        network.remove(job.name)
    problem = launch(network, one)
    for job in reversed(gone) if problem else ():
        try:
            network.launch(job.updater.job, job.plan.strategy, together=True, terms=job.terms)
            log(warning(f"job {job.name} is put back: {one.name} is not admitted without it either ({problem})"))
        except REFUSALS as error:
            log(warning(f"job {job.name} was taken off for {one.name} and cannot be put back: {error}"))
    return problem


def notify(job: RunningJob, words: str, log: Callable[[str], None]) -> None:
    """Send these words to a job's agents and to the log."""
    of_job(log, job.name)(warning(words))
    for member in job.roster.members().values():
        member.events.put(pb.Event(notice=pb.Notice(text=f"job {job.name} {words}")))


def _fits(network: Network, one: Reservation, gone: Collection[RunningJob]) -> bool:
    """Return whether a reserved job would be admitted, and have room on the switches, without the jobs `gone`."""
    stay = [job for job in network.jobs.staying() if job not in gone]
    try:
        plan = network.admissions.together(stay, [one])
        taken = network.switches.taken(without=[job.job_id for job in gone])
        deployment_of(plan, network.topology, network.kind, network.free_id(), taken=taken)
    except REFUSALS:
        return False
    return True
