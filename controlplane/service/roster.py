"""The agents of one job: they join, start together, migrate together, and stop together when one is lost.

core/membership.py and core/migration.py decide what becomes of the job. This module has the streams, the locks, the
waiting of callers, and what agents report. It knows no gRPC.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.log_lines import SILENT, Log
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.service.core import actions, membership
from controlplane.service.core import events as ev
from controlplane.service.core.state import MEMBER, RESERVE, Known, Phase, Refused, Stage, State
from controlplane.service.effects import Effects
from controlplane.service.epochs import EpochStore
from controlplane.service.hanging import FIRST_SECONDS, Waits, silent, unreachable
from controlplane.service.journal import CoreJournal
from controlplane.service.members import Member, round_trips_ms, standing, status, tree_rates, waited_for, workers
from controlplane.service.plan_changes import PlanChanges
from controlplane.service.words import progress, wants_to_join
from controlplane.targets.secret_labels import SecretLabels

GRACE_SECONDS = 5.0
PATIENCE_SECONDS = 12.0
"""Seconds for which an agent waits whose node another process has. A connection whose other end has gone without a word
looks alive for 10 s (rpc/channels.py, KEEPALIVE)."""
LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Rules:
    """Rules of a job's roster: who may join, and when the job goes on without an agent.

    Attributes:
        version: of the packets' encoding; agents with another one are refused.
        grace: seconds for which the others may go on after an agent that announced that it leaves. It is done, but
            answers to them may have been lost, and they get them from the parameter server.
        patience: seconds for which an agent whose node another process has waits for that process to go.
        known: nodes that may join beside those that have a configuration.
        least_workers: the job goes on without lost agents while it has so many workers and one parameter server; None
            where it never does.
    """

    version: int
    grace: float = GRACE_SECONDS
    patience: float = PATIENCE_SECONDS
    known: Mapping[str, Known] = field(default_factory=dict)
    least_workers: int | None = None


class Roster:
    """The agents of one job. Thread-safe.

    Args:
        configs: by node, its agent's configuration, whose epoch is ignored.
        labels: what agents are told in the place of the configurations' label numbers; None where they get the numbers.
        on_lost: called (node, reason) when the job goes on without a node, with the roster's lock held; it must not
            wait.

    The attribute `plan` changes the plan of the job, and what its agents are told of it.
    """

    def __init__(
        self,
        configs: Mapping[str, AgentConfig],
        epochs: EpochStore,
        rules: Rules,
        log: Log = SILENT,
        *,
        labels: SecretLabels | None = None,
        on_lost: Callable[[str, str], None] = lambda node, reason: None,
        journal: CoreJournal | None = None,
    ) -> None:
        if not configs:
            raise ValueError("a job without agents")
        self._labels = labels
        self.patience = rules.patience
        self._log = log
        self._connections = itertools.count(1)
        self._waits = Waits()
        told = self._effects = Effects(configs, epochs, labels, log=log, plan_without=on_lost, journal=journal)
        told.state = membership.begin(
            told.places(configs),
            rules.version,
            known=dict(rules.known),
            grace=rules.grace,
            least_workers=rules.least_workers,
        )
        self._lock, self._news = self._effects.lock, self._effects.news
        self.plan = PlanChanges(self._effects, labels)

    # -- what is now ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """State of the core now."""
        return self._effects.state

    @property
    def journal(self) -> CoreJournal:
        """The job's events in the journal."""
        return self._effects.journal

    @property
    def configs(self) -> dict[str, AgentConfig]:
        """The configurations of the running plan, by node."""
        return self._effects.configs

    @property
    def epoch(self) -> int:
        """The last epoch that began; 0 before the first."""
        return self.state.epoch

    @property
    def running(self) -> bool:
        """Whether agents work with a configuration."""
        return self.state.running

    def members(self) -> dict[str, Member]:
        """Return the agents that the plan needs and that have joined, by node."""
        with self._lock:
            streams = self._effects.members
            return {
                node: streams[one.connection]
                for node, one in self.state.having(MEMBER).items()
                if one.connection in streams
            }

    def waiting(self) -> dict[str, float]:
        """Return the nodes that have joined and that the running plan does not need, with the seconds that they have
        waited."""
        now = time.monotonic()
        return {node: now - one.since for node, one in self.state.having(RESERVE).items()}

    def label_number(self, label: int) -> int:
        """Return the number that a label, which an agent reports, has in the configurations."""
        return label if self._labels is None else self._labels.number(label)

    def status(self) -> pb.StatusReply:
        """Return the agents and trees; the caller adds plan and switches."""
        with self._lock:
            return status(self.state, self.configs, self.members(), time.monotonic())

    # -- what agents have measured ----------------------------------------------------------------------------------

    def round_trips_ms(self) -> dict[int, dict[str, float]]:
        """Return each worker's shortest round trip of this epoch by tree, in ms, where one was reported."""
        with self._lock:
            return round_trips_ms(self.members().values())

    def tree_rates(self) -> dict[int, float]:
        """Return the Mbit/s that each tree carries for a worker while all workers are busy there (members.py), without
        the trees on which one was idle, or of which one has not reported lately."""
        with self._lock:
            return tree_rates(workers(self.configs, self.members()) if self.running else (), time.monotonic())

    def standing(self) -> tuple[dict[int, float], set[int]]:
        """Return what `members.standing` returns for the workers of the running plan; nothing while one is missing."""
        with self._lock:
            return standing(workers(self.configs, self.members()) if self.running else (), time.monotonic())

    def stalled(self, seconds: float) -> float | None:
        """Return since when an agent of the running job has had the same oldest open chunk (the longest of several), or
        operations before a migration have not ended. Return None where that is less than so many seconds."""
        with self._lock:
            now, migration = time.monotonic(), self.state.migration
            waits = [member.waits(now) for member in self.members().values()] if self.running else []
            if migration is not None and migration.stage == Stage.DRAINING:
                waits.append(now - migration.switched)
            longest = max(waits, default=0.0)
            return now - longest if longest >= seconds else None

    # -- agents -----------------------------------------------------------------------------------------------------

    def join(self, request: pb.JoinRequest, peer: str = "") -> Member:
        """Let an agent join. Raise Refused where it may not, and OSError where no epoch could be stored, so that none
        can begin.

        A second process for the same node replaces the first only when it asks for that. Otherwise it is refused,
        unless the first one goes: after a crash its connection may look alive for a while.
        """
        with self._lock:
            joining = wants_to_join(request, peer, next(self._connections))
            deadline = time.monotonic() + self.patience
            while self.state.phase != Phase.CLOSED and membership.occupied(self.state, joining):
                if time.monotonic() > deadline:
                    break
                self._news.wait(LOOK_SECONDS)
            member = self._effects.members[joining.connection] = Member("", joining.connection, peer, request.agent)
            try:
                for action in self._effects.take(joining):
                    if isinstance(action, actions.Refuse):
                        raise Refused(action.reason)
            except BaseException:
                self._effects.members.pop(member.connection, None)
                raise
            member.node = membership.identify(self.state, joining)
            return member

    def in_use(self, request: pb.JoinRequest) -> str:
        """Return, in words, who has the node that this agent wants; "" where no process has, or the agent takes over.
        Raise Refused where it may not join."""
        return membership.occupied(self.state, wants_to_join(request, "", 0))

    def knows(self, request: pb.JoinRequest) -> bool:
        """Return whether the agent's node is one of this job's."""
        return request.node in self.state.known if request.node else bool(self.state.node_at(request.addresses))

    def announce_leave(self, agent: str, failure: str = "") -> None:
        """Take note that an agent is about to end its stream, because it is done or because of a failure."""
        with self._lock:
            if any(one.agent == agent for one in self.state.nodes.values()):
                self._effects.take(ev.LeaveAnnounced(agent, failure))

    def leave(self, member: Member) -> None:
        """Take note that an agent's stream has ended. Do not wait: gRPC calls this in the thread of all calls."""
        with self._lock:
            if self._effects.storing or any(one.connection == member.connection for one in self.state.nodes.values()):
                since = member.began if member.reported is None else member.reported
                self._effects.post(ev.Left(member.connection, time.monotonic() - since if member.began else 0.0))

    def report(self, request: pb.ReportRequest) -> None:
        """Take an agent's statistics; those of an earlier epoch are ignored."""
        with self._lock:
            one = self.state.nodes.get(request.node)
            member = self._effects.members.get(one.connection) if one is not None and one.state in MEMBER else None
            if member is None or request.epoch != self.epoch:
                return
            now = time.monotonic()
            refused = member.refused(request)
            if refused:
                self._log.warning(f"{member.node} refused {refused}: something between them changes or forges packets")
            member.take(request, now)
            if request.trees:
                roots = {tree.tree: node for node, config in self.configs.items() for tree in config.root_trees}
                self._waits.heard(request, roots, now)
            rounds = self._effects.rounds
            again, member.heard = rounds.count(request.node), rounds.number
            if again and self.running and not self._effects.storing:
                waited = waited_for(self.configs, self.members(), now)
                hang = silent(self.state, self.members(), rounds.number, waited, now)
                hang += unreachable(self.state, waited, now)
                for node, seconds in hang[:1]:  # the job may need the next one when this one is gone
                    self._effects.post(ev.Silent(node, seconds))

    def look_for_hanging(self) -> None:
        """Remove a parameter server for which workers wait and that does not report, if the job goes on without it. To
        be called ten times a second."""
        with self._lock:
            if self._effects.storing:  # the agents of another epoch may be there a moment later
                return
            reported = {
                node: member.began + FIRST_SECONDS if member.reported is None else member.reported
                for node, member in self.members().items()
            }
            for node, seconds in self._waits.hanging(reported, time.monotonic()).items():
                if self.state.goes_on_without(node):
                    self._effects.post(ev.Silent(node, seconds))

    def report_update(self, report: pb.UpdateReport) -> None:
        """Take note of how far an agent is with a migration."""
        with self._lock:
            migration = self.state.migration
            if migration is None or migration.epoch != report.epoch:
                return
            self._effects.take(progress(report))

    def give_up(self, reason: str) -> None:
        """Stop all agents until the lost ones are back, since the job does not go on without them."""
        self._effects.take(ev.GivenUp(reason))

    def close(self, refusal: str = "") -> None:
        """End all streams. What the agents run goes on without a controller, unless a refusal tells them to end."""
        self._effects.take(ev.Closed(refusal))
