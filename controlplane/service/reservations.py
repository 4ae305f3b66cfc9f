"""Keeps the reservations of a network: books them, tells which jobs give way, adds their jobs when it is time, and ends
them.

A reservation is booked only where its guarantee fits beside the guarantees of all others of its time, and of the
running jobs that do not give way to it. When its time comes, its job is planned together with all that run, of which
those of a lower priority give way. Where the job is not admitted even so and may preempt, jobs of a lower priority are
removed from the network; a removed job trains on over torch.distributed. Which jobs have to go is planned before any is
touched, by the guarantees of the jobs that stay and by the room on the switches. Where the reserved job would not be
admitted even without all of them, none goes. What is planned can still fail (a switch refuses entries, or other jobs
cannot migrate): then the removed jobs are put back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from controlplane.common.log_lines import clock, of_job, warning
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.reservations import LATEST_SECONDS, Reservation, beside
from controlplane.service.network import Network
from controlplane.service.next_plan import MigrationError
from controlplane.service.room import deployment_of
from controlplane.service.running import JobsError, RunningJob
from controlplane.service.threads import Periodic
from controlplane.targets.base import TargetError

LOOK_SECONDS = 0.5
AGAIN_SECONDS = 5.0
"""Seconds between two attempts to add a job whose time has come."""
MOST = 1000


class Reservations(Periodic):
    """The reservations of one network. Thread-safe."""

    def __init__(self, network: Network, log: Callable[[str], None], now: Callable[[], float] = time.time) -> None:
        super().__init__("reservations", LOOK_SECONDS, log)
        self._network, self._now = network, now
        self._lock = threading.RLock()
        self._held: dict[str, Reservation] = {one.name: one for one in network.reserved}
        self._problems: dict[str, tuple[float, str]] = {}
        self._in_vain: set[str] = set()  # names for which jobs were removed in vain, which is not done twice

    def book(self, reservation: Reservation) -> float:
        """Reserve. Return the rate that the job gets in its time, Mbit/s. Raise JobsError or Infeasible, which name
        what is in the way."""
        with self._lock:
            now = self._now()
            if reservation.name in self._held:
                raise JobsError(f"{self._held[reservation.name]} is reserved already; give this job another name")
            if len(self._held) >= MOST:
                raise JobsError(f"there are {MOST} reservations: cancel one first")
            if not now - AGAIN_SECONDS <= reservation.start <= now + LATEST_SECONDS:
                raise JobsError(f"{reservation}: a reservation begins between now and a year from now")
            rate = self.foresee(reservation)
            self._held[reservation.name] = reservation
            self._store()
            if words := self._network.unkept():
                del self._held[reservation.name]
                raise JobsError(f"job {reservation.name} was not reserved: {words}")
        self.log(f"reserved: {reservation}, {reservation.terms or 'nothing guaranteed'}")
        return rate

    def foresee(self, reservation: Reservation) -> float:
        """Return the rate that a reservation's job gets in its time, Mbit/s. Raise JobsError or Infeasible where it
        cannot be admitted."""
        network = self._network
        network.jobs.check_name(reservation.name)
        reservation.job.check(network.topology)
        with self._lock:
            others = beside(reservation, self._held.values())
        own = [one.terms for one in others if one.terms.tenant == reservation.terms.tenant]
        quota = network.tenants.quota(reservation.terms.tenant)
        if reservation.terms.tenant and (words := quota.refusal(reservation.terms, own)):
            raise JobsError(f"tenant {reservation.terms.tenant}: {words} (by what it has reserved for that time)")
        running = {one.name for one in others if one.running}
        stay = [
            job for job in network.jobs.staying() if job.name not in running and not reservation.gives_way(job.terms)
        ]
        return network.admissions.together(stay, [reservation, *others]).rate_mbps

    def cancel(self, name: str, tenant: str = "") -> bool:
        """Drop a reservation. Return whether there was one whose job does not run yet. Raise JobsError where `tenant`
        is set and the reservation is another tenant's."""
        with self._lock:
            held = self._held.get(name)
            if held is None:
                return False
            if tenant and held.terms.tenant != tenant:
                raise JobsError(f"job {name} is none of tenant {tenant}: an operator may remove it")
            self._forget(name)
        if not held.running:
            self.log(f"no longer reserved: {held}")
        return not held.running

    def status(self) -> list[pb.ReservationStatus]:
        """Return the reservations, in the order in which they begin."""
        with self._lock:
            held, problems = list(self._held.values()), dict(self._problems)
        return [
            pb.ReservationStatus(
                name=one.name, start=one.start, until=one.until if one.ends else 0.0, terms=str(one.terms),
                problem=problems.get(one.name, (0.0, ""))[1], running=one.running,
            )
            for one in sorted(held, key=lambda one: (one.start, one.name))
        ]  # fmt: skip

    def look(self) -> None:
        """Do everything for which the time has come."""
        for one in sorted(self._copy(), key=lambda one: (one.start, -one.terms.priority)):
            now = self._now()
            if now >= one.until:
                self._end(one)
            elif one.running:
                if all(job.name != one.name for job in self._network.jobs.staying()):
                    self._drop(one)  # its job was removed, or has ended
            elif now >= one.start:
                self._begin(one, now)
            elif now >= one.start - one.notice and not one.told:
                self._tell(one)

    def _copy(self) -> list[Reservation]:
        with self._lock:
            return list(self._held.values())

    def _store(self) -> None:
        self._network.reserved = tuple(self._held.values())
        self._network.changed()

    def _set(self, one: Reservation) -> None:
        with self._lock:
            if one.name in self._held:
                self._held[one.name] = one
                self._store()

    def _drop(self, one: Reservation) -> None:
        with self._lock:
            self._forget(one.name)

    def _forget(self, name: str) -> None:
        """Forget what was done about a reservation, so that another one with its name begins anew."""
        self._held.pop(name, None)
        self._problems.pop(name, None)
        self._in_vain.discard(name)
        self._store()

    def _end(self, one: Reservation) -> None:
        if one.running and any(job.name == one.name for job in self._network.jobs.staying()):
            self.log(f"job {one.name}: its reservation is over")
            self._network.remove(one.name)
        elif not one.running:
            problem = self._problems.get(one.name, (0.0, "no reason is known"))[1]
            self.log(warning(f"job {one.name} was never added in the time reserved for it: {problem}"))
        self._drop(one)

    def _tell(self, one: Reservation) -> None:
        """Tell the jobs that give way."""
        way = "has less from then on" + (", or is taken off the network" if one.preempt else "")
        for job in self._lower(one):
            notify(job, f"{way}: {one.name} (priority {one.terms.priority}) begins at {clock(one.start)}", self.log)
        self._set(replace(one, told=True))

    def _lower(self, one: Reservation) -> list[RunningJob]:
        """Return the jobs that give way, those first that are taken off first."""
        lower = [job for job in self._network.jobs.staying() if one.gives_way(job.terms)]
        return sorted(lower, key=lambda job: (job.terms.priority, -job.job_id))

    def _begin(self, one: Reservation, now: float) -> None:
        tried, _ = self._problems.get(one.name, (-AGAIN_SECONDS, ""))
        if now - tried < AGAIN_SECONDS:
            return
        if not one.told:
            self._tell(one)
        problem = launch(self._network, one)
        may = problem and one.preempt and one.name not in self._in_vain
        if may and (gone := who_must_go(self._network, one, self._lower(one))):
            problem = launch_instead(self._network, one, gone, self.log)
            if problem:
                self._in_vain.add(one.name)
        if problem:
            before = self._problems.get(one.name, (0.0, ""))[1]
            self._problems[one.name] = now, problem
            if problem != before:
                self.log(warning(f"job {one.name} is reserved from now on, and is not admitted: {problem}"))
            return
        self._problems.pop(one.name, None)
        self._set(replace(one, told=True, running=True))


REFUSALS = (JobsError, TargetError, MigrationError, ValueError)
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
            network.launch(job.migrator.job, job.plan.strategy, together=True, terms=job.terms)
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
