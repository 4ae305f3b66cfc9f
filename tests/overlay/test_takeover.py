"""Coordinators that end in the middle of a task, and backups that take their place (CREW paper, IV-B)."""

from __future__ import annotations

import multiprocessing
import signal
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
from overlay.net.takeover import NUMBERS_PER_COORDINATOR, AgentState, recover_tasks
from tests.overlay.test_agents import SECONDS, Drawn, edges, running, until
from topologies.ports import free_port, free_ports

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
        coordinator.leadership.take_over()

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
        coordinator.leadership.take_over()

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
def joined(address, *backups):
    agents = {node: Agent(address, node, listen=("127.0.0.1", 0), backups=backups) for node in NODES}
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
def test_a_backup_takes_over_in_the_middle_of_tasks(policy):
    finished = []
    with process(policy) as (primary, address):
        heir = Coordinator(
            policy, backs_up=address, finished=lambda task, s: finished.append((task.number, task.participants))
        )
        with heir, joined(address, heir.address) as agents:
            tensors, futures = bring(agents)
            until(lambda: all(agent.tasks.running and not agent.submissions.waiting for agent in agents.values()))
            primary.kill()
            dones = {node: future.result(SECONDS) for node, future in futures.items()}
            until(lambda: heir.active and len(heir.members) == len(NODES) and heir.leadership.gathering is None)
            check_groups(tensors, dones)
            assert all(len(done.participants) > 1 for done in dones.values()), "nobody has noticed"
            tensors, futures = bring(agents)
            dones = {node: future.result(SECONDS) for node, future in futures.items()}
            check_groups(tensors, dones)
            assert all(done.task > NUMBERS_PER_COORDINATOR for done in dones.values()), "numbers of the backup's own"
            until(lambda: {n for n, _ in finished} >= {done.task for done in dones.values()})
    assert sorted(n for n, _ in finished) == sorted({n for n, _ in finished}), "each task ends once"


def test_a_coordinator_that_comes_back_goes_on_where_it_was():
    with process(SlowRounds(NODES)) as (primary, address), joined(address) as agents:
        tensors, futures = bring(agents)
        until(lambda: all(agent.tasks.running and not agent.submissions.waiting for agent in agents.values()))
        primary.kill()
        primary.join()
        with Coordinator(SlowRounds(NODES), port=address[1]):
            dones = {node: future.result(SECONDS) for node, future in futures.items()}
            check_groups(tensors, dones)
            tensors, futures = bring(agents)
            check_groups(tensors, {node: future.result(SECONDS) for node, future in futures.items()})


def test_a_replaced_worker_process_is_lost_for_running_tasks():
    """It would wait for data that the others had sent to the first process."""
    done = threading.Event()

    def take_over(coordinator: Coordinator) -> None:
        task = coordinator.policy.task(7, 8, 0.0)
        for node, member in coordinator.members.items():
            member.state = AgentState(0, 0, {}, {}) if node == "c" else AgentState(5, 7, {7: (task, False)}, {})
        coordinator.leadership.active = False
        coordinator.leadership.gathering = coordinator.loop.call_later(SECONDS, lambda: None)
        coordinator.leadership.take_over()
        done.set()

    with running(OneTree(("a", "b", "c"))) as (coordinator, _):
        coordinator.loop.call_soon_threadsafe(take_over, coordinator)
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


def test_a_backup_admits_no_agent_while_the_primary_is_active():
    with Coordinator(Drawn(NODES, 1)) as primary:
        heir = Coordinator(Drawn(NODES, 1), backs_up=primary.address)
        with heir, joined(primary.address) as agents:
            lost = Agent(heir.address, "a", listen=("127.0.0.1", 0))
            until(lambda: lost.submissions.left_at is not None)
            assert not heir.active, "on a busy machine it may let agents gather, but it does not act"
            lost.close()
            _, futures = bring(agents)
            for future in futures.values():
                future.result(SECONDS)


def test_two_backups_of_one_another_agree():
    ports = free_ports(2)
    first = Coordinator(Drawn(NODES, 1), port=ports[0], backs_up=("127.0.0.1", ports[1]))
    second = Coordinator(Drawn(NODES, 1), port=ports[1], backs_up=("127.0.0.1", ports[0]))
    with first, second, joined(first.address, second.address) as agents:
        _, futures = bring(agents)
        for future in futures.values():
            future.result(SECONDS)
        assert first.active != second.active


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
    """The policy that takes over finds the agents in different states: the running task is given up."""
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
