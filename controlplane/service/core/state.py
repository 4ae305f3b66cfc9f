"""The state of one job's agents: who has joined, what each is doing, and which migration is under way.

Everything here is immutable. Methods answer questions about the state and decide nothing; membership.py and
migration.py decide which state follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Refused(Exception):
    """The agent cannot join; the message says why, and what to do."""


class NodeState(StrEnum):
    """State of a node of the job."""

    __hash__ = str.__hash__  # an Enum's own is slower, and every search for nodes in a state needs it

    EXPECTED = "expected"
    """The plan needs the node, and no agent has joined for it. Such a node needs no entry in `State.nodes`."""
    JOINED = "joined"
    """The plan needs the node, and its agent waits until the others have joined."""
    RUNNING = "running"
    """The node's agent works with the configuration of the running epoch."""
    LEFT = "left"
    """The node's agent is done and has ended. The others may finish the operations under way until the grace period
    ends."""
    LOST = "lost"
    """The node's agent is gone, and the job runs on without it. No new plan has given its part to others yet."""
    RETURNED = "returned"
    """The node was lost, and an agent has joined for it since. It waits until a plan uses the node again."""
    STANDBY = "standby"
    """An agent has joined for the node, and the plan does not need it."""
    DRAINING = "draining"
    """The new plan does not need the node; its agent serves the operations of the previous epoch until these are
    done."""


class Phase(StrEnum):
    """State of the job as a whole."""

    WAITING = "waiting"
    """The job waits for agents that have not joined."""
    STARTING = "starting"
    """All agents that the plan needs have joined, and the number of the new epoch is being stored."""
    RUNNING = "running"
    """All agents that the plan needs run, except those that are done and have left."""
    SHORT = "short"
    """The job runs without an agent that was lost, and its plan has not been changed yet."""
    CLOSED = "closed"
    """The job was removed, or the controller ends. No event changes anything any more."""


class Stage(StrEnum):
    """Stage of a migration."""

    STARTING = "starting"
    """The number of the new epoch is being stored."""
    PREPARING = "preparing"
    """Agents make ready for the new plan, and workers hold back operations that they have not started."""
    DRAINING = "draining"
    """All agents have switched over, and some operations of the previous epoch are not done."""


MEMBER = frozenset({NodeState.JOINED, NodeState.RUNNING})
"""States in which the agent has joined, and the plan needs it."""
RESERVE = frozenset({NodeState.STANDBY, NodeState.RETURNED, NodeState.DRAINING})
"""States in which the agent has joined, and the plan does not use it."""
GONE = frozenset({NodeState.LOST, NodeState.RETURNED})
"""States of a node that was lost from the running epoch."""


@dataclass(frozen=True)
class Known:
    """A node that may join the job: its role ("worker" or "parameter_server") and its address. With `serves`, a
    worker's host is a parameter server, too, and one agent does both."""

    role: str
    address: str
    serves: bool = False


class Place(NamedTuple):
    """A node's place in a plan. The `digest` is that of the configuration that its agent gets, without epoch and key.
    With `serves`, a worker's host is also a parameter server in this plan."""

    node: str
    role: str
    address: str
    digest: str
    serves: bool = False


def known_with(known: Mapping[str, Known], places: Iterable[Place]) -> dict[str, Known]:
    """Return the nodes that may join when these places are needed, too. A host that was a parameter server may be one
    again, whatever it is in the present plan."""
    more = {
        place.node: Known(place.role, place.address, place.serves or (place.node in known and known[place.node].serves))
        for place in places
    }
    return {**known, **more}


