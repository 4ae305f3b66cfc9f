"""Decides about an agent that a running job has lost: look for a plan without it, wait for what is missing, or give up.

    idle --an agent is lost--> planning --a plan is found--> idle
                               planning --none is found, and what is missing may be back soon--> patient --> planning
                               planning --none is found--> idle (the job stops until the agent is back)

All events enter by `decide`. One loss is dealt with at a time; losses that follow meanwhile wait for their turn.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from controlplane.service.core.actions import Say

PATIENCE_SECONDS = 30.0
AGAIN_SECONDS = 0.3
"""Seconds between two searches for a plan without a lost agent, while a switch does not answer. They end after
PATIENCE_SECONDS."""
ATTEMPTS = 3
"""Most searches for a plan, where more agents are lost during each."""


class Stage(StrEnum):
    """Stage of what is done about a lost agent."""

    IDLE = "idle"
    """No agent is lost, or nothing more is done about it."""
    PLANNING = "planning"
    """A plan without the lost agents is being made, and the job migrates to it."""
    PATIENT = "patient"
    """No plan was found. Something that is missing may be back soon, and then a plan is looked for again."""


@dataclass(frozen=True)
class Facts:
    """Facts about a job at the moment of an event.

    Attributes:
        runs: neither the job nor the controller is ending.
        members: nodes that the plan needs and whose agents are there.
        lost: nodes that were lost from the running epoch, and why.
        waiting: nodes whose agents wait until a plan uses them.
        without: nodes that plans for the job do not use.
        missing: a switch does not answer, or something is disabled that may be back soon.
    """

    runs: bool
    members: Collection[str] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    without: Collection[str] = ()
    missing: bool = False


@dataclass(frozen=True)
class Mending:
    """The state of what is done about lost agents of one job.

    Attributes:
        began: when the controller began to look for a plan without it, in seconds.
        attempt: how many times a plan has been looked for.
        gone: the nodes that were lost when the last search began.
        queue: agents that were lost since, each with the reason.
    """

    job: str
    stage: Stage = Stage.IDLE
    node: str = ""
    reason: str = ""
    began: float = 0.0
    attempt: int = 0
    gone: tuple[str, ...] = ()
    queue: tuple[tuple[str, str], ...] = ()


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentLost:
    """The agent of this node was lost for this reason, and the job runs on without it."""

    node: str
    reason: str


@dataclass(frozen=True)
class PlanFound:
    """The job has migrated to a plan without the lost agents."""


@dataclass(frozen=True)
class NoPlanFound:
    """No plan was found; `error` says why."""

    error: str


@dataclass(frozen=True)
class TriedAgain:
    """The seconds of the action `TryAgain` have passed."""


@dataclass(frozen=True)
class NextTurn:
    """The answer to the action `TakeNext`."""


Event = AgentLost | PlanFound | NoPlanFound | TriedAgain | NextTurn

# -- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DoWithout:
    """Make plans for the job without these nodes from now on."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class UseAgain:
    """Allow plans for the job to use these nodes again."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class CountLoss:
    """Count one more loss of this node."""

    node: str


@dataclass(frozen=True)
class FindPlan:
    """Find a plan and migrate the job to it; answer with `PlanFound` or `NoPlanFound`. With `crowded`, a plan is found
    also where other jobs have taken all capacity: it gets a little for now."""

    crowded: bool


@dataclass(frozen=True)
class TryAgain:
    """Bring the event `TriedAgain` after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class GiveUp:
    """Stop the job, for this reason, until the lost agents are back."""

    reason: str


@dataclass(frozen=True)
class TakeNext:
    """Answer with `NextTurn`, because other agents were lost meanwhile."""


Action = Say | DoWithout | UseAgain | CountLoss | FindPlan | TryAgain | GiveUp | TakeNext


def decide(state: Mending, event: Event, facts: Facts, now: float) -> tuple[Mending, list[Action]]:
    """Return the state after an event, and the actions in the order in which to carry them out. `now` is in seconds, of
    a clock that never goes back."""
    match event:
        case AgentLost(node, reason) if state.stage != Stage.IDLE:
            return replace(state, queue=(*state.queue, (node, reason))), []
        case AgentLost(node, reason):
            return _next(replace(state, queue=((node, reason), *state.queue)), facts, now)
        case NextTurn() if state.stage == Stage.IDLE:
            return _next(state, facts, now)
        case PlanFound() if state.stage == Stage.PLANNING:
            return _over(state, [])
        case NoPlanFound(error) if state.stage == Stage.PLANNING:
            return _not_found(state, error, facts, now)
        case TriedAgain() if state.stage == Stage.PATIENT:
            return _attempt(state, facts)
    return state, []


def _next(state: Mending, facts: Facts, now: float) -> tuple[Mending, list[Action]]:
    """Begin with the next lost agent in the queue that is not back."""
    queue = [(node, reason) for node, reason in state.queue if facts.runs and node not in facts.members]
    if not queue:
        return Mending(state.job), []
    (node, reason), *later = queue
    state, done = _attempt(Mending(state.job, Stage.IDLE, node, reason, now, queue=tuple(later)), facts)
    return state, [DoWithout((node,)), CountLoss(node), *done]


def _attempt(state: Mending, facts: Facts) -> tuple[Mending, list[Action]]:
    gone = tuple(facts.lost)
    done: list[Action] = [DoWithout(gone)]
    without = {*facts.without, *gone, state.node}
    if all(server in without for server in facts.servers):
        done.append(UseAgain(facts.waiting))  # only servers are left that are back and not steady yet
    attempt = state.attempt + 1
    done.append(FindPlan(crowded=attempt > 1))  # a little of what other jobs have is better than nothing
    return replace(state, stage=Stage.PLANNING, attempt=attempt, gone=gone), done


def _not_found(state: Mending, error: str, facts: Facts, now: float) -> tuple[Mending, list[Action]]:
    node, done = state.node, list[Action]()
    more = set(facts.lost).difference(state.gone)
    if not facts.runs or node in facts.members:
        done.append(UseAgain((node,)))  # all agents stopped meanwhile, and this one is back
    elif not more and (facts.missing or state.attempt == 1) and now - state.began < PATIENCE_SECONDS:
        # A switch that does not answer is soon back, or the job is rerouted around it, and so may other disabled parts
        # be; until then all agents wait anyway.
        if state.attempt == 1:
            done.append(Say(f"job {state.job} waits, to go on without {node}: {error}"))
        return replace(state, stage=Stage.PATIENT), [*done, TryAgain(AGAIN_SECONDS)]
    elif more and state.attempt < ATTEMPTS:
        return _attempt(state, facts)
    else:
        done += [
            UseAgain(state.gone),
            Say(f"job {state.job} cannot go on without {node}: {error}", warning=True),
            GiveUp(f"{state.reason}; the job cannot go on without it: {error}"),
        ]
    return _over(state, done)


def _over(state: Mending, done: list[Action]) -> tuple[Mending, list[Action]]:
    return Mending(state.job, queue=state.queue), [*done, *([TakeNext()] if state.queue else [])]
