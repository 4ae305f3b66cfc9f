"""After a round that is given up in its middle, the trainer's values are intact and the next rounds' routes are
free.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from controlplane.planner.plan.task import Edge, SumTree, Task
from controlplane.planner.strategies.wan.policy import Rounds
from overlay import OverlayError
from overlay.core.path_selector import PathSelector
from tests.overlay.test_agents import SECONDS, running, until

NODES = ("a", "b", "c")
VALUES, CHUNK = 200_000, 100


def tree(rate_mbps: float = 0.0) -> SumTree:
    up, down = tuple(Edge(n, "a") for n in NODES[1:]), tuple(Edge("a", n) for n in NODES[1:])
    return SumTree("a", 0, VALUES, up, down, NODES, NODES, rate_mbps=rate_mbps)


class Slow(Rounds):
    """Rounds that take seconds, so that one can be ended in the middle. They have detours, as in NetStorm."""

    def task(self, number: int, values: int, now: float) -> Task:
        ways = (Edge("b", "a", ("c",)), Edge("c", "a", ("b",)), Edge("a", "b", ("c",)), Edge("a", "c", ("b",)))
        return Task(number, values, (tree(self.rate_mbps),), round=number, chunk_values=CHUNK, detours=ways)

    rate_mbps = 0.5


class Kept(Slow):
    def task(self, number, values, now):
        return replace(super().task(number, values, now), keep=True)

    rate_mbps = 0.0


def half_done(agents, tensors) -> None:
    """Some of the sums have replaced the input, but not all."""
    until(lambda: all((tensors[n][:CHUNK] == 2.0).all() for n in agents))
    assert all((tensors[n][-CHUNK:] != 2.0).any() for n in ("a", "c")), "the round was over before it could be ended"


def begun(agents):
    tensors = {node: np.full(VALUES, float(k + 1), np.float32) for k, node in enumerate(NODES)}
    return tensors, {node: agent.synchronise_async(tensors[node]) for node, agent in agents.items()}


@pytest.mark.parametrize("dies", ["a", "c"], ids=["the root", "a leaf"])
def test_a_failed_round_restores_the_submitted_values(dies):
    with running(Slow(NODES)) as (_, agents):
        tensors, futures = begun(agents)
        half_done(agents, tensors)
        agents[dies].close()
        for k, node in enumerate(NODES):
            with pytest.raises(OverlayError):
                futures[node].result(SECONDS)
            np.testing.assert_array_equal(tensors[node], np.float32(k + 1))


def test_a_complete_result_stays_when_the_others_round_is_given_up():
    """Its trainer continues to compute on the result, while others submit their values again."""
    with running(Kept(NODES)) as (coordinator, agents):
        tensors, futures = begun(agents)
        until(lambda: all(agent.tasks.running for agent in agents.values()))
        with held(coordinator):  # The coordinator does not hear that they have all of the result.
            for node, future in futures.items():
                future.result(SECONDS)
                tensors[node][:] = 7.0  # The trainer computes on.
            (number,) = agents["b"].tasks.running
            agents["b"].loop.call_soon_threadsafe(agents["b"].tasks.abort, number, "c is lost", True)
            until(lambda: not agents["b"].tasks.running)
        np.testing.assert_array_equal(tensors["b"], np.float32(7.0))


@contextmanager
def held(agent):
    """Its loop is blocked, so that it reads nothing: messages from others wait."""
    go = threading.Event()
    agent.loop.call_soon_threadsafe(go.wait, SECONDS)
    try:
        yield
    finally:
        go.set()


MANY = 6_000_000  # This is more than the kernel holds between two agents.


class Detoured(Rounds):
    def task(self, number: int, values: int, now: float) -> Task:
        up, down = tuple(Edge(n, "a") for n in NODES[1:]), tuple(Edge("a", n) for n in NODES[1:])
        part, around = SumTree("a", 0, values, up, down, NODES, NODES), Edge("b", "a", ("c",))
        return Task(number, values, (part,), round=number, chunk_values=4096, window=0, detours=(around,))


@contextmanager
def stuck(coordinator, agents):
    """Return a round of which chunks wait at `b` for their routes, since `a` reads nothing."""
    tensors = {node: np.ones(MANY, np.float32) for node in NODES}
    futures = {node: agents[node].synchronise_async(tensors[node]) for node in ("a", "b")}
    until(lambda: coordinator.policy.ready["a"] and coordinator.policy.ready["b"])
    with held(agents["a"]):
        futures["c"] = agents["c"].synchronise_async(tensors["c"])
        until(lambda: len(agents["b"].tasks.paths.waiting.get("a", ())) > 100)
        yield futures


def works(agents) -> None:
    """The next round has its sum everywhere, and no chunk holds a route after it."""
    tensors = {node: np.full(50_000, float(k + 1), np.float32) for k, node in enumerate(NODES)}
    for future in [agents[node].synchronise_async(tensors[node]) for node in NODES]:
        future.result(SECONDS)
    for node in NODES:
        np.testing.assert_array_equal(tensors[node], np.float32(2.0))
        until(lambda node=node: not +agents[node].tasks.paths.chunks_on)


def test_routes_are_free_again_after_a_round_was_given_up():
    """Chunks that wait for a route when their round ends would hold it for ever, and all later rounds would be
    blocked.
    """
    with running(Detoured(NODES)) as (coordinator, agents):
        with stuck(coordinator, agents) as futures:
            number = max(agents["b"].tasks.running)
            agents["b"].loop.call_soon_threadsafe(partial(agents["b"].tasks.discard, number, "the test ends it"))
            with pytest.raises(OverlayError, match="the test ends it"):
                futures["b"].result(SECONDS)
        for future in futures.values():
            with pytest.raises(OverlayError, match="the test ends it"):
                future.result(SECONDS)
        works(agents)


def test_routes_are_free_again_after_a_connection_broke():
    """Its queue ends with it: the chunks that waited there are discarded, and their route is free nevertheless."""
    with running(Detoured(NODES)) as (coordinator, agents):
        with stuck(coordinator, agents) as futures:
            peer = agents["b"].neighbours.peers["a"]
            agents["b"].loop.call_soon_threadsafe(peer.broken, OSError("the test ends it"))
            with pytest.raises(OverlayError, match="b and a cannot reach each other"):
                futures["b"].result(SECONDS)
        for future in futures.values():
            with pytest.raises(OverlayError):
                future.result(SECONDS)
        works(agents)


def test_thousands_of_chunks_may_be_through_at_once():
    """A chunk of a round that is given up frees the route of the next chunk."""
    paths, task = PathSelector("b"), Task(1, VALUES, (tree(),), detours=(Edge("b", "a", ("c",)),), busy_bound=1)
    under_way = []
    over = False

    def go(way, through) -> None:
        through() if over else under_way.append(through)

    for _ in range(5000):
        paths.send(task, Edge("b", "a"), go)
    assert len(under_way) == 2, "the direct way and one detour"
    over = True
    for through in under_way:
        through()
    assert not paths.waiting["a"] and not +paths.chunks_on