@dataclass(frozen=True)
class Node:
    """A node of the job, and the agent that has joined for it, if there is one.

    Attributes:
        connection: the number of the agent's stream of events; 0 without an agent, and while a running agent is out of
            reach.
        running: the epoch and the digest of the configuration that the agent works with; (0, "") without one.
        since: when the agent joined, or began to wait, in seconds.
        leaving: the agent has announced that it ends because it is done.
        failure: the failure because of which the agent has announced that it ends; "" without one.
    """

    state: NodeState
    connection: int = 0
    agent: str = ""
    process: str = ""
    peer: str = ""
    running: tuple[int, str] = (0, "")
    since: float = 0.0
    leaving: bool = False
    failure: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Starting:
    """An epoch that begins as soon as its number is stored.

    Attributes:
        carried_on: the epoch that the agents run already, after a restart of the controller; 0 where a new one begins.
        without: nodes that count as lost from its beginning.
        joined: the node whose agent's joining has caused it, or "".
        retried: its number could not be stored before.
    """

    carried_on: int
    without: tuple[str, ...]
    joined: str
    before: Phase
    retried: bool = False


@dataclass(frozen=True)
class Migration:
    """A migration under a running job, as the agents see it.

    Attributes:
        again: operations under way are stopped and started again under the new plan, because an agent was lost.
        fewer: a worker of the running plan is not in the new one.
        epoch: the one that begins with the new plan.
        next_operations: by node that is ready, the number of its next operation; with `again`, the number of the first
            operation of which it has no result.
        done: by worker, the operations whose results it has.
        first_operation: the first one that the new plan sums, counted in the old epoch.
        switched: when the agents were told to switch over, in seconds.
        drained: workers that have all results of the old epoch.
        repeated: the most that a worker has started again, as operations and bytes.
        broken: why operations of the old epoch cannot end; they are started again in another epoch as soon as its
            number is stored.
        instead_of: the epoch of the migration whose operations could not end and which this one repeats with the same
            plan; 0 where there was none.
    """

    stage: Stage
    places: tuple[Place, ...]
    again: bool
    fewer: bool
    epoch: int = 0
    next_operations: Mapping[str, int] = field(default_factory=dict)
    done: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    first_operation: int = 0
    switched: float = 0.0
    drained: frozenset[str] = frozenset()
    repeated: tuple[int, int] = (0, 0)
    broken: str = ""
    instead_of: int = 0

    @property
    def workers(self) -> list[str]:
        """The workers of the new plan."""
        return [place.node for place in self.places if place.role == "worker"]

    def unprepared(self) -> list[str]:
        """Return the nodes whose agents have not yet said that they are ready to switch over."""
        return [place.node for place in self.places if place.node not in self.next_operations]

    def undrained(self) -> list[str]:
        """Return the workers that still have operations of the old epoch under way."""
        return [node for node in self.workers if node not in self.drained]

    def given(self) -> dict[int, int]:
        """Return the operations that are not started again although some worker lacks the result, each with the number
        of a worker that has it. The result has the lost worker's part in it, so only workers that have it can give it
        to the others."""
        found: dict[int, int] = {}
        if self.fewer:
            for index, node in reversed(list(enumerate(self.workers))):
                found |= {number: index for number in self.done.get(node, ()) if number >= self.first_operation}
        return found

    def __str__(self) -> str:
        if self.stage == Stage.DRAINING:
            return f"the old plan goes when {', '.join(self.undrained())} have all results of it"
        return f"the new plan waits for {', '.join(self.unprepared())} to be ready"


