"""Detection of a parameter server that hangs while workers wait for it: within some 1.5 s, where the job can do without
it.

A parameter server that runs reports once a second, and at once when its trees stand; and workers report at once when a
tree of theirs stands. So one that workers wait for and that says nothing hangs, unless the whole machine, or the
controller, is so slow that others say nothing either: then nobody is taken for hanging here, and members.py decides
after several seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.common.rpc import inart_pb2 as pb

HUNG_SECONDS = 1.4
"""Since its last report: a report is due every 1.0 to 1.2 s."""
FIRST_SECONDS = 2.0
"""One that has not reported in this epoch counts as if it had, so long after its beginning: it may be making ready."""
WAITED_SECONDS = 0.8
"""Since the controller has heard that a worker waits for it."""
STANDS_SECONDS = 0.3
"""A worker waits for the root of a tree that has made no progress for so long."""
PAUSED_SECONDS = 0.5
"""Seconds between two looks, which come ten times a second, above which the controller itself has stood still, so that
reports are waiting."""


@dataclass
class Waits:
    """Waits for the parameter servers of one job. since: by parameter server, when the controller first heard, after
    its last report, that a worker waits for it. looked: when `hanging` was asked last. Times in seconds of a clock that
    never goes back."""

    since: dict[str, float] = field(default_factory=dict)
    looked: float = 0.0

    def heard(self, report: pb.ReportRequest, roots: Mapping[int, str], now: float) -> None:
        """A report has come. roots: by tree, its parameter server."""
        self.since.pop(report.node, None)
        for tree in report.trees:
            root = roots.get(tree.tree, report.node)
            if root != report.node and tree.HasField("oldest_chunk") and tree.waiting_seconds >= STANDS_SECONDS:
                self.since.setdefault(root, now)

    def hanging(self, reported: Mapping[str, float], now: float) -> dict[str, float]:
        """Parameter servers that hang, and for how many seconds they have not reported; at most one, as the next one's
        fate depends on it. reported: by agent of the job, when it reported last in this epoch (FIRST_SECONDS)."""
        paused = now - self.looked >= PAUSED_SECONDS
        self.looked = now
        if paused:
            self.since.clear()
            return {}
        late = [node for node, when in reported.items() if now - when >= HUNG_SECONDS]
        if len(late) != 1 or late[0] not in self.since or now - self.since[late[0]] < WAITED_SECONDS:
            return {}
        return {late[0]: now - reported[late[0]]}
