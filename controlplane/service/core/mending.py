"""Decides about an agent that a running job has lost: look for a plan without it, wait for what is missing, or give up.

    lost --> planning --a plan is found--> over
             planning --none is found, and what is missing may be back soon--> waiting --> planning
             planning --none is found--> over (the job stops until the agent is back)

One loss of a job is dealt with at a time; losses that follow meanwhile wait for their turn.

`servers_to_use` compares, all the time, the servers that plans may use with the agents that are there. So no single
event, such as the return of one agent, is needed to leave a state.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field

from controlplane.service.core.state import MEMBER, RESERVE, State
from controlplane.service.core.trust import seconds_until_steady

PATIENCE_SECONDS = 30.0
AGAIN_SECONDS = 0.3
"""Seconds between two searches for a plan without a lost agent, while a switch does not answer. They end after
PATIENCE_SECONDS."""
ATTEMPTS = 3
"""Most searches for a plan, where more agents are lost during each."""


@dataclass(frozen=True)
class Facts:
    """Facts about a job at one moment.

    Attributes:
        now: that moment, in seconds, of a clock that never goes back.
        runs: neither the job nor the controller is ending.
        members: nodes that the plan needs and whose agents are there.
        lost: nodes that were lost from the running epoch, and why.
        waiting: nodes whose agents wait until a plan uses them.
        without: nodes that plans for the job do not use.
        missing: a switch does not answer, or something is disabled that may be back soon.
    """

    now: float
    runs: bool
    members: Collection[str] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    without: Collection[str] = ()
    missing: bool = False


@dataclass(frozen=True)
class FindPlan:
    """Find a plan and migrate the job to it: without the nodes in `without`, and if need be with those in `again`. With
    `crowded`, a plan is found also where other jobs have taken all capacity: it gets a little for now."""

    without: tuple[str, ...]
    again: tuple[str, ...]
    crowded: bool


@dataclass(frozen=True)
class Wait:
    """Wait for so many seconds. `line` is for the log, where it is not ""."""

    seconds: float
    line: str = ""


@dataclass(frozen=True)
class Over:
    """Allow plans for the job to use these nodes again. Where `reason` is not "", no plan was found: the job stops, for
    this reason, until the lost agents are back, and `line` is for the log."""

    again: tuple[str, ...]
    reason: str = ""
    line: str = ""


Step = FindPlan | Wait | Over
Outcome = tuple[str, Facts]
"""Why a plan was not found ("" where one was, and after `Wait`), and the facts then."""


def mend(job: str, node: str, reason: str, facts: Facts) -> Generator[Step, Outcome, None]:
    """Yield the steps to take about a node of a job whose agent was lost for this reason, and the job runs on without
    it. What came of each step is sent before the next one."""
    if not facts.runs or node in facts.members:
        return
    began, attempt = facts.now, 0
    while True:
        gone, attempt = tuple(facts.lost), attempt + 1
        without = {*facts.without, *gone, node}
        # Where only servers are left that are back and not steady yet, these are used.
        again = facts.waiting if all(server in without for server in facts.servers) else ()
        # A little of what other jobs have is better than nothing.
        error, facts = yield FindPlan((node, *gone), again, crowded=attempt > 1)
        if not error:
            return
        more = set(facts.lost).difference(gone)
        if not facts.runs or node in facts.members:  # all agents stopped meanwhile, and this one is back
            yield Over((node,))
            return
        if not more and (facts.missing or attempt == 1) and facts.now - began < PATIENCE_SECONDS:
            # A switch that does not answer is soon back, or the job is rerouted around it, and so may other disabled
            # parts be; until then all agents wait anyway.
            line = f"job {job} waits, to go on without {node}: {error}" if attempt == 1 else ""
            _, facts = yield Wait(AGAIN_SECONDS, line)
        elif not more or attempt >= ATTEMPTS:
            words = f"job {job} cannot go on without {node}: {error}"
            yield Over(
                tuple(dict.fromkeys((*gone, node))), f"{reason}; the job cannot go on without it: {error}", words
            )
            return


@dataclass(frozen=True)
class Use:
    """Change of the agents that plans for a job may use: from now on with those in `again`, for the reason in `words`,
    and without those in `without`."""

    again: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    words: str = ""


def servers_to_use(
    state: State, servers: Collection[str], without: Collection[str], losses: Mapping[str, int], now: float
) -> Use:
    """Return which agents plans for a job may use from now on, and which not any more.

    - An agent that works for the running plan is used.
    - A parameter server that the plan does not use, and whose agent is absent, is not used: a running job cannot
      migrate to a plan that needs it.
    - One that is back is used when it has stayed for long enough, or immediately if the job waits. If the job waits for
      other servers, those are not used.

    Args:
        servers: parameter servers of the job that are no workers.
        without: agents without which plans for the job are made because they were lost.
        losses: how many times each server was lost.
        now: in seconds, of the clock of `state`.
    """
    waiting = {node: now - one.since for node, one in state.having(RESERVE).items() if node in servers}
    gone = tuple(node for node in servers if node not in without and node not in state.plan and node not in waiting)
    members = tuple(node for node in state.having(MEMBER) if node in without)
    if members:
        return Use(members, gone, "the plan uses it")
    if state.running:
        steady = tuple(n for n in waiting if n in without and waiting[n] >= seconds_until_steady(losses.get(n, 0)))
        least = max((seconds_until_steady(losses.get(node, 0)) for node in steady), default=0.0)
        return Use(steady, gone, f"there for {least:g} s")
    missing = {node for node in state.missing() if node in servers}
    again = tuple(node for node in waiting if node in without)
    if waiting and (again or missing.difference(without)):
        return Use(again, (*gone, *sorted(missing.difference(without))), "the job waits")
    return Use((), gone)
