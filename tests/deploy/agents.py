"""The agents of a job as a roster sees them: the test decides what they answer, without any network."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.service.members import Member
from controlplane.service.roster import Roster
from p4src.protocol import ENCODING


class Agents:
    """The agents of a job; workers have started `started[node]` operations.

    unwilling: cannot run another plan. silent: never answers. slow: does not finish operations of the old plan unless
    it is told to stop operations in progress and to start them again.
    """

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.started: dict[str, int] = {}
        self.unwilling = self.silent = self.slow = ""
        self.roles = {node: config.role for node, config in roster.configs.items()}
        self.events: dict[str, list[str]] = {node: [] for node in roster.configs}
        self.members: dict[str, Member] = {}
        self.told: dict[str, list[AgentConfig]] = {node: [] for node in roster.configs}
        self.threads = [threading.Thread(target=self._live, args=(node,)) for node in roster.configs]

    def join(self) -> None:
        for node in self.roster.configs:
            self._join(node)
        for thread in self.threads:
            thread.start()

    def join_again(self, node: str) -> None:
        """Start an agent again that was lost."""
        self._join(node)
        self.threads.append(threading.Thread(target=self._live, args=(node,)))
        self.threads[-1].start()

    def carry_on(self, epoch: int, nodes: Iterable[str]) -> None:
        """Join after a restart of the controller: these agents join with the plan that they run."""
        for node in nodes:
            self._join(node, running_epoch=epoch, running_digest=self.roster.configs[node].digest)
            self.threads.append(threading.Thread(target=self._live, args=(node,)))
            self.threads[-1].start()

    def _join(self, node: str, **running: Any) -> None:
        request = pb.JoinRequest(node=node, role=self.roles[node], version=ENCODING, agent=f"agent-{node}", **running)
        self.members[node] = self.roster.join(request)

    def _live(self, node: str) -> None:
        member = self.members[node]
        again = False
        while (event := member.events.get()) is not None:
            kind = event.WhichOneof("kind") or ""
            self.events[node].append(kind)
            if kind in ("configuration", "prepare"):
                self.told.setdefault(node, []).append(AgentConfig.from_json(getattr(event, kind).agent_config))
            if kind == "prepare":
                again = event.prepare.again
            if kind == "prepare" and node != self.silent:
                self.report(node, pb.UpdateReport.PREPARED)
            if kind == "switch_over" and (again or node != self.slow) and self.roles[node] == "worker":
                self.report(node, pb.UpdateReport.DRAINED)

    def report(self, node: str, stage: pb.UpdateReport.Stage) -> None:
        # Any epoch but the prepared one is dropped, so take it from the roster as the agent would from its event.
        migration = self.roster.state.migration
        if migration is not None:
            failure = "no memory" if node == self.unwilling and stage == pb.UpdateReport.PREPARED else ""
            report = pb.UpdateReport(agent=f"agent-{node}", epoch=migration.epoch, stage=stage, failure=failure)
            report.next_operation = self.started.get(node, 0)
            self.roster.report_update(report)

    def end(self) -> None:
        """Wait for the end, after the roster is closed."""
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(10)
