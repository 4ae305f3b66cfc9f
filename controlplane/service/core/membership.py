"""The membership of a job: its agents join, leave, fall silent or are lost. All events enter by `decide`.

    waiting --all have joined--> running (a new epoch) --one is lost--> waiting (the others are told to stop) --...

Where the job may go on without a lost agent, nobody is told to stop: the job is "short" until its plan is changed
(migration.py), or no plan is found. docs/controller.md has the tables of states.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from controlplane.service.core import events as ev
from controlplane.service.core import migration
from controlplane.service.core.actions import (
    Action,
    After,
    Configure,
    Dismiss,
    End,
    PlanWithout,
    Refuse,
    StoreEpoch,
    SwitchOver,
)
from controlplane.service.core.migration import RETRY_SECONDS
from controlplane.service.core.state import (
    MEMBER,
    RESERVE,
    Known,
    Node,
    NodeState,
    Phase,
    Place,
    Refused,
    Stage,
    Starting,
    State,
    known_with,
    names,
)
from controlplane.service.core.step import Step, standby_words

RETURN_SECONDS = 5.0
"""Seconds for which agents that still work after a restart of the controller wait for the other agents, before the job
goes on without these. Agents try to join every two seconds."""


OUT_OF_REACH_SECONDS = 3.0
"""Seconds without a report after which an agent whose connection ends counts as out of reach, and not as gone: a
process that lives reports every second, and the connection of one that has died ends immediately."""


def begin(
    places: Collection[Place],
    version: int,
    *,
    known: dict[str, Known] | None = None,
    grace: float,
    least_workers: int | None = None,
) -> State:
    """Return the state of a job whose plan has these places, before any agent has joined. The other arguments are the
    fields of `State` that have the same names."""
    all_known = known_with(known or {}, places)
    return State(version, grace, least_workers, all_known, {place.node: place.digest for place in places})


def decide(state: State, event: ev.Event, now: float) -> tuple[State, tuple[Action, ...]]:
    """Return the state after an event, and the actions to carry out. `now` is in seconds, of a clock that never goes
    back."""
    step = Step(state, now)
    if state.phase == Phase.CLOSED and not isinstance(event, ev.Joined | ev.MigrationOrdered):
        return state, ()
    match event:
        case ev.Joined():
            _joined(step, event)
        case ev.LeaveAnnounced(agent, failure):
            for node, entry in state.having(MEMBER).items():
                if entry.agent == agent:
                    step.put(node, leaving=not failure, failure=failure)
        case ev.Left(connection, quiet):
            _left(step, connection, quiet)
        case ev.Silent(node, seconds) if state.state_of(node) in MEMBER:
            why = "it hangs" if state.nodes[node].connection else "the others wait for it"
            _remove(step, node, f"{node} is gone (no report for {seconds:.0f} s: {why})")
        case ev.Prepared() | ev.Drained():
            _stop_all(step, migration.reported(step, event))
        case ev.MigrationOrdered():
            migration.ordered(step, event)
        case ev.MigrationLate():
            _stop_all(step, migration.late(step, event))
        case ev.SwitchOrdered():
            migration.switch_over(step, event)
        case ev.RetireOrdered():
            migration.retire(step, event)
        case ev.DrainBroken(epoch, reason) if state.migration is not None and state.migration.epoch == epoch:
            migration.start_again(step, reason)
        case ev.PlanReplaced(places):
            _replace_plan(step, places)
        case ev.PlanRestarted(places, reason):
            step.fail_migration(reason)
            if step.state.running:
                _abort(step, reason, "")
            _replace_plan(step, places)
            if step.state.phase == Phase.WAITING:  # the plan may need the same nodes, whose agents are there
                _start_or_wait(step)
        case ev.GivenUp(reason) if state.phase == Phase.SHORT:
            _stop_all(step, reason, next(iter(state.lost())))
        case ev.GraceOver(epoch, node):
            _grace_over(step, epoch, node)
        case ev.ReturnOver():
            _return_over(step)
        case ev.Closed(refusal):
            _close(step, refusal)
        case ev.EpochStored(epoch):
            _epoch_stored(step, epoch)
        case ev.EpochNotStored(reason):
            _epoch_not_stored(step, reason)
        case ev.EpochRetried() if state.phase == Phase.WAITING and not state.missing():
            _start_or_wait(step, retried=True)
    return step.state, tuple(step.actions)


# -- agents join ------------------------------------------------------------------------------------------------------


def identify(state: State, event: ev.Joined) -> str:
    """Return the node for which an agent asks to join; raise Refused where it is none of the job's nodes, or the agent
    cannot be that node."""
    node = event.node
    if not node:
        found = state.node_at(event.addresses)
        if len(found) != 1:
            addresses = ", ".join(event.addresses) or "none"
            problem = "several nodes" if found else "no node"
            raise Refused(
                f"{problem} of the job at the agent's addresses ({addresses}); the job's are "
                f"{', '.join(f'{one} {state.known[one].address}' for one in state.plan)}. Give the name with --node"
            )
        node = found[0]
    if node not in state.known:
        raise Refused(f"{node!r} is not a node of this job; its nodes are {', '.join(state.known)}")
    if state.known[node].role != event.role:
        wanted, got = (role.replace("_", " ") for role in (state.known[node].role, event.role))
        raise Refused(f"{node} is a {wanted} of this job, not a {got}")
    if event.version != state.version:
        raise Refused(
            f"{node} speaks version {event.version} of the packets' encoding, the controller {state.version}: "
            "install the same version on both"
        )
    return node


def occupied(state: State, event: ev.Joined) -> str:
    """Return a sentence that says which other process has the node that an agent asks for, and what to do; "" where no
    process has it, or the agent may replace that process. Raise Refused where `identify` does."""
    node = identify(state, event)
    earlier = state.having(MEMBER).get(node)
    if earlier is None or not earlier.connection or earlier.leaving or event.take_over:
        return ""
    if earlier.agent == event.agent:
        return ""
    return (
        f"{node} has joined already, as {earlier.process or 'another process'} (from {earlier.peer}): end that "
        "one, or take its place (--take-over, take_over=True), which puts it out of the job"
    )


def _joined(step: Step, event: ev.Joined) -> None:
    try:
        if step.state.phase == Phase.CLOSED:
            raise Refused(step.state.refusal or "the controller is shutting down")
        node, words = identify(step.state, event), occupied(step.state, event)
        if words:
            raise Refused(words)
    except Refused as refused:
        step.do(Refuse(event.connection, str(refused)))
        return
    if _goes_on(step.state, node, event):
        _reconnect(step, node, event)
        return
    _make_way(step, node, event)
    before = step.state.nodes.get(node)
    running = (event.running_epoch, event.running_digest)
    entry = Node(NodeState.JOINED, event.connection, event.agent, event.process, event.peer, running, step.now)
    role = step.state.known[node].role.replace("_", " ")
    lost = before.reason if before is not None and before.state == NodeState.LOST else ""
    if node not in step.state.plan or lost:
        step.say(f"{role} {node} joined; the job goes on without it for now")
        step.place(node, replace(entry, reason=lost))
        step.stand_by(node)
        return
    step.place(node, entry)
    missing = step.state.missing()
    step.say(f"{role} {node} joined" + (f"; waiting for {names(missing)}" if missing else ""))
    _start_or_wait(step, joined=node)
    if step.state.phase == Phase.WAITING and len(_going_on(step.state)) == 1 and entry.running[0]:
        step.do(After(RETURN_SECONDS, ev.ReturnOver()))


def _make_way(step: Step, node: str, event: ev.Joined) -> None:
    """Tell an earlier process that has joined for the node to stop, and remove it. An earlier connection of the same
    process is only removed."""
    earlier = step.state.nodes.get(node)
    if earlier is None or earlier.state not in MEMBER | RESERVE:
        return
    reason = f"{node} has joined again, after its connection was lost, and does not run the operations any more"
    if earlier.agent != event.agent:
        who = f"{event.process} (from {event.peer})" if event.process else f"another process (from {event.peer})"
        step.tell(node, Dismiss(f"{who} has taken the place of {node}; this one was told to stop"))
        reason = f"{node} was replaced by another process"
    if earlier.state in MEMBER:
        _remove(step, node, reason)
    else:
        _leave_reserve(step, node, reason)


def _goes_on(state: State, node: str, event: ev.Joined) -> bool:
    """Return whether the agent that asks to join is the one that works for the node, over another connection, and works
    with the configuration of the running epoch, or has only missed the order to migrate to it."""
    entry = state.nodes.get(node)
    if entry is None or entry.state != NodeState.RUNNING or entry.leaving or entry.failure:
        return False
    if not event.agent or entry.agent != event.agent:
        return False
    change = state.migration
    missed = change is not None and change.stage == Stage.DRAINING and node in change.next_operations
    return (event.running_epoch, event.running_digest) == entry.running or (missed and bool(event.running_epoch))


def _reconnect(step: Step, node: str, event: ev.Joined) -> None:
    """Use another connection to a running agent from now on. Messages over the earlier one may have been lost."""
    step.tell(node, End())
    step.put(node, connection=event.connection, peer=event.peer, process=event.process, since=step.now)
    step.say(f"{node} has joined again after its connection was lost; its operations went on")
    change = step.state.migration
    if event.running_epoch != step.state.epoch and change is not None:
        step.tell(node, SwitchOver(change.epoch, change.first_operation, change.given()))
        return
    failure = migration.disconnected(step, node)
    step.tell(node, Configure(step.state.epoch))
    _stop_all(step, failure)
    if step.state.having({NodeState.JOINED}) and not step.state.missing():
        _start_or_wait(step)  # the others have joined for the next run meanwhile


# -- agents go --------------------------------------------------------------------------------------------------------


def _left(step: Step, connection: int, quiet: float) -> None:
    """Handle the end of an agent's stream of events, according to what the agent has announced and to its state, and to
    the seconds since its last report."""
    node = next((one for one, entry in step.state.nodes.items() if entry.connection == connection), None)
    if node is None:  # another process has replaced it, or it was removed already
        return
    entry = step.state.nodes[node]
    if entry.state in RESERVE:
        step.say(f"{node} is gone again")
        _leave_reserve(step, node, f"{node} is gone")
        return
    server = step.state.known[node].role == "parameter_server"
    if entry.failure:
        _remove(step, node, f"{node} gave up: {entry.failure}")
    elif not entry.leaving and entry.state == NodeState.RUNNING and quiet >= OUT_OF_REACH_SECONDS:
        step.tell(node, End())
        step.put(node, connection=0, since=step.now - quiet)
        words = f"{node} is out of reach (no report for {quiet:.0f} s, then its connection ended)"
        step.say(f"{words}: operations go on, and it joins again as soon as it can", warning=True)
        return
    elif not entry.leaving:
        _remove(step, node, f"{node} is gone (its connection ended)")
    elif not step.state.running or (server and step.state.goes_on_without(node)):
        _remove(step, node, f"{node} has left")
    else:
        _leave_done(step, node)
    if not step.state.running:
        step.tell_missing()


def _leave_reserve(step: Step, node: str, reason: str) -> None:
    """Remove the agent of a node that the plan does not use. The node counts as lost where it was lost before this
    agent came back. A change to a plan that needs the node fails; operations of the previous plan that the agent still
    served are started again without it."""
    entry, change = step.state.nodes[node], step.state.migration
    step.tell(node, End())
    step.place(node, Node(NodeState.LOST, reason=entry.reason) if entry.state == NodeState.RETURNED else None)
    if entry.state == NodeState.DRAINING:
        migration.start_again(step, reason)
    if change is not None and change.stage == Stage.PREPARING and any(place.node == node for place in change.places):
        step.fail_migration(reason)


def _leave_done(step: Step, node: str) -> None:
    """Handle the end of an agent that is done: the others may finish the operations that are under way."""
    step.tell(node, End())
    step.place(node, Node(NodeState.LEFT))
    step.say(f"{node} has left")
    change = step.state.migration
    if change is not None and change.stage == Stage.DRAINING:
        step.change(migration=replace(change, drained=change.drained | {node}))  # it leaves when it has all results
    else:
        step.fail_migration(f"{node} has left the job")
    step.do(After(step.state.grace, ev.GraceOver(step.state.epoch, node)))


def _remove(step: Step, node: str, reason: str) -> None:
    """Remove a member, for this reason. The job goes on without it where it may; otherwise all others stop."""
    step.tell(node, End())
    step.place(node, None)
    if step.state.goes_on_without(node):
        step.say(f"{reason}: the job goes on without it", warning=True)
        step.change(phase=Phase.SHORT)
        step.place(node, Node(NodeState.LOST, reason=reason))
        step.fail_migration(reason)
        step.do(PlanWithout(node, reason))
    elif _others_carry_on(step.state, node):
        step.say(f"{reason}; the others, which ran before the controller started again, go on", warning=True)
    else:
        _abort(step, reason, node)


def _others_carry_on(state: State, node: str) -> bool:
    """Return whether the agents that are back after a restart of the controller can go on without this node as soon as
    all others are back, too."""
    others = [one for one in state.plan if one != node]
    return not state.running and bool(state.common_epoch(state.having(MEMBER))) and state.suffices(others)


def _stop_all(step: Step, reason: str, node: str = "") -> None:
    """Stop all agents, if a reason is given, and begin anew as soon as all that the plan needs are there."""
    if reason:
        _abort(step, reason, node)
        _start_or_wait(step)


def _grace_over(step: Step, epoch: int, node: str) -> None:
    """Stop what still runs of an epoch that this node's agent, which was done, has left."""
    state = step.state
    if not state.running or state.epoch != epoch or state.state_of(node) in MEMBER:
        return
    workers = [one for one in state.plan if state.known[one].role == "worker"]
    if all(state.state_of(one) == NodeState.LEFT for one in workers):
        _abort(step, "all workers have left: the job is done", "", warning=False)
    else:
        _abort(step, f"{node} has left the job", node)
    step.tell_missing()


