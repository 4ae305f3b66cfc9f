"""A migration under a running job: what is decided when it is ordered, and when agents report how far they are.

    ordered --the epoch's number is stored--> preparing --all ready, and it is ordered--> draining --all done--> over

A failure ends the migration in every stage. Before the agents have switched over, the old plan then goes on as if no
change had been ordered. Afterwards, operations of the old plan that are under way may need something that is lost: then
another change follows, to the same new plan, which starts these operations again (`start_again`).
"""

from __future__ import annotations

from dataclasses import replace

from controlplane.service.core import events as ev
from controlplane.service.core.actions import After, Prepare, RefuseMigration, Retire, StoreEpoch, SwitchOver
from controlplane.service.core.state import (
    GONE,
    MEMBER,
    RESERVE,
    Migration,
    NodeState,
    Phase,
    Place,
    Stage,
    State,
    names,
)
from controlplane.service.core.step import Step, standby_words

RETRY_SECONDS = 5.0
"""Seconds between two attempts to store the number of an epoch that is to begin."""


def ordered(step: Step, event: ev.MigrationOrdered) -> None:
    """Begin a migration, or refuse it with the reason."""
    state = step.state
    refusal = _refusal(state, event.places)
    if refusal:
        step.do(RefuseMigration(refusal))
        return
    nodes = {place.node for place in event.places}
    fewer = any(node not in nodes for node in state.plan if state.known[node].role == "worker")
    again = event.again or state.phase == Phase.SHORT or state.repeat
    step.change(migration=Migration(Stage.STARTING, event.places, again, fewer))
    step.do(StoreEpoch())


def _refusal(state: State, places: tuple[Place, ...]) -> str:
    """Return why the running job cannot migrate to this plan now, or "" if it can."""
    if state.phase == Phase.CLOSED:
        return state.refusal or "the controller is shutting down"
    if state.migration is not None:
        return "another migration is under way"
    absent = [place.node for place in places if not _can_follow(state, place)]
    if not state.running or absent:
        return f"the job does not run: waiting for {names(absent)}"
    newcomers = [place.node for place in places if place.role == "worker" and place.node not in state.plan]
    if newcomers:
        return f"{names(newcomers)} cannot join while the job runs: a new worker knows none of its operations"
    return ""


def _can_follow(state: State, place: Place) -> bool:
    """Return whether an agent is there that can take a place of a new plan.

    A parameter server that was lost and is back can, like one that stands by. A worker cannot, since it knows none of
    the operations.
    """
    there = state.state_of(place.node)
    if there not in MEMBER | RESERVE or not state.nodes[place.node].connection:
        return False
    return not (there == NodeState.RETURNED and place.role == "worker")


def prepare(step: Step, migration: Migration, epoch: int) -> None:
    """Tell all agents of the new plan to make ready, since the epoch's number is stored."""
    step.change(migration=replace(migration, stage=Stage.PREPARING, epoch=epoch), repeat=migration.again)
    for place in migration.places:
        step.tell(place.node, Prepare(epoch, migration.again))
    step.say(f"migration: epoch {epoch} is being prepared")


def start_again(step: Step, reason: str) -> None:
    """Start operations of the old plan that cannot end again: workers stop them and run them under the new plan, in
    another epoch.

    Do nothing where no such operation is under way (all have ended, or were stopped before), nor where a worker is done
    and has left, since what the others lack cannot be started again without it.
    """
    migration = step.state.migration
    if migration is None or migration.stage != Stage.DRAINING or migration.broken:
        return
    if migration.again or not migration.undrained():
        return
    if step.state.having({NodeState.LEFT}):
        return
    step.change(migration=replace(migration, broken=reason))
    step.say(f"{reason}: what still runs of the plan before is started again with the one that runs", warning=True)
    step.do(StoreEpoch())


def epoch_stored(step: Step, epoch: int) -> None:
    """Go on with the migration for whose epoch a number was stored."""
    migration = step.state.migration
    if migration is None:
        return
    if migration.stage == Stage.DRAINING and migration.broken:
        again = Migration(Stage.STARTING, migration.places, True, migration.fewer, instead_of=migration.epoch)
        prepare(step, again, epoch)
    elif migration.stage == Stage.STARTING:
        prepare(step, migration, epoch)