@dataclass(frozen=True)
class State:
    """State of one job's agents.

    Attributes:
        version: of the packets' encoding; agents with another one are refused.
        grace: seconds for which the others may go on after an agent that was done and has left.
        least_workers: the job may go on without lost agents while it has so many workers and one parameter server; None
            where it never may.
        plan: by node that the plan needs, the digest of its configuration.
        nodes: every node that is not simply expected.
        epoch: the last one that began; 0 before the first.
        repeat: the agents have stopped the operations under way, which the next migration is to start again.
        refusal: what agents are told once the job is closed.
    """

    version: int
    grace: float
    least_workers: int | None
    known: Mapping[str, Known]
    plan: Mapping[str, str]
    nodes: Mapping[str, Node] = field(default_factory=dict)
    phase: Phase = Phase.WAITING
    epoch: int = 0
    repeat: bool = False
    starting: Starting | None = None
    migration: Migration | None = None
    refusal: str = ""

    @property
    def running(self) -> bool:
        """Whether agents work with a configuration."""
        phase = self.starting.before if self.starting is not None else self.phase
        return phase in (Phase.RUNNING, Phase.SHORT)

    def state_of(self, node: str) -> NodeState:
        """Return the state of a node of the job. A node that the plan does not need, and for which no agent has joined,
        is "expected", too, since an agent may join for it."""
        return self.nodes[node].state if node in self.nodes else NodeState.EXPECTED

    def having(self, states: Collection[NodeState]) -> dict[str, Node]:
        """Return the nodes that are in one of these states."""
        return {node: one for node, one in self.nodes.items() if one.state in states}

    def migrating(self, epoch: int, stage: Stage) -> Migration | None:
        """Return the migration to this epoch where it is under way and in this stage."""
        found = self.migration
        return found if found is not None and (found.epoch, found.stage) == (epoch, stage) else None

    def missing(self) -> list[str]:
        """Return the nodes that the plan needs and whose agents are not there."""
        there = {node for node, one in self.having(MEMBER).items() if one.connection}
        return [node for node in self.plan if node not in there]

    def out_of_reach(self) -> dict[str, Node]:
        """Return the nodes whose agents work, as far as is known, and have no connection to the controller."""
        return {node: one for node, one in self.having(MEMBER).items() if not one.connection}

    def lost(self) -> dict[str, str]:
        """Return the nodes that were lost from the running epoch, and why."""
        return {node: one.reason for node, one in self.having(GONE).items()}

    def node_at(self, addresses: Iterable[str]) -> list[str]:
        """Return the nodes that have these addresses."""
        by_address = {known.address: node for node, known in self.known.items()}
        return [by_address[address] for address in addresses if address in by_address]

    def spare_servers(self) -> list[str]:
        """Return the parameter servers that wait, and that can begin while the others run."""
        return [node for node in self.having(RESERVE) if self.known[node].role == "parameter_server"]

    def suffices(self, nodes: Iterable[str]) -> bool:
        """Return whether the job may go on with these nodes only."""
        known = [self.known[node] for node in nodes]
        workers = sum(one.role == "worker" for one in known)
        serves = any(one.serves or one.role == "parameter_server" for one in known)
        return self.least_workers is not None and workers >= self.least_workers and serves

    def goes_on_without(self, node: str) -> bool:
        """Return whether the job runs, and may go on when this node is lost, too. It may not where a worker is done and
        has left, since the operations under way cannot be started again without that worker."""
        if not self.running:
            return False
        left = {*self.having(MEMBER), *self.spare_servers()} - {node}
        others = [one for one in self.plan if one != node and self.known[one].role == "worker"]
        done = any(self.state_of(one) not in MEMBER | GONE for one in others)
        return not done and self.suffices(left)

    def common_epoch(self, nodes: Iterable[str]) -> int:
        """Return the epoch that the agents of these nodes run already, after a restart of the controller, each with
        exactly the configuration that its node has in the plan; 0 where there is no such epoch."""
        running = {node: self.nodes[node].running for node in nodes}
        epochs = {epoch for epoch, _ in running.values()}
        same = all(digest == self.plan.get(node) for node, (_, digest) in running.items())
        return epochs.pop() if same and len(epochs) == 1 else 0

    def carries_on_without(self, lost: Collection[str]) -> int:
        """Return the epoch with which all others can go on after a restart of the controller, when these nodes count as
        lost because their agents are not there or were started anew; 0 where the others cannot go on."""
        members = self.having(MEMBER)
        left = [node for node in members if node not in lost]
        workers = any(self.known[node].role == "worker" for node in lost if node in members)
        if not lost or workers or not self.suffices({*left, *self.spare_servers()}):
            return 0
        return self.common_epoch(left)


def names(nodes: Iterable[str]) -> str:
    """Return a list of nodes for people, cut where it is long."""
    nodes = list(nodes)
    return ", ".join(nodes) if len(nodes) <= 8 else f"{', '.join(nodes[:6])} and {len(nodes) - 6} more"
