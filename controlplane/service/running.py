"""A running job, and the jobs of a network by their names."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.plan import Plan
from controlplane.planner.terms import USUAL, Terms
from controlplane.service.core.disabled import Why
from controlplane.service.core.state import NodeState, Refused
from controlplane.service.migration import Migrator
from controlplane.service.roster import Roster
from controlplane.service.state import Stored
from controlplane.service.threads import InTurn


class NoJobYet(Refused):
    """No job has this agent's node, or the name that it asks for; a job that is added later may."""


class JobsError(Exception):
    """A job does not exist, exists already, or would get nothing; the message says which, and what to do."""


class RunningJob:
    """A job that runs: its agents, and its plan, which `migrator` changes while it runs. `terms` are what the job is
    promised where jobs share the network."""

    def __init__(self, roster: Roster, migrator: Migrator, job_id: int, terms: Terms = USUAL) -> None:
        self.terms = terms
        self.ending = False  # it is being removed
        self.without: dict[str, Why] = {}  # agents without which its plans are made, and why
        self._changing = threading.Lock()  # of `without`
        self.losses: Counter[str] = Counter()  # by node, how many times it was lost
        self.mending = InTurn()  # held by whoever handles the loss of an agent, one at a time
        self.roster = roster
        self.migrator = migrator
        self.job_id = job_id

    def stored(self) -> Stored:
        """Return the job as it is now, for a controller that starts again."""
        running = self.migrator.running
        return Stored(self.job_id, running.plan, running.deployment, self.terms, self.migrator.job)

    @property
    def servers(self) -> tuple[str, ...]:
        """The nodes for which its plan is made: workers and parameter servers."""
        return (*self.plan.job.workers, *self.plan.job.parameter_servers)

    def do_without(self, nodes: Iterable[str], why: Why) -> None:
        """Make plans for the job without these agents from now on."""
        with self._changing:
            self.without = self.without | dict.fromkeys(nodes, why)

    def use_again(self, nodes: Collection[str]) -> None:
        """Allow plans for the job to use these agents again."""
        with self._changing:
            self.without = {node: why for node, why in self.without.items() if node not in nodes}

    def unused(self) -> dict[str, Why]:
        """Return the agents of the job that its plan does not use, and why."""
        whole, planned = self.migrator.job, self.plan.job
        idle = {*whole.workers, *whole.parameter_servers}.difference(planned.workers, planned.parameter_servers)
        return dict.fromkeys(sorted(idle), Why.UNUSED) | self.without

    @property
    def leaving(self) -> bool:
        """Whether an agent is done and has left, so that the others are about to be done, too."""
        return self.roster.running and bool(self.roster.state.having((NodeState.LEFT,)))

    @property
    def name(self) -> str:
        return self.migrator.job.name

    @property
    def plan(self) -> Plan:
        """The plan that runs now."""
        return self.migrator.plan


class Jobs:
    """Jobs by name. Thread-safe. `begun` has the number of the job that is being put on the switches, if there is
    one."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self._jobs: dict[str, RunningJob] = {}
        self._lock = threading.RLock()
        self._added = threading.Condition(self._lock)

    def __iter__(self) -> Iterator[RunningJob]:
        with self._lock:
            return iter(list(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: RunningJob) -> None:
        """Add a job, which then no longer counts as begun. Raise JobsError where there is one of that name."""
        with self._lock:
            self.check_name(job.name)
            self._jobs[job.name] = job
            self.begun.clear()
            self._added.notify_all()

    def wait_for(self, request: pb.JoinRequest, timeout: float) -> RunningJob | None:
        """Return the job that an agent wants to join, as soon as there is one; None where there is none within so many
        seconds. Raise Refused where there are several."""

        def found() -> RunningJob | None:
            try:
                return self.of(request)
            except NoJobYet:
                return None

        with self._added:
            return self._added.wait_for(found, timeout)

    def check_name(self, name: str) -> None:
        """Check that there is no job of that name; raise JobsError otherwise."""
        with self._lock:
            if name in self._jobs:
                raise JobsError(f"a job named {name!r} runs already; give this one another name")

    def runs(self, job: RunningJob) -> bool:
        """Return whether a job is one of these, and is not being removed."""
        return not job.ending and any(one is job for one in self)

    def staying(self) -> list[RunningJob]:
        """Return the jobs that are not being removed."""
        return [job for job in self if not job.ending]

    def discard(self, job: RunningJob) -> None:
        """Remove a job, where it is one of these."""
        with self._lock:
            self._jobs.pop(job.name, None)

    def get(self, name: str = "") -> RunningJob:
        """Return the job of that name or, without a name, the only job. Raise JobsError where there is no such job."""
        with self._lock:
            names = ", ".join(self._jobs) or "none"
            if name and name not in self._jobs:
                raise JobsError(f"there is no job {name!r}; the jobs are: {names}")
            if not name and len(self._jobs) != 1:
                raise JobsError("there is no job" if not self._jobs else f"say which job: {names}")
            return self._jobs[name] if name else next(iter(self._jobs.values()))

    def of(self, request: pb.JoinRequest) -> RunningJob:
        """Return the job that an agent wants to join: the one that it names, or else the only one with its node or
        address.

        Raise NoJobYet where there is none now, and Refused where there are several, or where the agent works for a job
        that was removed while it was away, and another job has its node.
        """
        jobs = list(self)
        matching = [job for job in jobs if job.roster.knows(request)]
        try:
            if request.job:
                return self.get(request.job)
        except JobsError as error:
            if request.running_epoch and matching:
                raise Refused(f"its job {request.job} was removed, and {matching[0].name} has its node now") from None
            raise NoJobYet(str(error)) from None
        if len(matching) == 1:
            return matching[0]
        who = request.node or ", ".join(request.addresses) or "an agent without a name"
        if matching:
            names = ", ".join(job.name for job in matching)
            raise Refused(f"{who} is in several jobs ({names}): say which with INART_JOB=NAME (--job NAME)")
        there = "; ".join(f"{job.name}: {', '.join(job.roster.configs)}" for job in jobs) or "there is no job"
        raise NoJobYet(f"{who} is not a node of any job ({there})")


def job_state(job: RunningJob) -> str:
    """Return "running" where all of a job's agents are there, else "waiting"."""
    missing = set(job.roster.configs) - set(job.roster.members())
    return "running" if job.roster.running and not missing else "waiting"