def _abort(step: Step, reason: str, node: str, *, warning: bool = True) -> None:
    """Stop the epoch, if one runs. Agents that run one from before a restart of the controller stop that one, too."""
    running, members = step.state.running, step.state.having(MEMBER)
    step.say(reason + (": the others stop until it is back" if running and members and node else ""), warning=warning)
    step.fail_migration(reason)
    for other in members:
        if not members[other].connection:
            step.place(other, None)
            continue
        step.stop(other, reason, *([node] if node else []))
        step.put(other, state=NodeState.JOINED)
    for other in step.state.having(RESERVE):
        step.stop(other, standby_words(other))
        step.put(other, state=NodeState.STANDBY, reason="")
    for other in step.state.having({NodeState.LOST, NodeState.LEFT}):
        step.place(other, None)
    step.change(phase=Phase.WAITING, repeat=False)
    step.promote_standbys()


def _close(step: Step, refusal: str) -> None:
    step.change(refusal=refusal)
    step.fail_migration(refusal or "the controller is shutting down")
    for node in step.state.having(MEMBER | RESERVE):
        if refusal:
            step.tell(node, Dismiss(refusal))
        step.tell(node, End())
    step.change(phase=Phase.CLOSED)


# -- an epoch begins --------------------------------------------------------------------------------------------------


