"""One event while it is being decided: the state so far, and the actions so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from controlplane.service.core.actions import Abort, Action, MigrationFailed, Say, Tell, Waiting, Withdraw, Word
from controlplane.service.core.state import MEMBER, RESERVE, Node, NodeState, Place, Stage, State, known_with


class Step:
    """Collects the new state and the actions of one event. The `State` that it is made with stays as it is.

    `now` is in seconds, of a clock that never goes back.
    """

    def __init__(self, state: State, now: float) -> None:
        self.state, self.now = state, now
        self.actions: list[Action] = []

    def change(self, **fields: Any) -> None:
        """Give these fields of the state other values."""
        self.state = replace(self.state, **fields)

    def put(self, node: str, **fields: Any) -> None:
        """Give these fields of a node other values."""
        self.change(nodes={**self.state.nodes, node: replace(self.state.nodes[node], **fields)})

    def place(self, node: str, entry: Node | None) -> None:
        """Replace what is known of a node. With None the entry goes, and the node is expected."""
        others = {one: known for one, known in self.state.nodes.items() if one != node}
        self.change(nodes=others if entry is None else {**others, node: entry})

    def do(self, action: Action) -> None:
        """Add an action."""
        self.actions.append(action)

    def say(self, line: str, *, warning: bool = False) -> None:
        """Add a line for the log."""
        self.do(Say(line, warning))

    def tell(self, node: str, *words: Word) -> None:
        """Send messages to the agent of a node, if it can be reached."""
        connection = self.state.nodes[node].connection
        for word in words if connection else ():
            self.do(Tell(node, connection, word))

    def tell_members(self, word: Word) -> None:
        """Send a message to all agents that the plan needs and that have joined."""
        for node in self.state.having(MEMBER):
            self.tell(node, word)

    def tell_missing(self) -> None:
        """Tell the members for whom the job waits."""
        self.tell_members(Waiting(tuple(self.state.missing())))

    def stop(self, node: str, reason: str, *culprits: str) -> None:
        """Tell the agent of this node to stop what it runs, if it runs anything, for this reason, which these nodes
        have caused."""
        if self.state.nodes[node].running[0]:
            self.put(node, running=(0, ""))
            self.tell(node, Abort(reason, culprits))

    def stand_by(self, node: str) -> None:
        """Tell the agent of this node to wait until a plan uses it."""
        lost = self.state.nodes[node].reason
        self.put(node, state=NodeState.RETURNED if lost else NodeState.STANDBY, since=self.now)
        self.tell(node, Waiting((node,), standby_words(node)))

    def rearrange(self, places: Iterable[Place], *, drain: bool = False) -> None:
        """Replace the plan. Agents that the new one does not need stand by (with `drain`: after they have served what
        is under way), and those that stand by and that it needs become members."""
        places = tuple(places)
        self.change(known=known_with(self.state.known, places), plan={place.node: place.digest for place in places})
        for node, entry in self.state.having(MEMBER).items():
            if node not in self.state.plan and not entry.connection:
                self.place(node, None)
            elif node not in self.state.plan and drain:
                self.put(node, state=NodeState.DRAINING)
            elif node not in self.state.plan:
                self.stop(node, standby_words(node))
                self.stand_by(node)
        for node in self.state.having({NodeState.LEFT}):
            if node not in self.state.plan:
                self.place(node, None)
        self.promote_standbys()

    def promote_standbys(self) -> None:
        """Make members of the agents that stand by and that the plan needs."""
        for node in self.state.having(RESERVE):
            if node in self.state.plan:
                self.put(node, state=NodeState.JOINED, reason="")

    def fail_migration(self, reason: str) -> None:
        """End a migration that is under way early. One that agents are only preparing is withdrawn."""
        migration = self.state.migration
        if migration is None:
            return
        self.change(migration=None)
        self.do(MigrationFailed(migration.epoch, reason))
        if migration.stage == Stage.PREPARING:
            self.say(f"the migration does not take place: {reason}", warning=True)
            for node in self.state.having(MEMBER | RESERVE):
                self.tell(node, Withdraw(migration.epoch, reason))


def standby_words(node: str) -> str:
    """Return a sentence for an agent that has joined and gets no configuration."""
    return f"the job goes on without {node} for now; it waits to be used again"
