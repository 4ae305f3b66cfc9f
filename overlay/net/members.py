"""The agents that are connected to a coordinator, and messages to them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from controlplane.planner.plan.task import Task
from overlay.core.reachability import Reachability
from overlay.net.liveness import Silence
from overlay.net.recovery import AgentState
from overlay.net.told import Told, packed

MAX_REASON = 200
"""Maximum number of characters of a reason that an agent reports."""


class Member:
    """One connected agent.

    Attributes:
        node: the agent's name.
        address: (host, port) at which other agents reach it.
        writer: its connection.
        state: its tasks when it joined.
        inbound: whether other agents can connect to it, as its operator has declared.
        unreached: other agents to which it could not connect: (address, reason) by name.
        joined: when it joined, in seconds of the monotonic clock.
        silence: how long it has said nothing.
        told: the tasks that it was told of last.
    """

    def __init__(
        self, node: str, address: tuple[str, int], writer: asyncio.StreamWriter, state: AgentState, *,
        inbound: bool = True,
    ) -> None:  # fmt: skip
        self.inbound = inbound
        self.unreached: dict[str, tuple[tuple[str, int], str]] = {}
        self.node, self.address, self.writer, self.state = node, address, writer, state
        self.joined = time.monotonic()
        self.silence = Silence()
        self.told = Told()

    def could_not_reach(self, reported: Mapping[str, Any]) -> None:
        """Take the agent's report of other agents to which it cannot connect, {name: [[host, port], reason]}. Raise
        ValueError, TypeError or AttributeError for one that is not well formed.
        """
        self.unreached = {
            str(other): ((str(host), int(port)), str(reason)[:MAX_REASON])
            for other, ((host, port), reason) in reported.items()
        }

    def tell(self, message: bytes) -> None:
        """Send a line of JSON; do nothing when the connection is closing."""
        if not self.writer.is_closing():
            self.writer.write(message)


class Members(dict[str, Member]):
    """The connected agents by name."""

    def reachability(self) -> Reachability:
        """Return which agents can connect to which. A report about an agent that has another address now is void."""
        unreached = {
            (node, other): reason
            for node, member in self.items() for other, (address, reason) in member.unreached.items()
            if other in self and self[other].address == address
        }  # fmt: skip
        return Reachability(frozenset(node for node, member in self.items() if not member.inbound), unreached)

    def tell(self, nodes: Iterable[str], **message: object) -> None:
        """Send a message to those of these agents that are connected."""
        data = json.dumps(message).encode() + b"\n"
        for node in nodes:
            if node in self:
                self[node].tell(data)

    def announce(self, task: Task, nodes: Iterable[str]) -> None:
        """Tell these agents of a task. An agent whose last task of the same kind differs only in number and round is
        told no more than these: ninety trees are 100 kB to write, and to read for each agent, while all wait for the
        last agent.
        """
        others: list[str] = []
        compared: list[tuple[Task | None, bool]] = [(None, False)]
        for node in nodes:
            member = self.get(node)
            if member is None:
                continue
            before = member.told.add(task)
            alike = next((same for other, same in compared if other is before), None)
            if alike is None:
                assert before is not None
                alike = replace(before, number=task.number, round=task.round) == task
                compared.append((before, alike))
            if alike and before is not None:
                self.tell((node,), **{"as": before.number}, type="alike", task=task.number, round=task.round)
            else:
                others.append(node)
        if others:
            self.tell(others, type="task", packed=packed(task))