def _replace_plan(step: Step, places: Sequence[Place]) -> None:
    """Give a new plan to a job that does not run. Where it needs other nodes, their agents may all be there, and the
    job begins."""
    if step.state.running:
        return
    others = {place.node for place in places} != set(step.state.plan)
    step.rearrange(places)
    if others:
        _start_or_wait(step)


def _fresh(state: State) -> list[str]:
    """Return the members that run no epoch."""
    return [node for node, entry in state.having(MEMBER).items() if not entry.running[0]]


def _start_or_wait(step: Step, joined: str = "", *, retried: bool = False) -> None:
    """Begin an epoch if all agents that the plan needs are there; otherwise tell the members for whom they wait. The
    other arguments are fields of `Starting`."""
    state = step.state
    if state.missing():
        step.tell_missing()
    elif not _carry_on_without(step, _fresh(state), joined):
        _start(step, Starting(state.common_epoch(state.having(MEMBER)), (), joined, state.phase, retried))


def _carry_on_without(step: Step, lost: Sequence[str], joined: str = "") -> bool:
    """Go on, after a restart of the controller, with the epoch that all nodes but `lost` run; these count as lost now.
    Return whether the job can do that, and do nothing where it cannot."""
    epoch = step.state.carries_on_without(lost)
    if epoch:
        _start(step, Starting(epoch, tuple(lost), joined, step.state.phase))
    return bool(epoch)


