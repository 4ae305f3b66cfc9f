"""Agents with real sockets on loopback: sums, losses, restarts, and messages of strangers."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest

from controlplane.planner.plan.task import Edge, Sending, SumTree, Task
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.wan.policy import FollowPlan, Measured, Policy, Rounds
from controlplane.planner.wan_networks import netstorm_draw, overlay
from evaluation.wan.networks import whole_job
from overlay import Agent, Coordinator, OverlayError, PeerLost
from overlay.core.errors import NameTaken
from overlay.core.message import Header, Kind
from overlay.core.tcp import Connections
from overlay.net.inbound import Inbound
from tests.overlay.networks import random_task
from tests.support.waiting import wait_until as until
from topologies.ports import free_port

SECONDS = 60.0


class Drawn(Rounds):
    """A policy with another random task each round."""

    def __init__(self, nodes: tuple[str, ...], seed: int) -> None:
        super().__init__(nodes)
        self.rng = random.Random(seed)

    def task(self, number: int, values: int, now: float) -> Task:
        while True:
            task = random_task(self.rng, self.nodes, values, "mean")
            if set(task.participants) == set(self.nodes):
                size = max(task.chunk_values, values // 40)
                return Task(number, values, task.trees, "mean", number, size, task.window)


@contextmanager
def running(policy: Policy, connections: int = 1, **options) -> Iterator[tuple[Coordinator, dict[str, Agent]]]:
    with Coordinator(policy, **options) as coordinator:
        agents = {
            node: Agent(coordinator.address, node, listen=("127.0.0.1", 0), connections=Connections(connections))
            for node in policy.nodes
        }
        try:
            for agent in agents.values():
                agent.wait_joined()
            yield coordinator, agents
        finally:
            for agent in agents.values():
                agent.close()


def edges(root: str, nodes: tuple[str, ...], down: bool = False) -> tuple[Edge, ...]:
    return tuple(Edge(root, n) if down else Edge(n, root) for n in nodes if n != root)


def synchronise(agents: dict[str, Agent], values: int, seed: int) -> None:
    """Run one round; every agent must have the same mean, exactly (whole numbers)."""
    rng = np.random.default_rng(seed)
    given = {node: rng.integers(-999, 999, values).astype(np.float32) for node in agents}
    wanted = np.sum(list(given.values()), axis=0) * np.float32(1 / len(agents))
    futures = [agent.synchronise_async(given[node]) for node, agent in agents.items()]
    for future in futures:
        future.result(SECONDS)
    for node in agents:
        np.testing.assert_array_equal(given[node], wanted)


@pytest.mark.parametrize("connections", [1, 3])
def test_rounds_over_random_trees(connections):
    nodes = tuple(f"n{i}" for i in range(5))
    with running(Drawn(nodes, 7), connections) as (_, agents):
        for round_ in range(12):
            synchronise(agents, [1, 17, 100_000][round_ % 3], round_)


@pytest.mark.parametrize("strategy", ["wan", "netstorm", "star", "balanced-tree", "tsengine", "crew", "apsp"])
def test_plans_of_every_kind(strategy):
    graph = netstorm_draw(np.random.default_rng(1))
    topology = overlay(graph)
    plan = get_strategy(strategy)(topology, whole_job(graph, 4 * 300_000), seed=1)
    with running(FollowPlan(plan, topology, sending=Sending(paced=False, chunk_values=4096))) as (_, agents):
        synchronise(agents, 300_000, 1)


def test_buckets_of_one_model_are_reduced_concurrently():
    nodes = ("a", "b", "c")
    with running(Drawn(nodes, 3)) as (_, agents):
        given = [{node: np.full(50_000 + k, k, np.float32) for node in nodes} for k in range(6)]
        futures = [agents[node].synchronise_async(bucket[node]) for bucket in given for node in nodes]
        assert not wait(futures, SECONDS).not_done
        for k, bucket in enumerate(given):
            for node in nodes:
                np.testing.assert_array_equal(bucket[node], np.float32(k))


def test_an_agent_that_dies_is_named_to_the_others_and_may_come_back():
    nodes = ("a", "b", "c")
    with running(Drawn(nodes, 1)) as (coordinator, agents):
        synchronise(agents, 1000, 0)
        slow = SumTree("a", 0, 1000, edges("a", nodes), edges("a", nodes, down=True), nodes, nodes, rate_mbps=0.001)
        coordinator.policy.task = lambda number, values, now: Task(number, values, (slow,), chunk_values=10)
        waiting = [agents[n].synchronise_async(np.ones(1000, np.float32)) for n in nodes]
        until(lambda: 2 in agents["c"].tasks.running)  # The first task may still be there.
        agents["c"].close()
        for future in waiting[:2]:
            with pytest.raises(PeerLost, match=r"c is lost|a and c|b and c"):
                future.result(SECONDS)
        del coordinator.policy.task
        agents["c"] = Agent(coordinator.address, "c", listen=("127.0.0.1", 0))
        agents["c"].wait_joined()
        synchronise(agents, 1000, 1)


def test_an_agent_that_was_away_hears_that_its_task_was_given_up():
    """Its connection broke, or it was silent for too long, but its process lives."""
    nodes = ("a", "b", "c")
    with running(Drawn(nodes, 1)) as (coordinator, agents):
        slow = SumTree("a", 0, 1000, edges("a", nodes), edges("a", nodes, down=True), nodes, nodes, rate_mbps=0.001)
        coordinator.policy.task = lambda number, values, now: Task(number, values, (slow,), chunk_values=10)
        waiting = [agents[n].synchronise_async(np.ones(1000, np.float32)) for n in nodes]
        until(lambda: all(agents[n].tasks.running for n in nodes))
        coordinator.loop.call_soon_threadsafe(coordinator.members["b"].writer.transport.abort)
        for future in waiting:
            with pytest.raises(PeerLost, match="b"):
                future.result(SECONDS)
        del coordinator.policy.task
        synchronise(agents, 1000, 1)


def test_a_coordinator_that_comes_back_is_joined_again():
    nodes = ("a", "b")
    first = Coordinator(Drawn(nodes, 1))
    agents = {node: Agent(first.address, node, listen=("127.0.0.1", 0)) for node in nodes}
    try:
        synchronise(agents, 1000, 0)
        early = np.full(1000, 5.0, np.float32)
        done = agents["a"].synchronise_async(early)  # It waits for b when the coordinator fails.
        first.close()
        second = Coordinator(Drawn(nodes, 2), port=first.address[1])
        try:
            agents["b"].synchronise(np.full(1000, 7.0, np.float32), SECONDS)
            done.result(SECONDS)
            np.testing.assert_array_equal(early, np.float32(6.0))
        finally:
            second.close()
    finally:
        for agent in agents.values():
            agent.close()


def test_messages_of_strangers_change_nothing():
    nodes = ("a", "b", "c")
    rng = random.Random(5)
    with running(Drawn(nodes, 1)) as (coordinator, agents):
        for agent in agents.values():
            for length in (1, 59, 60, 61, 5000):
                with socket.create_connection(agent.listen, SECONDS) as stranger:
                    stranger.sendall(rng.randbytes(length))
        wrong = b'{"type":"join","node":"x","host":"h","port":1}\n'
        for junk in (b"\n", b"{}\n", b'{"type": "join"}\n', wrong, b"[" * 99, b"[" * 99_999 + b"\n"):
            with socket.create_connection(coordinator.address, SECONDS) as stranger:
                stranger.sendall(junk)
        synchronise(agents, 10_000, 1)
        assert any(agent.counters["malformed"] for agent in agents.values())


def test_different_sizes_are_an_error_for_everyone():
    with running(Drawn(("a", "b"), 1)) as (_, agents):
        futures = [agents[n].synchronise_async(np.ones(size, np.float32)) for n, size in (("a", 5), ("b", 6))]
        for future in futures:
            with pytest.raises(OverlayError, match="values to synchronise"):
                future.result(SECONDS)


def test_an_agent_without_a_part_is_refused():
    with Coordinator(Drawn(("a",), 1)) as coordinator:
        stranger = Agent(coordinator.address, "x", listen=("127.0.0.1", 0))
        with pytest.raises(OverlayError, match="x has no part in this job"):
            stranger.wait_joined()
        stranger.close()


def test_a_second_agent_of_a_name_is_refused_and_never_joins():
    """Else it would be there when the first one has gone, and others would wait for its values."""
    with running(Drawn(("a", "b"), 1)) as (coordinator, agents):
        second = Agent(coordinator.address, "b", listen=("127.0.0.1", 0))
        with pytest.raises(NameTaken, match="b is there already"):
            second.wait_joined()
        until(lambda: second.membership.ended)
        agents["b"].close()
        until(lambda: "b" not in coordinator.members)
        agents["b"] = Agent(coordinator.address, "b", listen=("127.0.0.1", 0))
        agents["b"].wait_joined()
        synchronise(agents, 100, 0)
        with pytest.raises(NameTaken):
            second.synchronise_async(np.ones(3, np.float32)).result(SECONDS)
        second.close()


def test_an_agent_that_rejoins_before_it_was_missed_is_accepted():
    """On a busy machine an agent gives its connection up as silent, and the coordinator hears of the new one first."""

    def join(address: tuple[str, int]) -> str:
        host, port = address
        connection = stack.enter_context(socket.create_connection(coordinator.address, SECONDS))
        connection.sendall(json.dumps({"type": "join", "node": "a", "host": host, "port": port}).encode() + b"\n")
        return str(json.loads(connection.makefile().readline())["type"])

    lines: list[str] = []
    with running(Drawn(("a", "b"), 1), log=lines.append) as (coordinator, agents), ExitStack() as stack:
        synchronise(agents, 100, 0)
        assert join(("127.0.0.1", 1)) == "refused"
        assert join(agents["a"].listen) == "members"
        stack.close()
        until(lambda: sum("a joined" in line for line in lines) == 3)  # The agent itself has joined again.
        synchronise(agents, 100, 1)


def test_a_policy_that_begins_tasks_out_of_order_is_an_error_for_everyone():
    """Agents would take results of the lower number for old, and wait for the task for ever."""

    class Backwards(Drawn):
        def task(self, number: int, values: int, now: float) -> Task:
            return replace(super().task(number, values, now), number=9 - number)

    with running(Backwards(("h1", "h2"), 0)) as (_, agents):
        synchronise(agents, 100, 0)
        later = [agent.synchronise_async(np.ones(100, np.float32)) for agent in agents.values()]
        for future in later:
            with pytest.raises(OverlayError, match="begins task 7 after task 8"):
                future.result(SECONDS)


def test_unreachable_neighbour_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setattr("overlay.net.transport.CONNECT_SECONDS", 0.3)
    tree = SumTree("a", 0, 4, (Edge("b", "a"),), (Edge("a", "b"),), ("a", "b"), ("a", "b"))

    class One(Rounds):
        def task(self, number: int, values: int, now: float) -> Task:
            return Task(number, values, (tree,))

    with running(One(("a", "b"))) as (coordinator, agents):
        nowhere = ("127.0.0.1", free_port())

        def moved() -> None:
            coordinator.members["a"].address = nowhere
            coordinator.introduce()

        coordinator.loop.call_soon_threadsafe(moved)
        until(lambda: agents["b"].neighbours.members["a"] == nowhere)
        futures = [agents[n].synchronise_async(np.ones(4, np.float32)) for n in ("b", "a")]
        for future in futures:
            with pytest.raises(PeerLost, match="b and a cannot reach each other"):
                future.result(SECONDS)


def test_agents_with_clocks_of_their_own_measure_the_same():
    nodes = ("a", "b")
    heard: list[Measured] = []

    class Listens(Drawn):
        def learn(self, event, now):
            heard.append(event)

    with Coordinator(Listens(nodes, 1), probe_values=100) as coordinator:
        agents = {
            node: Agent(
                coordinator.address, node, listen=("127.0.0.1", 0), clock=lambda ahead=ahead: time.monotonic() + ahead
            )
            for node, ahead in (("a", 3600.0), ("b", -3600.0))
        }
        try:
            for agent in agents.values():
                agent.wait_joined()
            until(lambda: all(agent.membership.offset.seconds is not None for agent in agents.values()))
            for round_ in range(4):
                synchronise(agents, 1_000_000, round_)
            until(lambda: heard)
            # An hour more or less on the path would make it Kbit/s, or negative.
            assert max(event.mbps for event in heard) > 1.0
        finally:
            for agent in agents.values():
                agent.close()


def test_late_data_is_not_received_into_a_returned_tensor():
    tensor = np.full(8, 7.0, np.float32)
    got = []

    class Receiver:
        def buffer_for(self, header):
            return tensor

        def received(self, header, values):
            got.append(values.copy())

    inbound = Inbound(Receiver())
    result = np.arange(8, dtype=np.float32).tobytes()

    def feed(data: bytes) -> None:
        while data:
            buffer = inbound.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            inbound.buffer_updated(count)
            data = data[count:]

    feed(Header(Kind.DOWN, 1, 5, (0, 1), 1, values=8).pack() + result[:12])
    inbound.divert(5)
    tensor[:] = 7.0  # The trainer submits its values again.
    feed(result[12:] + Header(Kind.DOWN, 1, 6, (0, 1), 1, values=8).pack() + result[:4])
    np.testing.assert_array_equal(tensor[1:], np.full(7, 7.0))
    np.testing.assert_array_equal(got, [np.arange(8)])
