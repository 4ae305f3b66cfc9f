"""Coordinators that end in the middle of a task and are restarted (CREW paper, IV-B)."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from controlplane.planner.plan.task import Edge, SumTree, Task
from controlplane.planner.strategies.wan.crew.policy import Crew, CrewSettings
from controlplane.planner.strategies.wan.policy import Rounds
from overlay import Agent, Coordinator, PeerLost
from overlay.net import agent as agent_module
from overlay.net.recovery import NUMBERS_PER_COORDINATOR, AgentState, recover_tasks
from tests.overlay.test_agents import SECONDS, Drawn, edges, running, synchronise, until
from topologies.ports import free_port

NODES = ("a", "b", "c", "d")
SPAWN = multiprocessing.get_context("spawn")


class SlowCrew(Crew):
    """Tasks take a second or two: long enough to lose a coordinator in their middle."""

    def __init__(self, p: int = 2, budget: float = 0.0) -> None:
        bandwidth = np.full((len(NODES), len(NODES)), 100.0)
        np.fill_diagonal(bandwidth, np.inf)
        super().__init__(NODES, bandwidth, p, CrewSettings(chunk_values=16, budget=budget))

    def make_task(self, number, members, values):
        task = super().make_task(number, members, values)
        return replace(task, window=1, trees=tuple(replace(tree, rate_mbps=0.01) for tree in task.trees))


class SlowRounds(Rounds):
    def task(self, number: int, values: int, now: float) -> Task:
        up, down = edges("a", self.nodes), edges("a", self.nodes, down=True)
        tree = SumTree("a", 0, values, up, down, self.nodes, self.nodes, rate_mbps=0.01)
        return Task(number, values, (tree,), round=number, chunk_values=16)


class OneTree(Rounds):
    def task(self, number: int, values: int, now: float) -> Task:
        up, down = edges("a", self.nodes), edges("a", self.nodes, down=True)
        return Task(number, values, (SumTree("a", 0, values, up, down, self.nodes, self.nodes),), round=number)


def lost(coordinator: Coordinator, node: str) -> dict[str, Any]:
    """Return an agent's message when its connection to another agent ends."""
    address = list(coordinator.members[node].address)
    return {"type": "lost", "node": node, "address": address, "reason": "the connection ended"}


def test_late_reports_of_a_restarted_agent_do_not_concern_its_links():
    """Its neighbours find its connections broken at any time after the coordinator has."""
    broken: list[tuple[str, str]] = []

    def late(coordinator: Coordinator) -> None:
        said = lost(coordinator, "c")
        host, port = said["address"]
        coordinator.members["c"].address = (host, port + 1)
        coordinator.said("a", said)
        coordinator.said("a", lost(coordinator, "b"))

    with running(Drawn(("a", "b", "c"), 1)) as (coordinator, _):
        coordinator.policy.broken = lambda *pair: broken.append(pair)
        coordinator.loop.call_soon_threadsafe(late, coordinator)
        until(lambda: broken)
        assert broken == [("a", "b")]


def test_losses_of_a_returned_agent_do_not_concern_its_links():
    """The agent died while no coordinator was active, and is back before one is."""
    broken: list[tuple[str, str]] = []

    def without_a_coordinator(coordinator: Coordinator) -> None:
        coordinator.leadership.active = False
        coordinator.leadership.gathering = coordinator.loop.call_later(SECONDS, lambda: None)
        for other in ("c", "b"):
            coordinator.said("a", lost(coordinator, other))
        coordinator.members["c"].joined = time.monotonic()
        coordinator.leadership.begin()

    with running(Drawn(("a", "b", "c"), 1)) as (coordinator, _):
        coordinator.policy.broken = lambda *pair: broken.append(pair)
        coordinator.loop.call_soon_threadsafe(without_a_coordinator, coordinator)
        until(lambda: broken)
        assert broken == [("a", "b")]


def test_values_of_a_replaced_process_are_not_waited_for():
    """The agent reported it while no coordinator was active, died, and is back before one is."""

    def without_a_coordinator(coordinator: Coordinator) -> None:
        coordinator.leadership.active = False
        coordinator.leadership.gathering = coordinator.loop.call_later(SECONDS, lambda: None)
        for node in ("b", "c"):
            coordinator.said(node, {"type": "ready", "values": 8, "turn": 1})
        coordinator.members["c"].joined = time.monotonic()
        coordinator.leadership.begin()

    with running(Drawn(("a", "b", "c"), 1)) as (coordinator, _):
        coordinator.loop.call_soon_threadsafe(without_a_coordinator, coordinator)
        until(lambda: coordinator.policy.ready["b"])
        assert not coordinator.policy.ready["c"]


