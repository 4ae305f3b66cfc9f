"""Agents that hang: how long one may report nothing. The roster's lock protects all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.service.core.state import State
from controlplane.service.members import Member

SILENT_SECONDS = 10.0
"""Seconds without a report after which a parameter server that has reported before counts as hanging: its connection
may look alive for hours."""
SILENT_SPARED_SECONDS = 5.0
"""SILENT_SECONDS where the job goes on without the agent, so that a wrong guess costs little."""
SILENT_AT_FIRST_SECONDS = 20.0
"""SILENT_SECONDS for a parameter server that has never reported in this epoch: it may still be making ready."""
SILENT_ROUNDS = 5
"""Rounds of reports that must have passed since an agent's last one: after a pause of the controller itself, all
reports are late."""
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


class Rounds:
    """Counts rounds of reports. A new round begins when an agent reports for the second time in one. So rounds pass as
    agents report, and not while the controller itself is held up and no report of any agent arrives."""

    def __init__(self) -> None:
        self.number = 0
        self._reported: set[str] = set()

    def count(self, node: str) -> bool:
        """Count a report of this node's agent. Return whether a new round has begun with it."""
        new = node in self._reported
        if new:
            self.number += 1
            self._reported.clear()
        self._reported.add(node)
        return new


def silent(
    state: State, members: Mapping[str, Member], rounds: int, waited: Mapping[str, float], now: float
) -> list[tuple[str, float]]:
    """Return the members that hang, and for how many seconds each has not reported. `rounds` is the number of rounds so
    far; `waited` is what `members.waited_for` returns.

    A parameter server that hangs is removed, so that the workers need not wait for it. If the job cannot go on without
    the server, they have to wait for it already: otherwise only its connection to the controller is lost. A worker that
    hangs is its own trainer, which nobody can replace: the others wait for it, unless the job may go on without it.
    """
    found = []
    for node, member in members.items():
        known = member.reported is not None
        seconds = now - (member.reported if member.reported is not None else member.began)
        if seconds <= (SILENT_SPARED_SECONDS if known else SILENT_AT_FIRST_SECONDS):
            continue  # nearly always
        if rounds - member.heard < SILENT_ROUNDS:
            continue
        server = state.known[node].role == "parameter_server"
        hangs = not known or (seconds > SILENT_SECONDS and waited.get(node, 0.0) > SILENT_SECONDS)
        if (server and hangs) or state.goes_on_without(node):
            found.append((node, seconds))
    return found


def unreachable(state: State, waited: Mapping[str, float], now: float) -> list[tuple[str, float]]:
    """Return the agents out of reach that do not work any more, with the seconds for which each has not reported: the
    others have waited for them for as long. `waited` is what `members.waited_for` returns."""
    seconds = {node: now - one.since for node, one in state.out_of_reach().items()}
    return [(node, time) for node, time in seconds.items() if min(time, waited.get(node, 0.0)) > SILENT_SECONDS]


@dataclass
class Waits:
    """Waits for the parameter servers of one job, by which one that hangs is found within some 1.5 s, where the job can
    do without it. Times are in seconds, of a clock that never goes back.

    A parameter server that runs reports once a second, and at once when its trees make no progress; workers report at
    once when a tree of theirs makes none. So a server for which workers wait, and which does not report, hangs; unless
    the whole machine, or the controller, is so slow that others do not report either. In that case no server is taken
    for hanging here, and `silent` decides after several seconds.

    `since` has, by parameter server, when the controller first heard, after the server's last report, that a worker
    waits for it.
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
