"""A network whose switches are in memory: jobs, failures and orders without sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.job import Job
from controlplane.planner.topology import Topology
from controlplane.service.core.journal import Journal
from controlplane.service.epochs import EpochStore
from controlplane.service.failures import Watch
from controlplane.service.network import Network, Settings
from controlplane.service.room import split
from controlplane.service.running import RunningJob
from controlplane.targets.p4runtime.kind import P4RuntimeKind
from p4src.artifacts import find
from p4src.protocol import ENCODING
from tests.support.memory import MemoryTarget


class MemoryNetwork:
    """A network of memory targets that keepers fill and watch. `watch` reads the switches only when it is called."""

    def __init__(
        self,
        folder: Path,
        kind: P4RuntimeKind,
        topology: Topology,
        journal: Callable[[int], Journal] = lambda job_id: Journal(),
        beside: float | None = None,
    ) -> None:
        self.topology = topology
        self.targets = {name: MemoryTarget(name) for name in topology.switches}
        self.log: list[str] = []
        self.network = Network(
            topology, kind, list(self.targets.values()), epochs=EpochStore(folder / "epoch"), log=self.log.append,
            settings=Settings(journal=journal, beside=beside),
        )  # fmt: skip
        self.network.switches.fill()
        self.network.switches.watch()
        self.watch = Watch(self.network, self.log.append)

    def add(self, job: Job, together: bool = False) -> RunningJob:
        return self.network.launch(job, "inart", together=together)[1]

    def adding(self, job: RunningJob) -> MemoryTarget:
        """Return a switch that aggregates for a job and has none of its servers connected."""
        plan = job.updater.plan
        access = {self.topology.access_switch(node) for node in (*plan.job.workers, *plan.job.parameter_servers)}
        return self.targets[next(p for tree in plan.trees for p in tree.points if p not in access)]

    def join(self, job: RunningJob) -> dict[str, object]:
        roster = job.roster
        return {
            node: roster.join(pb.JoinRequest(node=node, role=config.role, version=ENCODING))
            for node, config in roster.configs.items()
        }

    def as_wanted(self) -> bool:
        """Return whether every switch holds exactly the rules that all jobs have there."""
        switches = self.network.switches
        for target in self.targets.values():
            held = split(target.rules)
            for job in self.network.jobs:
                if _entries(held.pop(job.job_id, None)) != _entries(_some(switches.rules(job.job_id)[target.name])):
                    return False
            if held or not target.rules.routes:
                return False
        return True


@contextmanager
def memory_network(folder: Path, topology: Topology) -> Iterator[MemoryNetwork]:
    """A network of switches with 4 values a packet, which is closed at the end; its log is printed, for a test that
    fails."""
    made = MemoryNetwork(folder, P4RuntimeKind(find("v1model", 4)), topology)
    try:
        yield made
    finally:
        print("\n".join(made.log))
        made.network.close()


def _entries(rules):  # type: ignore[no-untyped-def]
    """Compare rules whatever their order."""
    return rules and (set(rules.labels), set(rules.groups))


def _some(rules):  # type: ignore[no-untyped-def]
    return next(iter(split(rules).values()), None)
