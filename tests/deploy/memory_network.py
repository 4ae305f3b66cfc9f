"""A network whose switches are in memory: jobs, failures and orders without sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controlplane.common.log_lines import calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.tls import Tls
from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job
from controlplane.planner.topology import Topology
from controlplane.service.controller import Controller
from controlplane.service.epochs import EpochStore
from controlplane.service.failures import Watch
from controlplane.service.journal import Journal
from controlplane.service.network import Network, Settings
from controlplane.service.room import split
from controlplane.service.running import RunningJob
from controlplane.targets.p4runtime.kind import P4RuntimeKind
from p4src.artifacts import find
from p4src.protocol import ENCODING
from tests.support.memory import MemoryTarget


class Clock:
    """A clock that only a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


RACKS = leaf_spine(2, 2, 3, 300.0)
"""Leaves e1 and e2 with hosts h1 to h3 and h4 to h6, and spines s1 and s2."""


class MemoryNetwork:
    """A network of memory targets that keepers fill and watch. `watch` reads the switches only when it is called.
    values: how many its switches have in a packet."""

    def __init__(
        self,
        folder: Path,
        topology: Topology = RACKS,
        journal: Journal | None = None,
        beside: float | None = None,
        values: int = 4,
    ) -> None:
        self.topology = topology
        self.controllers: list[Controller] = []
        self.targets = {name: MemoryTarget(name) for name in topology.switches}
        self.log: list[str] = []
        self.logger = calling(self.log.append)
        kind = P4RuntimeKind(find("v1model", values))
        self.network = Network(
            topology, kind, list(self.targets.values()), epochs=EpochStore(folder), log=self.logger,
            settings=Settings(journal=journal, beside=beside),
        )  # fmt: skip
        self.network.switches.fill()
        self.network.switches.watch()
        self.watch = Watch(self.network, self.logger)

    def serve(self, tls: Tls | None = None, **how: Any) -> str:
        """Start a controller on this machine, until the network is closed; returns its address."""
        self.controllers.append(Controller(self.network, log=self.logger, **how))
        return f"127.0.0.1:{self.controllers[-1].start('127.0.0.1:0', tls)}"

    def close(self) -> None:
        """Stop everything, and print the log for a test that fails."""
        for controller in self.controllers:
            controller.stop()
        self.network.close()
        print("\n".join(self.log))

    def add(self, job: Job, together: bool = False) -> RunningJob:
        return self.network.launch(job, "inart", together=together)[1]

    def adding(self, job: RunningJob) -> MemoryTarget:
        """Return a switch that aggregates for a job and has none of its servers connected."""
        plan = job.migrator.plan
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


def _entries(rules):  # type: ignore[no-untyped-def]
    """Compare rules whatever their order."""
    return rules and (set(rules.labels), set(rules.groups))


def _some(rules):  # type: ignore[no-untyped-def]
    return next(iter(split(rules).values()), None)