def coordinate(policy, port: int, ready) -> None:
    """A coordinator in a process of its own, which can be killed."""
    with Coordinator(policy, port=port):
        ready.set()
        signal.pause()


@contextmanager
def process(policy):
    """Start a coordinator; returns (the process, the address where it listens)."""
    port, ready = free_port(), SPAWN.Event()
    running = SPAWN.Process(target=coordinate, args=(policy, port, ready), daemon=True)
    running.start()
    try:
        assert ready.wait(SECONDS)
        yield running, ("127.0.0.1", port)
    finally:
        running.kill()
        running.join()


@contextmanager
def joined(address):
    agents = {node: Agent(address, node, listen=("127.0.0.1", 0)) for node in NODES}
    try:
        for agent in agents.values():
            agent.wait_joined()
        yield agents
    finally:
        for agent in agents.values():
            agent.close()


def bring(agents, values: int = 1024):
    tensors = {node: np.full(values, k, np.float32) for k, node in enumerate(agents)}
    return tensors, {node: agent.synchronise_async(tensors[node]) for node, agent in agents.items()}


def check_groups(tensors, dones) -> None:
    """Check that every agent has exactly the mean of its group."""
    for node, done in dones.items():
        wanted = np.mean([NODES.index(other) for other in done.participants])
        np.testing.assert_array_equal(tensors[node], np.float32(wanted))


@pytest.mark.parametrize("policy", [SlowCrew(), SlowRounds(NODES)], ids=["crew", "rounds"])
def test_a_coordinator_that_is_restarted_in_the_middle_of_tasks_goes_on(policy):
    finished = []
    with process(policy) as (first, address), joined(address) as agents:
        tensors, futures = bring(agents)
        until(lambda: all(agent.tasks.running and not agent.submissions.waiting for agent in agents.values()))
        first.kill()
        first.join()
        with Coordinator(
            policy, port=address[1], finished=lambda task, s: finished.append((task.number, task.participants))
        ) as second:
            dones = {node: future.result(SECONDS) for node, future in futures.items()}
            until(lambda: second.active and len(second.members) == len(NODES) and second.leadership.gathering is None)
            check_groups(tensors, dones)
            assert all(len(done.participants) > 1 for done in dones.values()), "no trainer has noticed"
            tensors, futures = bring(agents)
            dones = {node: future.result(SECONDS) for node, future in futures.items()}
            check_groups(tensors, dones)
            assert all(done.task > NUMBERS_PER_COORDINATOR for done in dones.values()), "numbers of its own"
            until(lambda: {n for n, _ in finished} >= {done.task for done in dones.values()})
    assert sorted(n for n, _ in finished) == sorted({n for n, _ in finished}), "each task ends once"


