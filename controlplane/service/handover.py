"""A change of plan under a running job, as the agents see it: prepare, switch over at one operation, drain, retire.

prepare --all are ready--> switch over --workers are done with the old--> retire
   |--one cannot, or one is lost--> withdrawn: the old plan goes on (or everything stops, as ever when one is lost)
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.rpc import inart_pb2 as pb


class HandoverError(Exception):
    """The job cannot change its plan now; the message says why."""


@dataclass
class Handover:
    """State of one update. Not thread-safe: the roster's lock guards it.

    configs: of all agents, with the new epoch. first_operation: the first one, counted in the old epoch, that the new
    plan sums; None until the switch-over. failure: why it does not take place, or did not end in good order. again: an
    agent was lost: operations are counted since the job began, and started again from the first that a worker lacks.
    repeated: the most that a worker started again, (operations, bytes). fewer: a worker is lost. done: operations whose
    results a worker has.
    """

    epoch: int
    configs: Mapping[str, AgentConfig]
    next_operations: dict[str, int] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    first_operation: int | None = None
    failure: str = ""
    switched: float | None = None
    again: bool = False
    repeated: tuple[int, int] = (0, 0)
    fewer: bool = False
    done: dict[str, frozenset[int]] = field(default_factory=dict)

    @property
    def workers(self) -> list[str]:
        """Of the new configurations."""
        return [node for node, config in self.configs.items() if config.role == "worker"]

    def report(self, node: str, report: pb.UpdateReport) -> None:
        """An agent says how far it is; words about another update are dropped."""
        if report.epoch != self.epoch or self.failure:
            return
        if report.failure:
            self.failure = report.failure
        elif report.stage == pb.UpdateReport.DRAINED:
            self.drained.add(node)
            self.repeated = max(self.repeated, (report.repeated_operations, report.repeated_bytes))
        else:
            self.next_operations[node] = report.next_operation
            self.done[node] = frozenset(report.done)

    def unprepared(self) -> list[str]:
        """Who has not said yet that it is ready to change over."""
        return [node for node in self.configs if node not in self.next_operations]

    def undrained(self) -> list[str]:
        """Workers that still have something under way of the old plan."""
        return [node for node in self.workers if node not in self.drained]

    def choose_operation(self) -> int:
        """The first operation that no worker has started: all hold theirs back, so all can still switch there. Again:
        the first that a worker has no result of."""
        self.switched = time.monotonic()
        choose = min if self.again else max
        self.first_operation = choose(self.next_operations[node] for node in self.workers)
        return self.first_operation

    def given(self) -> dict[int, int]:
        """Operations that are not started again although some worker lacks the result: the lost worker's part is in it,
        and only those who have it can give it. By number: who does, by the worker's number."""
        found: dict[int, int] = {}
        if self.fewer and self.first_operation is not None:
            for index, node in reversed(list(enumerate(self.workers))):
                found |= {number: index for number in self.done.get(node, ()) if number >= self.first_operation}
        return found

    def __str__(self) -> str:
        if self.first_operation is None:
            return f"the new plan waits for {', '.join(self.unprepared())} to be ready"
        return f"the old plan goes when {', '.join(self.undrained())} have all results of it"
