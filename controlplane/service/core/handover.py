"""A change of plan under a running job: what is decided when it is ordered, and when agents say how far they are.

ordered --the epoch's number is stored--> preparing --all are ready, and it is ordered--> draining --all is done--> over
A failure ends it in every stage. Before the agents have changed over, the old plan goes on as if nothing had been.
"""

from __future__ import annotations

from dataclasses import replace

from controlplane.service.core.actions import Prepare, RefuseChange, Retire, StoreEpoch, SwitchOver
from controlplane.service.core.events import ChangeLate, ChangeOrdered, Drained, Prepared, RetireOrdered, SwitchOrdered
from controlplane.service.core.state import (
    GONE,
    MEMBER,
    RESERVE,
    Handover,
    NodeState,
    Phase,
    Place,
    Stage,
    State,
    names,
)
from controlplane.service.core.step import Step, standby_words


def ordered(step: Step, event: ChangeOrdered) -> None:
    """A change of plan begins, or is refused with the reason."""
    state = step.state
    refusal = _refusal(state, event.places)
    if refusal:
        step.do(RefuseChange(refusal))
        return
    nodes = {place.node for place in event.places}
    fewer = any(node not in nodes for node in state.plan if state.known[node].role == "worker")
    again = event.again or state.phase == Phase.SHORT or state.repeat
    step.change(handover=Handover(Stage.STARTING, event.places, again, fewer))
    step.do(StoreEpoch())


def _refusal(state: State, places: tuple[Place, ...]) -> str:
    """Why the running job cannot change over to this plan now; "": it can."""
    if state.phase == Phase.CLOSED:
        return state.refusal or "the controller is shutting down"
    if state.handover is not None:
        return "another change of plan is under way"
    absent = [place.node for place in places if state.state_of(place.node) not in MEMBER | RESERVE - GONE]
    if not state.running or absent:
        return f"the job does not run: waiting for {names(absent)}"
    newcomers = [place.node for place in places if place.role == "worker" and place.node not in state.plan]
    if newcomers:
        return f"{names(newcomers)} cannot join what runs: it knows none of its operations"
    return ""


def prepare(step: Step, handover: Handover, epoch: int) -> None:
    """The epoch's number is stored: all agents of the new plan are to make ready."""
    step.change(handover=replace(handover, stage=Stage.PREPARING, epoch=epoch), repeat=handover.again)
    for place in handover.places:
        step.tell(place.node, Prepare(epoch, handover.again))
    step.say(f"change of plan: epoch {epoch} is being prepared")


def reported(step: Step, event: Prepared | Drained) -> None:
    """An agent says how far it is; words about another change of plan are dropped."""
    handover = step.state.handover
    if handover is None or handover.stage == Stage.STARTING or event.epoch != handover.epoch:
        return
    for node, entry in step.state.having(MEMBER | RESERVE).items():
        if entry.agent == event.agent:
            if event.failure:
                step.fail_change(event.failure)
                return
            if isinstance(event, Drained):
                repeated = max(handover.repeated, (event.operations, event.nbytes))
                handover = replace(handover, drained=handover.drained | {node}, repeated=repeated)
            else:
                operations = {**handover.next_operations, node: event.next_operation}
                handover = replace(handover, next_operations=operations, done={**handover.done, node: event.done})
            step.change(handover=handover)


def late(step: Step, event: ChangeLate) -> None:
    """Who has not made ready by now is not waited for."""
    handover = step.state.handover
    if handover is None or handover.epoch != event.epoch or handover.stage != Stage.PREPARING:
        return
    if handover.unprepared():
        step.fail_change(f"{names(handover.unprepared())} did not make ready within {event.seconds:g} s")


def switch_over(step: Step, event: SwitchOrdered) -> None:
    """All change over at one operation: the first that no worker has started, as all hold theirs back. Where operations
    are started again, it is the first of which some worker has no result."""
    handover = step.state.handover
    if handover is None or handover.epoch != event.epoch or handover.stage != Stage.PREPARING or handover.unprepared():
        return
    choose = min if handover.again else max
    first = choose(handover.next_operations[node] for node in handover.workers)
    handover = replace(handover, stage=Stage.DRAINING, first_operation=first, switched=step.now)
    step.change(handover=handover, epoch=handover.epoch, repeat=False, phase=Phase.RUNNING)
    step.rearrange(handover.places, drain=True)
    for node in step.state.having(GONE):
        returned = step.state.nodes[node].state == NodeState.RETURNED
        step.place(node, replace(step.state.nodes[node], state=NodeState.STANDBY, reason="") if returned else None)
    for node in step.state.having(MEMBER):
        step.put(node, state=NodeState.RUNNING, running=(handover.epoch, step.state.plan[node]))
    step.tell_members(SwitchOver(handover.epoch, first, handover.given()))
    step.say(f"epoch {handover.epoch} begins at operation {first}, without a stop")


def retire(step: Step, event: RetireOrdered) -> None:
    """Nobody asks for results of the old epoch any more: its configurations are dropped."""
    handover = step.state.handover
    if handover is None or handover.epoch != event.epoch or handover.stage != Stage.DRAINING or handover.undrained():
        return
    step.change(handover=None)
    step.tell_members(Retire(handover.epoch))
    for node, entry in step.state.having(RESERVE).items():
        step.stop(node, standby_words(node))
        if entry.state == NodeState.DRAINING:
            step.put(node, state=NodeState.STANDBY)
    step.say(f"nothing is left of what ran before epoch {handover.epoch}")
