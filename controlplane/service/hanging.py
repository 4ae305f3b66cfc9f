"""Detection of a parameter server that hangs while workers wait for it, within some 1.5 s, where the job can do without
it.

A parameter server that runs reports once a second, and at once when its trees make no progress; workers report at once
when a tree of theirs makes none. So a server for which workers wait, and which does not report, hangs; unless the whole
machine, or the controller, is so slow that others do not report either. In that case no server is taken for hanging
here, and members.py decides after several seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.common.rpc import inart_pb2 as pb

HUNG_SECONDS = 1.4
"""Seconds since its last report after which a server may hang: a report is due every 1.0 to 1.2 s."""
FIRST_SECONDS = 2.0
"""Seconds after an epoch's beginning at which a server that has not reported yet counts as having reported: it may be
making ready."""
WAITED_SECONDS = 0.8
"""Seconds that must have passed since the controller has heard that a worker waits for the server."""
STANDS_SECONDS = 0.3
"""Seconds without progress of a tree after which a worker counts as waiting for the tree's root."""
PAUSED_SECONDS = 0.5
"""Seconds between two looks, which come ten times a second, above which the controller itself has stood still, so that
reports wait to be read."""


@dataclass
class Waits:
    """Waits for the parameter servers of one job. Times are in seconds, of a clock that never goes back.

    Attributes:
        since: by parameter server, when the controller first heard, after the server's last report, that a worker waits
            for it.
        looked: when `hanging` was called last.
    """

    since: dict[str, float] = field(default_factory=dict)
    looked: float = 0.0

    def heard(self, report: pb.ReportRequest, roots: Mapping[int, str], now: float) -> None:
        """Take a report of an agent. `roots` has, by tree, its parameter server."""
        self.since.pop(report.node, None)
        for tree in report.trees:
            root = roots.get(tree.tree, report.node)
            if root != report.node and tree.HasField("oldest_chunk") and tree.waiting_seconds >= STANDS_SECONDS:
                self.since.setdefault(root, now)

    def hanging(self, reported: Mapping[str, float], now: float) -> dict[str, float]:
        """Return a parameter server that hangs, with the seconds for which it has not reported; at most one, since the
        next one's fate depends on it. `reported` says, by agent of the job, when it reported last in this epoch
        (FIRST_SECONDS)."""
        paused = now - self.looked >= PAUSED_SECONDS
        self.looked = now
        if paused:
            self.since.clear()
            return {}
        late = [node for node, when in reported.items() if now - when >= HUNG_SECONDS]
        if len(late) != 1 or late[0] not in self.since or now - self.since[late[0]] < WAITED_SECONDS:
            return {}
        return {late[0]: now - reported[late[0]]}
