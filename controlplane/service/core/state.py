"""The state of one job's agents: who has joined, what each is doing, and which change of plan is under way.

Everything here is immutable. Functions of the state that decide nothing (who is missing, who may go on) are its
methods; what changes it is in membership.py and handover.py.
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

    __hash__ = str.__hash__  # that of an Enum takes longer, and each look at all nodes needs it

    EXPECTED = "expected"
    """The plan needs it, and no agent has joined for it. It needs no entry in `State.nodes`."""
    JOINED = "joined"
    """The plan needs it, and its agent waits until the others have joined."""
    RUNNING = "running"
    """The node's agent works with the configuration of the epoch that runs."""
    LEFT = "left"
    """The node's agent is done and has ended. The others may finish what is under way until the grace period ends."""
    LOST = "lost"
    """The node's agent is gone, and the job runs on without it. Its part of the plan is not yet given to others."""
    RETURNED = "returned"
    """The node was lost, and an agent has joined for it since. It waits until a plan uses the node again."""
    STANDBY = "standby"
    """An agent has joined for the node, and the plan does not need it."""
    DRAINING = "draining"
    """The new plan does not need it; its agent serves the operations of the previous epoch until these are done."""


class Phase(StrEnum):
    """State of the job as a whole."""

    WAITING = "waiting"
    """The job waits for agents that have not joined."""
    STARTING = "starting"
    """Each agent that is needed has joined, and the number of the new epoch is being stored."""
    RUNNING = "running"
    """All agents that the plan needs run, but for those that are done and have left."""
    SHORT = "short"
    """The job runs, but somebody was lost, and the plan has not been changed yet."""
    CLOSED = "closed"
    """The job was removed, or the controller ends. Nothing is decided any more."""


class Stage(StrEnum):
    """Stage of a change of plan."""

    STARTING = "starting"
    """The number of its epoch is being stored."""
    PREPARING = "preparing"
    """Agents make ready for the new plan, and workers hold back operations that they have not started."""
    DRAINING = "draining"
    """All have changed over; the operations of the previous epoch are not all done."""


MEMBER = frozenset({NodeState.JOINED, NodeState.RUNNING})
"""The agent has joined, and the plan needs it."""
RESERVE = frozenset({NodeState.STANDBY, NodeState.RETURNED, NodeState.DRAINING})
"""The agent has joined, and the plan does not use it."""
GONE = frozenset({NodeState.LOST, NodeState.RETURNED})
"""Lost from the epoch that runs."""


@dataclass(frozen=True)
class Known:
    """A node that may join: as what ("worker" or "parameter_server"), and its address. serves: a worker's host is a
    parameter server, too, with one agent for both."""

    role: str
    address: str
    serves: bool = False


class Place(NamedTuple):
    """A node's place in a plan. digest: of the configuration that its agent gets, without epoch and key. serves: as of
    `Known`, in this plan."""

    node: str
    role: str
    address: str
    digest: str
    serves: bool = False


def known_with(known: Mapping[str, Known], places: Iterable[Place]) -> dict[str, Known]:
    """The nodes that may join when these places are needed, too. A host that was a parameter server may be one again,
    whatever the plan of now makes of it."""
    more = {
        place.node: Known(place.role, place.address, place.serves or (place.node in known and known[place.node].serves))
        for place in places
    }
    return {**known, **more}


@dataclass(frozen=True)
class Node:
    """A node of the job, and the agent that has joined for it, if one has.

    connection: the number of its stream of events; 0 without an agent. agent: a random name of its process. process,
    peer: who that is, for people. running: (epoch, digest of the configuration) that the agent works with, (0, ""):
    none. since: when it joined, or began to wait. leaving, failure: it has said that it is about to end, because it is
    done or because of that failure. reason: why it was lost.
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

    carried_on: the epoch that the agents run already, after a restart of the controller (0: a new one begins).
    without: nodes that count as lost from its beginning. joined: the node whose agent's joining has caused it, if any.
    before: the phase until then. retried: its number could not be stored before.
    """

    carried_on: int
    without: tuple[str, ...]
    joined: str
    before: Phase
    retried: bool = False


