"""State of a running network: what is disabled, what agents measured, and what its jobs leave."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

from controlplane.planner.job import Job
from controlplane.planner.plan import Plan
from controlplane.planner.plan.measured import RoundTrips, adding_in, host_times_ms, with_adding, with_measured
from controlplane.planner.topology import Topology
from controlplane.service.core.disabled import Why
from controlplane.service.core.others import Link
from controlplane.service.core.parts import Parts
from controlplane.service.core.trust import used_again
from controlplane.service.core.ways import Layout, avoidable
from controlplane.service.residual import with_loads, with_others, with_taken, without
from controlplane.service.running import Jobs, JobsError, RunningJob
from controlplane.service.switches import Switches
from controlplane.service.tenants import Tenants
from controlplane.targets.kind import Kind
from p4src.protocol import frame_bytes


class NetworkState:
    """The state of a network: its topology without what is disabled, and what jobs leave of it.

    Thread-safe. Whoever changes `parts` or `bases` holds `lock`; `parts` is replaced as a whole. Facts about a job are
    kept by the job itself, not by its name or number, which a later job may have, and are dropped with it.

    Args:
        topology: the network before anything is disabled.

    Attributes:
        bases: by job, the topology for which its last plan was made, before anything is disabled.
        others: by link, the Mbit/s that plans leave to other traffic, where that is measured.
        others_mbps: by link, the measured average of other traffic (core/others.py).
        lock: never held for long, since failures must not wait for orders.
    """

    def __init__(self, topology: Topology, kind: Kind, switches: Switches, jobs: Jobs, tenants: Tenants) -> None:
        self.topology, self.kind, self.switches, self.jobs = topology, kind, switches, jobs
        self.tenants = tenants
        self.lock = threading.RLock()
        self.parts = Parts(layout_of(topology))
        self.bases: WeakKeyDictionary[RunningJob, Topology] = WeakKeyDictionary()
        self.others: Mapping[Link, float] = {}
        self.others_mbps: Mapping[Link, float] = {}
        self._measured: dict[str, float] = {}  # by server, what it adds to round trips, ms, by the last report
        self._adding: dict[str, dict[str, float]] = {}  # by host, what it adds, by its agent's last report
        # By job: the plan and the round trips from which servers' times were found, and these times.
        self._found: WeakKeyDictionary[RunningJob, tuple[Plan, RoundTrips, dict[str, float]]] = WeakKeyDictionary()

    @property
    def off(self) -> Mapping[str, Why]:
        """Switches and links that no plan uses, and why."""
        return self.parts.off

    @property
    def now(self) -> Topology:
        """The network as it is now, without what is disabled."""
        return self.at(self.topology, self.off)

    def at(self, base: Topology, off: Iterable[str]) -> Topology:
        """Return a topology as it is now: without what is disabled, and with what agents and switches measured."""
        state = with_others(without(base, off), self.others)
        return with_adding(with_measured(state, self.host_times_ms()), self.adding())

    def of(self, job: RunningJob) -> Topology:
        """Return the topology that `now` has, with the changes for which the job's last plan was made."""
        with self.lock:
            base = self.bases.get(job, self.topology)
            return self.at(base, [*avoidable(self.off, self.parts.layout, job.servers), *job.without])

    def left(self, topology: Topology, job_id: int | None) -> Topology:
        """Return what the other jobs leave of a state of the network: rates, and room on the switches."""
        others = [job.plan for job in self.jobs if job.job_id != job_id]
        return with_taken(with_loads(topology, others), self.switches.taken(without=[job_id]), self.kind)

    def host_times_ms(self) -> dict[str, float]:
        """Return the ms that each server adds to a round trip, as found from agents' measurements in this epoch or an
        earlier one."""
        for job in self.jobs:
            if trips := job.roster.round_trips_ms():
                plan, found = job.plan, self._found.get(job)
                if found is None or found[0] is not plan or found[1] != trips:  # computed only after a change
                    bits = 8 * frame_bytes(self.kind.limits.values_per_packet)
                    found = self._found[job] = plan, trips, host_times_ms(plan, self.topology, bits, trips)
                self._measured = self._measured | found[2]
        return self._measured

    def adding(self) -> Mapping[str, Mapping[str, float]]:
        """Return what hosts add, as their agents measured it in this epoch or an earlier one."""
        for job in self.jobs:
            said = {node: adding_in(member.statistics) for node, member in job.roster.members().items()}
            self._adding = self._adding | {node: named for node, named in said.items() if named}
        return self._adding

    @property
    def disabled(self) -> dict[str, str]:
        """Switches, links and servers that no plan uses now, and why; with a server comes the name of its job."""
        servers = {node: f"{why}, job {job.name}" for job in self.jobs for node, why in job.unused().items()}
        return {**servers, **self.off}

    def cut_off(self, job: RunningJob) -> bool:
        """Return whether the only switch of one of the job's agents is disabled."""
        return any(switch in self.off for node in job.servers for switch in self.parts.layout.only_switch(node))

    def check_reach(self, job: Job) -> None:
        """Check that each server of the job, and its only switch, can be used; raise JobError or JobsError otherwise,
        which says when it can be."""
        job.check(self.topology)
        with self.lock:
            for node in (*job.workers, *job.parameter_servers):
                for name in (node, *self.parts.layout.only_switch(node)):
                    if (why := self.off.get(name)) is not None:
                        hangs = f"{node} hangs on {name}, which" if name != node else node
                        when = used_again(self.parts.trust, name, why, time.monotonic())
                        now = f"inart undrain {name} enables it now"
                        raise JobsError(f"job {job.name!r}: {hangs} is disabled ({why}): {when}; {now}")


def layout_of(topology: Topology) -> Layout:
    """Return a topology as far as the core has to know it."""
    return Layout(
        {node: topology.neighbours(node) for node in topology.nodes},
        frozenset(topology.switches),
        {v: {topology.port(v, other): other for other in topology.neighbours(v)} for v in topology.switches},
    )
