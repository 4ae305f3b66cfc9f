"""After all packets were lost for a while, switches aggregate the lost packets again; they do not come singly from each
worker.
"""

from __future__ import annotations

from collections.abc import Callable

from evaluation.hosts.star import TreeShape
from ps_server.server import Server
from tests.hosts.conftest import WORKERS
from tests.hosts.rig import Rig, check, finish, tensors
from tests.hosts.test_allreduce import VALUES, starts
from tests.support.star_switch import Faults
from tests.support.waiting import wait_until
from worker_agent.engine import Engine

ELEMENTS, SLOTS = 1_500_000, 64
"""A second at the rate of the tree: packets are lost in the middle, also where this process waits for a processor."""


def test_a_window_that_was_lost_is_added_up_again(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig([TreeShape(0, 1.0, True)], rate_mbps=60, slots=SLOTS)
    before = tensors(11, WORKERS, ELEMENTS)
    after = [tensor.copy() for tensor in before]
    works = rig.submit(after)
    server = rig.servers[0]
    wait_until(lambda: server.stats().trees[0].completed > 4 * SLOTS, "its window is open")
    # These are the packets to the server: sums are lost, not results.
    rig.switch.faults(Faults(loss=1.0), ports=[WORKERS + 1])
    wait_until(lambda: any(engine.stats().trees[0].resent_timeout for engine in rig.engines), "their windows are full")
    assert server.stats().trees[0].questions == 0, "nobody has been heard: nothing can have been asked for"
    lost = [engine.stats().trees[0] for engine in rig.engines]
    under_way = [tree.chunks_sent - tree.answers for tree in lost]
    assert min(under_way) > SLOTS // 2, "a window of each worker was lost"
    rig.faults()
    finish(works)
    check(before, after, starts(rig, ELEMENTS), VALUES)
    assert server.stats().trees[0].questions > 0
    ends = [engine.stats().trees[0] for engine in rig.engines]
    for old, new, chunks in zip(lost, ends, under_way, strict=True):
        by_itself = new.resent_timeout + new.resent_gap - old.resent_timeout - old.resent_gap
        assert new.resent_recovery >= chunks - by_itself > 0, "what was lost came again because the root asked for it"
    verdicts = rig.switch.verdicts()
    assert verdicts["stale"] + verdicts["flushed"] < SLOTS, "a packet a worker and chunk would be four times as many"


def test_waiting_operations_are_read_without_full_statistics(make_rig: Callable[..., Rig]) -> None:
    """Every agent reads its waiting operations several times a second; this agrees with its statistics and costs
    less.
    """
    rig = make_rig()
    agents: list[Engine | Server] = [*rig.engines, *rig.servers]
    assert all(not agent.open_chunks() for agent in agents)
    before = tensors(11, WORKERS, 4_000)
    works = [engine.allreduce_async(tensor) for engine, tensor in zip(rig.engines[1:], before[1:], strict=True)]
    waiting = agents[1:]

    def all_wait() -> bool:
        return all(agent.open_chunks() == {tree.tree: 0 for tree in agent.stats().trees} for agent in waiting)

    wait_until(all_wait, "each tree waits for the first worker")
    finish([*works, rig.engines[0].allreduce_async(before[0])])
    assert all(not agent.open_chunks() for agent in agents)
