"""Connections that agents keep open: they exist before they are needed, exist again after a failure, and are never
superfluous.
"""

from __future__ import annotations

import os

import pytest

from controlplane.planner.plan.task import SumTree, Task
from controlplane.planner.strategies.wan.policy import Event, Lost, Order, Rounds
from overlay import Agent, Coordinator
from overlay.net.transport import KEPT_CONNECTIONS, Peer, kept_open
from tests.overlay.test_agents import Drawn, edges, running, synchronise, until
from topologies.ports import free_port

NODES = ("a", "b", "c")


class Star(Rounds):
    """A policy that records what is lost."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        super().__init__(nodes)
        self.lost: list[Lost] = []

    def task(self, number: int, values: int, now: float) -> Task:
        up, down = edges("a", self.nodes), edges("a", self.nodes, down=True)
        return Task(number, values, (SumTree("a", 0, values, up, down, self.nodes, self.nodes),), round=number)

    def handle(self, event: Event, now: float) -> list[Order]:
        if isinstance(event, Lost):
            self.lost.append(event)
        return list(super().handle(event, now))


def open_to(agent: Agent) -> set[str]:
    """Return the peers to which an agent's connections are open."""
    return {name for name, peer in list(agent.neighbours.peers.items()) if all(line.free for line in peer.lines)}


def met(agents: dict[str, Agent], connections: int = 1) -> bool:
    """Return whether all agents are connected to all, and no agent has a connection that its other end did not open."""
    everyone = all(open_to(agent) == agents.keys() - {name} for name, agent in agents.items())
    others = (len(agents) - 1) * connections
    return everyone and all(len(agent.neighbours.inbound) == others for agent in agents.values())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("connections", [1, 3])
def test_all_are_open_before_the_first_task(connections):
    with running(Drawn(NODES, 1), connections) as (_, agents):
        until(lambda: met(agents, connections))


def test_late_and_returning_agents_are_connected_and_no_socket_is_left():
    policy = Star(NODES)
    with Coordinator(policy) as coordinator:
        agents = {n: Agent(coordinator.address, n, listen=("127.0.0.1", 0)) for n in NODES[:2]}
        try:
            until(lambda: met(agents))
            agents["c"] = Agent(coordinator.address, "c", listen=("127.0.0.1", 0))
            until(lambda: met(agents))
            synchronise(agents, 1000, 0)
            whole, port = descriptors(), agents["c"].listen[1]
            for round_ in range(6):  # The agent starts again at another port, and at the same port.
                agents["c"].close()
                agents["c"] = Agent(coordinator.address, "c", listen=("127.0.0.1", port if round_ % 2 else 0))
                until(lambda: met(agents))
                synchronise(agents, 1000, round_ + 1)
            until(lambda: descriptors() <= whole)
        finally:
            for agent in agents.values():
                agent.close()


def test_an_idle_connection_that_breaks_is_reopened_without_a_loss():
    """b and c never exchange anything; a's connections to b are needed in each round."""
    policy = Star(NODES)
    with running(policy) as (_, agents):
        until(lambda: met(agents))
        synchronise(agents, 1000, 0)
        before = agents["b"].neighbours.peers["c"]
        agents["b"].loop.call_soon_threadsafe(before.lines[0].transport.abort)
        until(lambda: agents["b"].neighbours.peers.get("c") not in (None, before) and met(agents))
        synchronise(agents, 1000, 1)
        assert not policy.lost
        used = agents["b"].neighbours.peers["a"]
        agents["b"].loop.call_soon_threadsafe(used.lines[0].transport.abort)  # As before, the policy hears of it.
        until(lambda: policy.lost == [Lost("b", "a")] and met(agents))
        synchronise(agents, 1000, 2)


def test_an_unreachable_member_is_not_lost_until_a_task_needs_it(monkeypatch):
    monkeypatch.setattr("overlay.net.transport.CONNECT_SECONDS", 0.2)
    monkeypatch.setattr("overlay.net.neighbours.REOPEN_SECONDS", 0.05)
    nowhere = ("127.0.0.1", free_port())
    policy = Star(NODES)
    with running(policy) as (_, agents):
        until(lambda: met(agents))
        b, there = agents["b"], agents["c"].listen

        def moved() -> None:
            b.neighbours.members["c"] = nowhere
            b.neighbours.peers["c"].lines[0].transport.abort()

        b.loop.call_soon_threadsafe(moved)
        tried: list[Peer | None] = []

        def again() -> bool:
            if b.neighbours.peers.get("c") not in tried:
                tried.append(b.neighbours.peers.get("c"))
            return len(tried) > 4

        until(again)  # This happens again.
        synchronise(agents, 1000, 0)
        assert not policy.lost
        b.loop.call_soon_threadsafe(b.neighbours.members.__setitem__, "c", there)
        until(lambda: met(agents))


def test_a_large_job_opens_only_the_connections_of_tasks(monkeypatch):
    assert kept_open(KEPT_CONNECTIONS + 1, 1) and not kept_open(KEPT_CONNECTIONS + 2, 1)
    assert kept_open(KEPT_CONNECTIONS // 4 + 1, 4) and not kept_open(KEPT_CONNECTIONS // 4 + 2, 4)
    monkeypatch.setattr("overlay.net.transport.KEPT_CONNECTIONS", 1)
    with running(Star(NODES)) as (_, agents):
        synchronise(agents, 1000, 0)
        opened = {name: set(agent.neighbours.peers) for name, agent in agents.items()}
        assert opened == {"a": {"b", "c"}, "b": {"a"}, "c": {"a"}}


def test_a_task_like_the_last_one_is_announced_by_its_number():
    """The new agent that a joins with knows of no earlier task."""
    told: list[str] = []

    class Counts(Star):
        def task(self, number: int, values: int, now: float) -> Task:
            if number != 4:
                return super().task(number, values, now)
            tree = SumTree("b", 0, values, edges("b", self.nodes), edges("b", self.nodes, down=True), NODES, NODES)
            return Task(number, values, (tree,), round=number)

    with running(Counts(NODES)) as (coordinator, agents):
        tell = coordinator.members.tell

        def listen(nodes, **message):
            nodes = list(nodes)
            told.extend(message["type"] for _ in nodes if message["type"] in ("task", "alike"))
            tell(nodes, **message)

        coordinator.members.tell = listen
        for round_ in range(3):
            synchronise(agents, 1000, round_)
        assert told == 3 * ["task"] + 6 * ["alike"]
        del told[:]
        synchronise(agents, 1000, 3)  # Task 4 has another tree.
        agents["c"].close()
        agents["c"] = Agent(coordinator.address, "c", listen=("127.0.0.1", 0))
        agents["c"].wait_joined()
        synchronise(agents, 1000, 4)
        assert sorted(told) == sorted(6 * ["task"])
        del told[:]
        synchronise(agents, 1000, 5)
        assert told == 3 * ["alike"]