def test_agents_resolve_the_coordinators_name_for_each_connection(monkeypatch):
    """The coordinator is started on another machine, and the name is changed."""
    real, at = socket.getaddrinfo, "127.0.0.1"

    def resolve(host, port, *args, **options):
        return real(at if host == "sites.example" else host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(agent_module, "new_event_loop", asyncio.new_event_loop)  # uvloop resolves by itself
    with Coordinator(Drawn(NODES, 1)) as first:
        port = first.address[1]
        with joined(("sites.example", port)) as agents:
            synchronise(agents, 100, 0)
            first.close()
            at = "127.0.0.2"
            with Coordinator(Drawn(NODES, 1), at, port):
                synchronise(agents, 100, 1)


def test_a_coordinator_that_was_replaced_steps_down_when_an_agent_reports_it():
    lines: list[str] = []
    with running(Drawn(("a", "b"), 1), log=lines.append) as (there, agents):
        synchronise(agents, 100, 0)
        with socket.create_connection(there.address, SECONDS) as late:
            host, port = agents["b"].listen
            word = {"type": "join", "node": "b", "host": host, "port": port, "term": 7}
            late.sendall(json.dumps(word).encode() + b"\n")
            until(lambda: any("steps down" in line for line in lines))
        until(lambda: there.active and len(there.members) == 2 and there.leadership.quorum.term > 7)
        synchronise(agents, 100, 1)


def test_a_replaced_worker_process_is_lost_for_running_tasks():
    """It would wait for data that the others had sent to the first process."""
    done = threading.Event()

    def act_again(coordinator: Coordinator) -> None:
        task = coordinator.policy.task(7, 8, 0.0)
        for node, member in coordinator.members.items():
            member.state = AgentState(0, 0, {}, {}) if node == "c" else AgentState(5, 7, {7: (task, False)}, {})
        coordinator.leadership.active = False
        coordinator.leadership.gathering = coordinator.loop.call_later(SECONDS, lambda: None)
        coordinator.leadership.begin()
        done.set()

    with running(OneTree(("a", "b", "c"))) as (coordinator, _):
        coordinator.loop.call_soon_threadsafe(act_again, coordinator)
        assert done.wait(SECONDS)
        assert not coordinator.driver.running and not coordinator.policy.running


def test_without_any_coordinator_crews_workers_go_on_alone():
    with process(SlowCrew()) as (primary, address), joined(address) as agents:
        primary.kill()
        until(lambda: all(agent.submissions.left_at is not None for agent in agents.values()))
        tensors, futures = bring(agents)
        for k, node in enumerate(NODES):
            assert futures[node].result(SECONDS).participants == (node,)
            np.testing.assert_array_equal(tensors[node], np.float32(k))
        with Coordinator(SlowCrew(), port=address[1]):
            until(lambda: all(agent.submissions.left_at is None for agent in agents.values()))
            tensors, futures = bring(agents)
            dones = {node: future.result(SECONDS) for node, future in futures.items()}
            check_groups(tensors, dones)
            assert all(len(done.participants) == 2 for done in dones.values())


def test_a_worker_lost_without_a_coordinator_ends_its_tasks_by_notices():
    with process(SlowCrew(p=4)) as (primary, address), joined(address) as agents:
        tensors, futures = bring(agents, 8192)
        until(lambda: all(agent.tasks.running for agent in agents.values()))
        primary.kill()
        until(lambda: not any(agent.membership.connected for agent in agents.values()))
        agents["d"].close()
        for k, node in enumerate(NODES[:3]):
            assert futures[node].result(SECONDS).participants == (node,)
            np.testing.assert_array_equal(tensors[node], np.float32(k))


def test_a_task_past_its_budget_is_discarded():
    policy = SlowCrew(p=4, budget=0.2)
    with Coordinator(policy) as coordinator, joined(coordinator.address) as agents:
        tensors, futures = bring(agents, 8192)
        for k, node in enumerate(NODES):
            assert futures[node].result(SECONDS).participants == (node,)
            np.testing.assert_array_equal(tensors[node], np.float32(k))


TREE = SumTree("a", 0, 4, (Edge("b", "a"),), (Edge("a", "b"),), ("a", "b"), ("a", "b"))
TASK = Task(7, 4, (TREE,))


@pytest.mark.parametrize(
    ("a", "b", "what"),
    [
        (AgentState(5, 7, {7: (TASK, False)}, {}), AgentState(5, 7, {7: (TASK, True)}, {}), {"a"}),
        (AgentState(5, 7, {7: (TASK, False)}, {}), AgentState(5, 6, {}, {}), {"a", "b"}),  # b was never told.
        (AgentState(5, 7, {7: (TASK, True)}, {}), AgentState(5, 7, {}, {7: True}), "done"),
        (AgentState(5, 7, {7: (TASK, True)}, {}), AgentState(5, 7, {7: (TASK, True)}, {}), "done"),
        (AgentState(5, 7, {7: (TASK, False)}, {}), AgentState(5, 7, {}, {7: False}), "given up"),
        (AgentState(5, 7, {7: (TASK, False)}, {}), AgentState(0, 0, {}, {}), {"a", "b"}),  # b has started again.
    ],
)
def test_reports_of_agents_determine_a_tasks_progress(a, b, what):
    found = recover_tasks({"a": a, "b": b})
    assert found is not None and found.epoch == 5 and found.number == NUMBERS_PER_COORDINATOR
    kinds = {"done": found.done, "given up": found.given_up}
    if isinstance(what, str):
        assert kinds[what] == {7: TASK} and not found.tasks
    else:
        assert found.tasks == {7: (TASK, frozenset(what))} and not found.done and not found.given_up


def test_agents_of_two_coordinators_have_nothing_in_common():
    assert recover_tasks({"a": AgentState(5, 7, {7: (TASK, False)}, {}), "b": AgentState(6, 1, {}, {})}) is None


def test_agents_of_two_epochs_begin_anew():
    """The restarted coordinator finds the agents in different states: the running task is given up."""
    with Coordinator(Drawn(("a", "b"), 1)) as coordinator:
        agents = {n: Agent(coordinator.address, n, listen=("127.0.0.1", 0)) for n in ("a", "b")}
        try:
            for agent in agents.values():
                agent.wait_joined()
            agents["b"].neighbours.epoch += 1
            waiting = agents["a"].synchronise_async(np.ones(10, np.float32))
            port = coordinator.address[1]
            coordinator.close()
            with Coordinator(Drawn(("a", "b"), 1), port=port):
                agents["b"].synchronise_async(np.ones(10, np.float32)).result(SECONDS)
                waiting.result(SECONDS)
        except PeerLost:
            pytest.fail("nothing ran that could be given up")
        finally:
            for agent in agents.values():
                agent.close()