@dataclass(frozen=True)
class Handover:
    """A change of plan under a running job, as the agents see it.

    places: of the new plan. again: operations under way are stopped and started again under the new plan, because an
    agent was lost. fewer: a worker of the running plan is not in the new one. next_operations: by node that is ready,
    the number of its next operation (again: of the first of which it has no result). done: by worker, operations whose
    results it has. first_operation: the first that the new plan sums, counted in the old epoch. switched: when the
    agents were told to change over. drained: workers that have all results of the old epoch. repeated: the most that a
    worker started again, (operations, bytes). broken: why operations of the old epoch cannot end; they are started
    again in another epoch as soon as its number is stored. instead_of: the epoch of the change that drained in vain and
    became this one, which starts again with the same plan; 0: there was none.
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
        """Nodes whose agents have not said yet that they are ready to change over."""
        return [place.node for place in self.places if place.node not in self.next_operations]

    def undrained(self) -> list[str]:
        """Workers that still have operations of the old epoch under way."""
        return [node for node in self.workers if node not in self.drained]

    def given(self) -> dict[int, int]:
        """Operations that are not started again although some worker lacks the result: the lost worker's part is in it,
        and only workers that have the result can give it. By operation: the number of such a worker."""
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

    version: of the packets' encoding; agents with another one are refused. grace: seconds for which the others may go
    on after an agent that was done and has left. least_workers: the job may go on without lost agents while it has so
    many workers and one parameter server; None: it never does. known: nodes that may join. plan: by node that the plan
    needs, the digest of its configuration. nodes: those of which there is anything to say. epoch: the last that began;
    0: none. repeat: the agents have stopped the operations under way, which are to be started again by the next change
    of plan. refusal: what agents are told once the job is closed.
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
    handover: Handover | None = None
    refusal: str = ""

    @property
    def running(self) -> bool:
        """Whether agents work by a configuration."""
        phase = self.starting.before if self.starting is not None else self.phase
        return phase in (Phase.RUNNING, Phase.SHORT)

    def state_of(self, node: str) -> NodeState:
        """Return the state of a node of the job. A node that the plan does not need, and for which no agent has joined,
        is "expected", too, since an agent may join for it."""
        return self.nodes[node].state if node in self.nodes else NodeState.EXPECTED

    def having(self, states: Collection[NodeState]) -> dict[str, Node]:
        """The nodes that are in one of these states."""
        return {node: one for node, one in self.nodes.items() if one.state in states}

    def missing(self) -> list[str]:
        """Nodes that the plan needs and whose agents are not there."""
        return [node for node in self.plan if self.state_of(node) not in MEMBER]

    def lost(self) -> dict[str, str]:
        """Nodes that were lost from the epoch that runs, and why."""
        return {node: one.reason for node, one in self.having(GONE).items()}

    def node_at(self, addresses: Iterable[str]) -> list[str]:
        """The nodes that have these addresses."""
        by_address = {known.address: node for node, known in self.known.items()}
        return [by_address[address] for address in addresses if address in by_address]

    def spare_servers(self) -> list[str]:
        """Parameter servers that wait, and that can begin while the others run."""
        return [node for node in self.having(RESERVE) if self.known[node].role == "parameter_server"]

    def suffices(self, nodes: Iterable[str]) -> bool:
        """Return whether the job may go on with these nodes only."""
        known = [self.known[node] for node in nodes]
        workers = sum(one.role == "worker" for one in known)
        serves = any(one.serves or one.role == "parameter_server" for one in known)
        return self.least_workers is not None and workers >= self.least_workers and serves

    def goes_on_without(self, node: str) -> bool:
        """Return whether the job, which runs, may go on when this node is lost, too. Where a worker is done and has
        left it may not: what is under way cannot be started again without it."""
        if not self.running:
            return False
        left = {*self.having(MEMBER), *self.spare_servers()} - {node}
        others = [one for one in self.plan if one != node and self.known[one].role == "worker"]
        done = any(self.state_of(one) not in MEMBER | GONE for one in others)
        return not done and self.suffices(left)

    def common_epoch(self, nodes: Iterable[str]) -> int:
        """The epoch that the agents of these nodes run already, each with the very configuration that it has in the
        plan (the controller has started again); 0: there is none."""
        running = {node: self.nodes[node].running for node in nodes}
        epochs = {epoch for epoch, _ in running.values()}
        same = all(digest == self.plan.get(node) for node, (_, digest) in running.items())
        return epochs.pop() if same and len(epochs) == 1 else 0

    def carries_on_without(self, lost: Collection[str]) -> int:
        """Return the epoch with which all others can go on after a restart of the controller, when these nodes count as
        lost because their agents are not there or were started anew; 0: they cannot."""
        members = self.having(MEMBER)
        left = [node for node in members if node not in lost]
        workers = any(self.known[node].role == "worker" for node in lost if node in members)
        if not lost or workers or not self.suffices({*left, *self.spare_servers()}):
            return 0
        return self.common_epoch(left)


def names(nodes: Iterable[str]) -> str:
    """A list of nodes for people; a long one is cut."""
    nodes = list(nodes)
    return ", ".join(nodes) if len(nodes) <= 8 else f"{', '.join(nodes[:6])} and {len(nodes) - 6} more"
