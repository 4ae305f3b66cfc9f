"""CREW's scatter without blocking: data that is sent before the group is known is used once, or discarded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from controlplane.planner.plan.task import Task
from controlplane.planner.strategies.wan.crew.policy import Crew, CrewSettings
from controlplane.planner.strategies.wan.policy import Back, DefaultSplit, Ready, Start
from controlplane.planner.topology import Topology
from overlay.core.scatter import OVER, TURNS, Scatter
from overlay.sim.simulation import Simulation
from tests.overlay.test_agents import SECONDS, running

NODES = tuple(f"h{k}" for k in range(6))


def crew(p: int, *, blocking: bool, seed: int = 1, chunk: int = 64) -> Crew:
    bandwidth = np.random.default_rng(seed).uniform(20, 155, (len(NODES), len(NODES)))
    np.fill_diagonal(bandwidth, np.inf)
    return Crew(NODES, bandwidth, p, settings=CrewSettings(chunk_values=chunk, blocking=blocking))


def test_groups_over_sockets_have_their_means_and_use_early_chunks():
    values = 20_000
    with running(crew(2, blocking=False)) as (_, agents):
        for round_ in range(6):
            tensors = {node: np.full(values, 10 * k + round_, np.float32) for k, node in enumerate(NODES)}
            futures = {node: agents[node].synchronise_async(tensors[node]) for node in NODES}
            for node, future in futures.items():
                members = future.result(SECONDS).participants
                wanted = np.float32(sum(10 * NODES.index(m) + round_ for m in members)) * np.float32(1 / len(members))
                np.testing.assert_array_equal(tensors[node], wanted)
        assert sum(agent.counters["early"] for agent in agents.values()) > 0
        assert not any(agent.counters["refused"] for agent in agents.values())


def test_a_worker_that_began_anew_is_not_taken_for_its_past():
    with running(crew(6, blocking=False)) as (coordinator, agents):
        for _ in range(2):
            tensors = {node: np.full(2000, k, np.float32) for k, node in enumerate(NODES)}
            for future in [agents[node].synchronise_async(tensors[node]) for node in NODES]:
                future.result(SECONDS)
        agents["h3"].close()
        agents["h3"] = type(agents["h0"])(coordinator.address, "h3", listen=("127.0.0.1", 0))
        agents["h3"].wait_joined()
        tensors = {node: np.full(2000, k, np.float32) for k, node in enumerate(NODES)}
        for future in [agents[node].synchronise_async(tensors[node]) for node in NODES]:
            future.result(SECONDS)
        np.testing.assert_array_equal(tensors["h3"], np.float32(2.5))


def full_mesh(seed: int) -> Topology:
    rng = np.random.default_rng(seed)
    nodes = {f"dc{k}": {"kind": "switch"} for k in range(6)} | {node: {"kind": "server"} for node in NODES}
    links = [(a, b, {"bandwidth_mbps": 1e4}) for k, h in enumerate(NODES) for a, b in ((f"dc{k}", h), (h, f"dc{k}"))]
    for i in range(6):
        for j in range(6):
            if i != j:
                links.append((f"dc{i}", f"dc{j}", {"bandwidth_mbps": float(rng.uniform(20, 155)), "delay_ms": 5.0}))
    return Topology(nodes, links, "mesh")


def test_links_that_would_wait_for_the_group_are_used():
    """Stragglers decide when a group is known; meanwhile the other agents' chunks move, and the group's task is
    shorter.
    """
    seconds = {}
    for blocking in (True, False):
        found: list[float] = []
        rng = np.random.default_rng(3)
        run = Simulation(
            crew(6, blocking=blocking, chunk=2048), full_mesh(1), 200_000,
            compute=lambda node, rng=rng: float(rng.uniform(0.1, 1.0)),
            finished=lambda task, s, found=found: found.append(s),
        )  # fmt: skip
        run.run(8)
        seconds[blocking] = float(np.mean(found))
    assert seconds[False] < 0.8 * seconds[True]


def grouped(policy: Crew, **turns: int) -> tuple[DefaultSplit, Task]:
    """All agents are there and these are ready, with 1,000 values each: the default split, and their task."""
    for node in NODES:
        policy.handle(Back(node), 0.0)
    orders = [order for node, turn in turns.items() for order in policy.handle(Ready(node, 1000, turn), 0.0)]
    (default,) = (order for order in orders if isinstance(order, DefaultSplit))
    (start,) = (order for order in orders if isinstance(order, Start))
    return default, start.task


def test_a_task_takes_over_only_chunks_at_the_right_aggregator():
    default, task = grouped(crew(2, blocking=False), h0=5, h4=9)
    scatter = Scatter("h0")
    sent = scatter.begin(5, default.blocks, default.chunk_values)
    assert [g for _, g in sent] == sorted(g for _, g in sent), "in increasing order"
    for owner, g in sent[:3]:
        scatter.sent(5, owner, g)
    task.check()
    skipped = scatter.settle(task)
    kept = {(task.trees[k].root, task.trees[k].first // 64 + c) for k, c in skipped}
    assert kept <= set(sent[:3]) and not scatter.wants(5)
    assert sum(tree.count for tree in task.trees) == 1000


def test_chunks_sent_over_broken_connections_are_sent_again():
    """The chunk may never have come: the owner's process has started again, and waits for it."""
    default, task = grouped(crew(2, blocking=False), h0=5, h4=9)
    old, new = object(), object()
    now: dict[str, object] = dict.fromkeys(NODES, old)

    def settled(now: dict[str, object]) -> set[str]:
        scatter: Scatter[bytes] = Scatter("h0")
        for owner, g in scatter.begin(5, default.blocks, default.chunk_values):
            scatter.sent(5, owner, g, old)
        return {task.trees[k].root for k, _ in scatter.settle(task, now)}

    there = settled(now)
    assert len(there) > 1
    gone = min(there)
    assert settled({**now, gone: new}) == there - {gone}


def first_chunk_of(owner: str, task: Task) -> int:
    return next(tree.first for tree in task.trees if tree.root == owner) // task.chunk_values


def test_a_task_adds_chunks_of_its_own_turn_only():
    _, task = grouped(crew(2, blocking=False), h0=5, h4=9)
    chunk = first_chunk_of("h4", task)
    scatter: Scatter[str] = Scatter("h4")
    for turn in (4, 5):
        scatter.came("h0", turn, chunk, f"turn {turn}", ())
    assert [values for *_, values in scatter.collect(task)] == ["turn 5"]
    for turn in (3, 5, 7):
        found = scatter.came("h0", turn, chunk, "late", [task])
        assert (found is not None) == (turn == 5), "it belongs to no other turn's task"


def test_early_chunks_are_not_kept_for_ever():
    _, task = grouped(crew(2, blocking=False), h0=5, h4=9)
    scatter: Scatter[bytes] = Scatter("h4")
    for turn in range(10 * OVER):
        scatter.came("h0", turn, first_chunk_of("h4", task), b"", ())
    kept = [turn for turn in range(10 * OVER) if scatter.collect(replace(task, turns=(turn, 9)))]
    assert len(kept) == TURNS


def test_only_crew_scatters_early():
    with pytest.raises(ValueError, match="needs the scheme CREW"):
        Crew(NODES, np.ones((6, 6)), 2, settings=CrewSettings(scheme="OPR", blocking=False))
