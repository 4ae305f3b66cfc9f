"""Leadership of a coordinator: it gathers agents, recovers the running tasks, acts, and steps down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.planner.strategies.wan.policy import Back, Lost, RecoveringPolicy
from overlay.core.site_quorum import SiteQuorum
from overlay.net.members import Member, Members
from overlay.net.policy_driver import PolicyDriver
from overlay.net.recovery import AgentState, RecoveredTasks, first_number, recover_tasks

GATHER_SECONDS = 3.0
"""Longest wait, in seconds, of a restarted coordinator for all agents. If too few have come it lets them go, since they
may be able to go on without it.
"""

MAX_WAITS = 8
"""Most waits of a gathering. There are twice as many after each gathering in vain: agents that also try a coordinator
whose network is cut off stay away for longer than one wait, and would never be connected here at the same time.
"""

STANDBY = b'{"type": "standby"}\n'
"""Message to an agent that this coordinator does not act: the agent looks for another one."""

GATHERING = b'{"type": "gathering"}\n'
"""Message to an agent that it has joined, and that it is not decided yet whether this coordinator acts."""


@dataclass(frozen=True)
class Office:
    """Work of a coordinator when it begins to act and when it ends.

    Attributes:
        introduce: tells all members who the members are.
        began: called when the members have been introduced.
        said: called as said(node, message); handles a member's message.
        ended: called when this coordinator acts no more and has disconnected its members.
    """

    introduce: Callable[[], None]
    began: Callable[[], None]
    said: Callable[[str, dict[str, Any]], None]
    ended: Callable[[], None]


class Leadership:
    """Leadership of one coordinator, in its loop.

    Args:
        loop: the coordinator's event loop.
        members: the agents that are connected.
        driver: the tasks that run.
        quorum: says when enough agents are connected.
        office: the coordinator's work when it begins to act and when it ends.
        log: gets each line of log.

    Attributes:
        active: whether this coordinator acts.
        epoch: distinguishes the task numbers of this coordinator from those of others.
        gathering: the timer of the wait for agents; None while the coordinator does not gather.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        members: Members,
        driver: PolicyDriver,
        quorum: SiteQuorum,
        office: Office,
        *,
        log: Callable[[str], None],
    ) -> None:
        self._loop, self._members, self._driver, self._policy = loop, members, driver, driver.policy
        self.quorum, self._office, self._log = quorum, office, log
        self.epoch = time.time_ns()  # differs from that of an earlier process, also after an immediate restart
        self.active = False
        self.gathering: asyncio.TimerHandle | None = None
        self._waited, self._most_waits = 0, 1  # numbers of waits
        self._held_back: list[tuple[float, str, dict[str, Any]]] = []  # (time, agent, message) before this one acts

    def resign(self) -> None:
        """Act no more; agents go on with their tasks, and look for another coordinator."""
        self.active = False
        self._let_go()

    def observe(self, node: str, message: Mapping[str, Any]) -> None:
        """Record an agent's message "join", and step down if the agent has followed a coordinator that began later, or
        under which more rounds were done. Raise ValueError or TypeError for a message that is not well formed.
        """
        if self.quorum.observe(message) and self.active:
            self._step_down(f"{node} has followed another coordinator, which began later or is ahead")
        elif self.active and not self.quorum.reached_by({*self._members, node}):
            self._step_down(self._too_few())  # the agent knows of others that have gone on elsewhere

    def gather(self, member: Member) -> None:
        """Handle that an agent has joined while this coordinator does not act: begin when enough agents are connected.
        After a restart it waits for those that know what was under way.
        """
        recovers = member.state.epoch != 0 and isinstance(self._policy, RecoveringPolicy)
        if self.gathering is None and not self.quorum.contested and not recovers:
            self.begin()
            return
        member.tell(GATHERING)
        if self.gathering is None:
            self._wait()
        all_here = self.quorum.all_here(self._members, self._policy.nodes)
        if all_here or (self._waited and self.quorum.reached_by(self._members)):
            self.begin()

    def _wait(self) -> None:
        self.gathering = self._loop.call_later(GATHER_SECONDS, self._gathered)

    def _gathered(self) -> None:
        self._waited += 1
        if self._waited < self._most_waits and not self.quorum.reached_by(self._members):
            self._wait()
        else:
            self._most_waits = min(2 * self._most_waits, MAX_WAITS)
            self.begin()

    def member_gone(self) -> bool:
        """Step down if the loss of a member leaves too few. Return whether this coordinator still acts."""
        if self.active and not self.quorum.reached_by(self._members):
            self._step_down(self._too_few())
        return self.active

    def hold_back(self, node: str, message: dict[str, Any]) -> None:
        """Keep an agent's message until this coordinator acts, and the policy can handle it."""
        self._held_back.append((time.monotonic(), node, message))

    def begin(self) -> None:
        """Begin to act with the members that have joined, when they are enough; else let them go."""
        if not self.quorum.reached_by(self._members):
            self._log(self._too_few())
            self._let_go()
            return
        self._stop_gathering()
        self._most_waits = 1
        self.quorum.start_term()
        self.active = True
        states = {node: member.state for node, member in self._members.items()}
        recovered = recover_tasks(states) if isinstance(self._policy, RecoveringPolicy) else None
        if recovered is None:
            if self._driver.newest >= 0 or any(state.epoch for state in states.values()):
                self.epoch = time.time_ns()  # differs from every epoch that a member knows
        elif isinstance(self._policy, RecoveringPolicy):
            number = max(recovered.number, first_number(self._driver.newest))
            self.epoch = recovered.epoch
            self._policy.adopt(recovered.tasks, number)
            self._driver.newest = number
        self._go_on(states, recovered)

    def _go_on(self, states: dict[str, AgentState], recovered: RecoveredTasks | None) -> None:
        """Introduce the members to each other and to the policy, and continue with the recovered tasks."""
        self._office.introduce()
        for node in list(self._members):
            self._driver.handle(Back(node))
        if recovered is not None:
            self._log(f"continues {len(recovered.tasks)} tasks of the earlier coordinator")
            self._driver.recover(recovered, states)
        for node in self._policy.nodes if recovered is not None else ():
            if node not in self._members:
                self._driver.handle(Lost(node))
        self._office.began()
        held_back, self._held_back = self._held_back, []
        for at, node, message in held_back:
            other = self._members.get(message["node"]) if message["type"] == "lost" else None
            if other is not None and other.joined > at:
                continue  # it has restarted since: that connections to its old process broke says nothing of the link
            member = self._members.get(node)
            if member is None or member.joined > at:
                continue  # it has restarted since, and what it had submitted is gone
            if self.active:
                self._office.said(node, message)
            else:
                self.hold_back(node, message)

    def _too_few(self) -> str:
        here, everyone = len(self._members), len(self._policy.nodes)
        return f"only {here} of {everyone} agents have joined here, and the others may go on without this coordinator"

    def _stop_gathering(self) -> None:
        if self.gathering is not None:
            self.gathering.cancel()
            self.gathering, self._waited = None, 0

    def _let_go(self) -> None:
        """Disconnect all members; they look for another coordinator."""
        self._stop_gathering()
        members = dict(self._members)
        self._members.clear()
        self._held_back.clear()
        for node, member in members.items():
            self._driver.pending.clear(node)
            member.tell(STANDBY)
            member.writer.close()

    def _step_down(self, reason: str) -> None:
        """Act no more, until more than half of the agents join again. The agents keep the running tasks."""
        self._log(f"steps down: {reason}")
        self.active = False
        self._driver.forget()
        self._let_go()
        for node in self._policy.nodes:
            try:
                self._policy.handle(
                    Lost(node), time.monotonic()
                )  # the policy's orders are ignored: no agent is connected
            except Exception as error:
                self._log(f"the policy cannot handle the loss of {node}: {type(error).__name__}: {error}")
        self._office.ended()
