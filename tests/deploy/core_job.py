"""A job's agents before the service's core: no socket, no thread, no clock. Each agent believes what it is told."""

from __future__ import annotations

import json
from collections.abc import Iterable

from controlplane.service.core import actions, membership
from controlplane.service.core import events as ev
from controlplane.service.core.journal import event_of_job, replay, to_json
from controlplane.service.core.state import GONE, MEMBER, RESERVE, Known, NodeState, Phase, Place, State
from controlplane.service.journal import CoreJournal, Journal

VERSION = 1
ROLES = {"w1": "worker", "w2": "worker", "ps1": "parameter_server", "ps2": "parameter_server"}


def places(nodes: Iterable[str] = ROLES, plan: str = "first") -> tuple[Place, ...]:
    """Return a change to a plan that needs these nodes."""
    return tuple(Place(node, ROLES[node], f"10.0.0.{list(ROLES).index(node)}", f"{plan} of {node}") for node in nodes)


class CoreJob:
    """Two workers and two parameter servers before the core; the job may continue without one of the servers.

    told: by connection, the messages to that agent. runs: by connection, the epoch that the agent works in, as it was
    told. said: the log. moves, phases: the changes of a node's state and of the job's state that have occurred.
    failures: reasons for which migrations failed. disk_full: no epoch can be stored.
    """

    def __init__(self, least_workers: int | None = 2, nodes: Iterable[str] = ROLES) -> None:
        known = {node: Known(role, f"10.0.0.{number}") for number, (node, role) in enumerate(ROLES.items())}
        self.state: State = membership.begin(
            places(nodes), VERSION, known=known, grace=5.0, least_workers=least_workers
        )
        self.journal = CoreJournal(Journal(), "A")
        self.now, self.number, self.disk_full = 0.0, 0, False
        self.told: dict[int, list[actions.Word]] = {}
        self.runs: dict[int, int] = {}
        self.ended: set[int] = set()
        self.said: list[str] = []
        self.failures: list[str] = []
        self.lost: list[str] = []
        self.timers: list[ev.Event] = []
        self.moves: set[tuple[NodeState, NodeState]] = set()
        self.phases: set[tuple[Phase, Phase]] = set()
        self.refusals: list[str] = []

    # -- what happens -----------------------------------------------------------------------------------------------

    def take(self, event: ev.Event) -> list[actions.Action]:
        """Handle an event, and store an epoch where that follows; returns what is to be done."""
        done: list[actions.Action] = []
        events = [event]
        while events:
            event = events.pop(0)
            before, text = self.state, json.dumps(to_json(self.state))
            self.state, decided = membership.decide(before, event, self.now)
            entry = event_of_job("A", before, event, now=self.now, clock=1e9 + self.now)
            self.journal.add(before, entry, self.state)
            assert json.dumps(to_json(before)) == text, "a state is never changed"
            for node in self.state.known:
                self.moves.add((before.state_of(node), self.state.state_of(node)))
            self.phases.add((before.phase, self.state.phase))
            for action in decided:
                self.carry_out(action)
                if isinstance(action, actions.StoreEpoch):
                    number = action.carried_on or self.number + 1
                    self.number = self.number if self.disk_full else number
                    events.append(ev.EpochNotStored("full") if self.disk_full else ev.EpochStored(number))
            done += decided
        self.check()
        return done

    def carry_out(self, action: actions.Action) -> None:
        match action:
            case actions.Tell(_, connection, word):
                assert connection not in self.ended, "nothing follows the end of a stream"
                self.told.setdefault(connection, []).append(word)
                if isinstance(word, actions.Configure | actions.SwitchOver):
                    self.runs[connection] = word.epoch
                elif isinstance(word, actions.Abort):
                    self.runs[connection] = 0
                elif isinstance(word, actions.End):
                    self.ended.add(connection)
            case actions.Say(line):
                self.said.append(line)
            case actions.MigrationFailed(_, reason):
                self.failures.append(reason)
            case actions.PlanWithout(node, _):
                self.lost.append(node)
            case actions.After(_, event):
                self.timers.append(event)
            case actions.Refuse(_, reason):
                self.refusals.append(reason)

    def join(self, node: str, *, running: tuple[int, str] = (0, ""), **fields: object) -> int:
        """Let an agent join; returns the number of its connection."""
        connection = len(self.told) + 1
        self.told[connection], self.runs[connection] = [], running[0]
        given = {"role": ROLES.get(node, "worker"), "version": VERSION, "agent": f"agent {connection}", **fields}
        self.take(ev.Joined(connection, node, (), running_epoch=running[0], running_digest=running[1], **given))  # type: ignore[arg-type]
        return connection

    def join_all(self, nodes: Iterable[str] = ROLES) -> dict[str, int]:
        return {node: self.join(node) for node in nodes}

    def change(self, nodes: Iterable[str], plan: str, *, until: str = "retired", **operations: int) -> None:
        """Change to a plan that needs these nodes, up to this stage: "ordered", "prepared", "switched", "retired".
        operations: by node, the number of its next operation.
        """
        self.take(ev.MigrationOrdered(places(nodes, plan), False))
        migration = self.state.migration
        assert migration is not None
        if until == "ordered":
            return
        for node in nodes:
            self.take(ev.Prepared(self.state.nodes[node].agent, migration.epoch, operations.get(node, 0)))
        if until == "prepared":
            return
        self.take(ev.SwitchOrdered(migration.epoch))
        if until == "switched":
            return
        for node in migration.workers:
            self.take(ev.Drained(self.state.nodes[node].agent, migration.epoch))
        self.take(ev.RetireOrdered(migration.epoch))

    # -- what is true whatever happens ------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the properties that hold after every event."""
        state = self.state
        assert state.starting is None and state.phase != Phase.STARTING, "an epoch has begun, or could not"
        assert (state.phase == Phase.SHORT) == bool(state.lost()) or state.phase == Phase.CLOSED
        for node, one in state.nodes.items():
            assert (one.connection > 0) == (one.state in MEMBER | RESERVE) or one.state == NodeState.RUNNING, node
            if state.phase == Phase.CLOSED or one.connection == 0:
                continue
            assert self.runs[one.connection] == one.running[0], f"{node} believes something else than the core"
            assert one.connection not in self.ended
            if one.state == NodeState.RUNNING:
                assert state.running and one.running == (state.epoch, state.plan[node])
            assert (one.state in MEMBER | GONE | {NodeState.LEFT}) == (node in state.plan), node
        connections = [one.connection for one in state.nodes.values() if one.connection]
        assert len(connections) == len(set(connections))
        if state.phase == Phase.WAITING:
            assert state.missing() or ev.EpochRetried() in self.timers, "nobody waits for nothing"
        if state.migration is not None:
            assert state.running, "a migration ends with what runs"

    def check_journal(self) -> None:
        """Check that replaying the journal from its text gives the same state."""
        assert replay(self.journal.records(), "A") == self.state

    def kinds(self, connection: int) -> list[str]:
        """Return the kinds of messages that an agent has been told, in order."""
        return [type(word).__name__ for word in self.told[connection]]