def _going_on(state: State) -> list[str]:
    """Return the members that still run an epoch which began before a restart of the controller."""
    return [node for node, entry in state.having(MEMBER).items() if entry.running[0]]


def _return_over(step: Step) -> None:
    """Go on, after a restart of the controller, without agents that were lost meanwhile and do not come back.

    When nobody has joined for RETURN_SECONDS, the job goes on without the missing agents where it can, as if they were
    lost now, since operations of the agents that wait would fail. Where it cannot, the question is asked again later.
    """
    state, members = step.state, step.state.having(MEMBER)
    if state.phase != Phase.WAITING or not _going_on(state) or not state.missing():
        return
    waited = step.now - max(entry.since for entry in members.values())
    if waited < RETURN_SECONDS:
        step.do(After(RETURN_SECONDS - waited, ev.ReturnOver()))
    elif not _carry_on_without(step, [*state.missing(), *_fresh(state)]):
        step.do(After(RETURN_SECONDS, ev.ReturnOver()))


def _start(step: Step, starting: Starting) -> None:
    step.change(phase=Phase.STARTING, starting=starting)
    step.do(StoreEpoch(starting.carried_on))


def _epoch_stored(step: Step, epoch: int) -> None:
    """Begin the epoch whose number was to be stored, or prepare the migration to it."""
    starting = step.state.starting
    if starting is None:
        migration.epoch_stored(step, epoch)
        return
    step.fail_migration("the job begins anew")
    step.change(phase=Phase.SHORT if starting.without else Phase.RUNNING, starting=None, epoch=epoch)
    for node in step.state.having(MEMBER):
        if node not in starting.without:
            step.put(node, state=NodeState.RUNNING, running=(epoch, step.state.plan[node]))
            step.tell(node, Configure(epoch))
    there = len(step.state.having({NodeState.RUNNING}))
    if starting.without:
        step.say(f"{there} agents are back and run epoch {epoch}, without {names(starting.without)}")
    elif starting.carried_on:
        step.say(f"all {there} agents are back and run epoch {epoch}")
    else:
        step.say(f"all {there} agents have joined: epoch {epoch} begins")
    for node in starting.without:
        reason = f"{node} was lost while the controller was away"
        if step.state.state_of(node) in MEMBER:
            step.put(node, reason=reason)
            step.stand_by(node)
        else:
            step.place(node, Node(NodeState.LOST, reason=reason))
        step.do(PlanWithout(node, reason))


def _epoch_not_stored(step: Step, reason: str) -> None:
    """Return to the phase before an epoch was to begin, without the agent whose joining would have begun it: that one
    asks again. Where no agent has joined, but all are there, try again later."""
    starting = step.state.starting
    if starting is None:
        migration.epoch_not_stored(step, reason)
        return
    step.change(phase=starting.before, starting=None)
    if starting.joined:
        step.place(starting.joined, Node(NodeState.LEFT) if step.state.running else None)
    elif not step.state.missing():
        if not starting.retried:
            step.say(f"no epoch can begin ({reason}); tried again every {RETRY_SECONDS:g} s", warning=True)
        step.do(After(RETRY_SECONDS, ev.EpochRetried()))
