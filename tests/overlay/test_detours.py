"""Detours on real sockets: a detour holds as many chunks as its length says, until they have come to its end."""

from __future__ import annotations

import asyncio

from controlplane.planner.plan.task import Edge, SumTree, Task
from controlplane.planner.strategies.wan.policy import Rounds
from overlay.core.message import HEADER_BYTES
from tests.overlay.test_agents import SECONDS, running
from tests.overlay.test_given_up import NODES, stuck

CHUNK_BYTES = HEADER_BYTES + 4 * 4096


class Behind(Rounds):
    """`c` sends to `b`, and `b` to the root `a`, directly and over `c`, which sends nothing of its own to `a`."""

    def task(self, number: int, values: int, now: float) -> Task:
        up, down = (Edge("b", "a"), Edge("c", "b")), (Edge("a", "b"), Edge("b", "c"))
        part = SumTree("a", 0, values, up, down, NODES, NODES)
        detours = (Edge("b", "a", ("c",)),)
        return Task(number, values, (part,), round=number, chunk_values=4096, window=0, detours=detours)


def test_a_detour_takes_no_chunk_before_the_last_one_is_at_its_end():
    """Section VI-A of the NetStorm paper: the queue of an auxiliary path is that of the whole path. While `a` reads
    nothing, chunks that `c` has taken are not there yet."""
    with running(Behind(NODES)) as (coordinator, agents):
        with stuck(coordinator, agents) as futures:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), agents["b"].loop).result(SECONDS)  # it has sent
            assert agents["b"].neighbours.bytes_sent()["c"] == CHUNK_BYTES
        for future in futures.values():
            future.result(SECONDS)
        assert agents["c"].neighbours.bytes_sent()["a"] > CHUNK_BYTES, "later chunks take it, too"
        assert not +agents["b"].tasks.paths.chunks_on