def epoch_not_stored(step: Step, reason: str) -> None:
    """Handle a failure to store the epoch's number. A migration that was ordered does not take place; operations
    of an old plan that were to be started again are tried later."""
    migration = step.state.migration
    if migration is None:
        return
    if migration.stage == Stage.DRAINING and migration.broken:
        step.change(migration=replace(migration, broken=""))
        step.say(f"no epoch can begin ({reason}); tried again after {RETRY_SECONDS:g} s", warning=True)
        step.do(After(RETRY_SECONDS, ev.DrainBroken(migration.epoch, migration.broken)))
    elif migration.stage == Stage.STARTING:
        step.change(migration=None)


def reported(step: Step, event: ev.Prepared | ev.Drained) -> str:
    """Take note of how far an agent is; a report about another migration is ignored.

    Return why all agents have to stop, which they do when operations under way can neither end nor be started again; ""
    if they need not.
    """
    migration = step.state.migration
    if migration is None or migration.stage == Stage.STARTING or event.epoch != migration.epoch:
        return ""
    for node, entry in step.state.having(MEMBER | RESERVE).items():
        if entry.agent == event.agent:
            if event.failure:
                return _failed(step, migration, event.failure)
            if isinstance(event, ev.Drained):
                repeated = max(migration.repeated, (event.operations, event.nbytes))
                migration = replace(migration, drained=migration.drained | {node}, repeated=repeated)
            else:
                operations = {**migration.next_operations, node: event.next_operation}
                migration = replace(migration, next_operations=operations, done={**migration.done, node: event.done})
            step.change(migration=migration)
    return ""


def late(step: Step, event: ev.MigrationLate) -> str:
    """End the wait for agents that have not made ready in time. Return the same as `reported`."""
    migration = step.state.migrating(event.epoch, Stage.PREPARING)
    if migration is None or not migration.unprepared():
        return ""
    reason = f"{names(migration.unprepared())} did not make ready within {event.seconds:g} s"
    return _failed(step, migration, reason)


def _failed(step: Step, migration: Migration, reason: str) -> str:
    if migration.instead_of and migration.stage == Stage.PREPARING:
        return reason
    step.fail_migration(reason)
    return ""


def disconnected(step: Step, node: str) -> str:
    """End a migration that is being prepared, since messages about it may not have reached this node's agent. Return
    the same as `reported`."""
    migration = step.state.migration
    if migration is None or migration.stage == Stage.DRAINING:
        return ""
    return _failed(step, migration, f"{node} lost its connection to the controller")


def switch_over(step: Step, event: ev.SwitchOrdered) -> None:
    """Tell all agents at which operation the new plan takes over: the first one that no worker has started, since all
    hold new ones back. Where operations are started again, it is the first one of which some worker has no result."""
    migration = step.state.migrating(event.epoch, Stage.PREPARING)
    if migration is None or migration.unprepared():
        return
    choose = min if migration.again else max
    first = choose(migration.next_operations[node] for node in migration.workers)
    migration = replace(migration, stage=Stage.DRAINING, first_operation=first, switched=step.now)
    step.change(migration=migration, epoch=migration.epoch, repeat=False, phase=Phase.RUNNING)
    step.rearrange(migration.places, drain=True)
    for node in step.state.having(GONE):
        returned = step.state.nodes[node].state == NodeState.RETURNED
        step.place(node, replace(step.state.nodes[node], state=NodeState.STANDBY, reason="") if returned else None)
    for node in step.state.having(MEMBER):
        step.put(node, state=NodeState.RUNNING, running=(migration.epoch, step.state.plan[node]))
    step.tell_members(SwitchOver(migration.epoch, first, migration.given()))
    step.say(f"epoch {migration.epoch} begins at operation {first}, without a stop")


def retire(step: Step, event: ev.RetireOrdered) -> None:
    """Drop the configurations of the old plan: nobody asks for results of its epoch any more."""
    migration = step.state.migrating(event.epoch, Stage.DRAINING)
    if migration is None or migration.undrained():
        return
    step.change(migration=None)
    step.tell_members(Retire(migration.epoch))
    for node, entry in step.state.having(RESERVE).items():
        step.stop(node, standby_words(node))
        if entry.state == NodeState.DRAINING:
            step.put(node, state=NodeState.STANDBY)
    step.say(f"nothing is left of the plan before epoch {migration.epoch}")
