"""Whether this coordinator acts: it gathers agents, takes over from another coordinator, makes way, and steps down."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from controlplane.planner.strategies.wan.policy import Back, Lost, TakeoverPolicy
from overlay.core.quorum import Quorum
from overlay.net.members import Member, Members
from overlay.net.policy_driver import PolicyDriver
from overlay.net.takeover import AgentState, RecoveredTasks, Standby, first_number, recover_tasks
from overlay.net.tls import Security

GATHER_SECONDS = 5.0
"""A coordinator that takes over from another one, or may not be the only one, waits at most this long for all agents.
When too few come it lets them go, since another coordinator may need them. The wait differs each time (from
LEAST_GATHER of it on), or two coordinators could go on taking half of the agents each."""

LEAST_GATHER = 0.6

STANDBY = b'{"type": "standby"}\n'
"""Tells an agent that another coordinator acts, or may: it is to look for that one."""

GATHERING = b'{"type": "gathering"}\n'
"""Tells an agent that it has joined, and that it is not decided yet which coordinator acts."""


class Leadership:
    """Of one coordinator, in its loop.

    backs_up: the other coordinator, whose place this one may take; None: it knows of none. introduce(): tells all
    members who the members are. active: whether this coordinator acts. epoch: of its task numbers.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        members: Members,
        driver: PolicyDriver,
        *,
        backs_up: tuple[str, int] | None,
        security: Security | None,
        introduce: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self._loop, self._members, self._driver, self._policy = loop, members, driver, driver.policy
        self._introduce, self._log = introduce, log
        self.quorum = Quorum(len(self._policy.nodes), contested=backs_up is not None)
        self.standby = Standby(backs_up, security, log, self._make_way) if backs_up else None
        self.epoch = time.time_ns()  # differs from that of an earlier process, also after an immediate restart
        self.active = False
        self.gathering: asyncio.TimerHandle | None = None
        self._held_back: list[tuple[float, str, dict[str, Any]]] = []  # (time, agent, message) before this one acts

    @property
    def accepts_agents(self) -> bool:
        """Whether agents may join: this coordinator acts, or none that acts is known to it."""
        return self.active or self.standby is None or self.standby.over

    def observe(self, node: str, message: Mapping[str, Any]) -> None:
        """An agent joins with this message; when it has followed a later coordinator, this one steps down. Raises
        ValueError or TypeError for a message that is not well formed."""
        if self.quorum.observe(message) and self.active:
            self._step_down(f"{node} has followed a coordinator that began to act later")

    def gather(self, member: Member) -> None:
        """An agent has joined while this coordinator does not act."""
        takes_over = member.state.epoch != 0 and isinstance(self._policy, TakeoverPolicy)
        if self.gathering is None and not self.quorum.contested and not takes_over:
            self.take_over()
            return
        member.tell(GATHERING)
        if self.gathering is None:
            seconds = GATHER_SECONDS * random.uniform(LEAST_GATHER, 1.0)
            self.gathering = self._loop.call_later(seconds, self.take_over)
        if len(self._members) == len(self._policy.nodes):
            self.take_over()

    def member_gone(self) -> bool:
        """A member is lost; returns whether this coordinator still acts."""
        if self.active and not self.quorum.reached_by(self._members):
            self._step_down(self._too_few())
        return self.active

    def hold_back(self, node: str, message: dict[str, Any]) -> None:
        """An agent has said this while this coordinator does not act: the policy hears of it when it does."""
        self._held_back.append((time.monotonic(), node, message))

    def take_over(self) -> None:
        """Begins to act with the members that have joined, when they are enough; else lets them go."""
        if not self.quorum.reached_by(self._members):
            self._log(self._too_few())
            self._let_go()
            return
        self._stop_gathering()
        self.quorum.start_term()
        self.active = True
        if self.standby is not None:
            self._log(f"acts in the place of the coordinator at {self.standby.other} (term {self.quorum.term})")
        states = {node: member.state for node, member in self._members.items()}
        recovered = recover_tasks(states) if isinstance(self._policy, TakeoverPolicy) else None
        if recovered is None:
            if self._driver.newest >= 0 or any(state.epoch for state in states.values()):
                self.epoch = time.time_ns()  # differs from every epoch that a member knows
        elif isinstance(self._policy, TakeoverPolicy):
            number = max(recovered.number, first_number(self._driver.newest))
            self.epoch = recovered.epoch
            self._policy.adopt(recovered.tasks, number)
            self._driver.newest = number
        self._begin(states, recovered)

    def _begin(self, states: dict[str, AgentState], recovered: RecoveredTasks | None) -> None:
        """Introduces the members to each other and to the policy, and continues with the recovered tasks."""
        self._introduce()
        for node in list(self._members):
            self._driver.handle(Back(node))
        if recovered is not None:
            self._log(f"takes over {len(recovered.tasks)} tasks from another coordinator")
            self._driver.recover(recovered, states)
        for node in self._policy.nodes if recovered is not None else ():
            if node not in self._members:
                self._driver.handle(Lost(node))
        held_back, self._held_back = self._held_back, []
        for at, node, message in held_back:
            other = self._members.get(message["node"]) if message["type"] == "lost" else None
            if other is not None and other.joined > at:
                continue  # it has restarted since: that connections to its old process broke says nothing of the link
            member = self._members.get(node)
            if member is None or member.joined > at:
                continue  # it has restarted since, and what it had submitted is gone
            if self.active:
                self._driver.said(node, message)
            else:
                self.hold_back(node, message)

    def _too_few(self) -> str:
        here, everyone = len(self._members), len(self._policy.nodes)
        return f"only {here} of {everyone} agents have joined here, and another coordinator may have the others"

    def _stop_gathering(self) -> None:
        if self.gathering is not None:
            self.gathering.cancel()
            self.gathering = None

    def _let_go(self) -> None:
        """Disconnects all members: they are to look for another coordinator."""
        self._stop_gathering()
        members = dict(self._members)
        self._members.clear()
        self._held_back.clear()
        for node, member in members.items():
            self._driver.pending.clear(node)
            member.tell(STANDBY)
            member.writer.close()

    def _step_down(self, reason: str) -> None:
        """Acts no more, until more than half of the agents join again. The agents have the running tasks."""
        self._log(f"steps down: {reason}")
        self.active = False
        self._driver.forget()
        self._let_go()
        for node in self._policy.nodes:
            try:
                self._policy.handle(Lost(node), time.monotonic())  # its orders have no addressee
            except Exception as error:
                self._log(f"the policy cannot handle the loss of {node}: {type(error).__name__}: {error}")

    def _make_way(self) -> bool:
        """The coordinator that this one backs up acts again; returns whether this one lets its agents go. While this
        one acts it keeps them: the other one has fewer, and will notice."""
        if not self.active:
            self._let_go()
        return not self.active
