"""Workers answer to switches that mark packets because a queue is too long (ECN). What runs are the agents' own engines
and a network that marks, in virtual time: each run is the same, on any machine."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.recovery.networks import racks
from evaluation.recovery.virtual import VirtualNetwork
from p4src.protocol import frame_bytes

VALUES = 256
MARK = 8
"""Packets that wait for a link, above which others are marked."""
TOPOLOGY, PLAN = racks(8, 1, 20.0)
WORKER = PLAN.job.workers[0]
(ROOT,) = PLAN.job.parameter_servers
LEAF = TOPOLOGY.access_switch(WORKER)
ON_THE_WAY = {
    "a worker's contributions": (WORKER, LEAF),
    "sums": (TOPOLOGY.access_switch(ROOT), ROOT),
    "results": (ROOT, TOPOLOGY.access_switch(ROOT)),
    "results to one worker": (LEAF, WORKER),
}
"""Links of which each carries all chunks; the planned rate is half of what they do."""
SECONDS = 30.0


class Job:
    """An all-reduce of `SECONDS` at the planned rate in a network."""

    def __init__(self, network: VirtualNetwork) -> None:
        self.network = network
        self.gradient = np.ones(int(PLAN.rate_mbps * 1e6 / 32 * SECONDS), np.float32)
        self.sums = np.zeros_like(self.gradient)
        for worker in PLAN.job.workers:
            network.submit(worker, self.gradient, self.sums)

    def rate(self, seconds: float) -> float:
        """Let so much time go by, and return what a worker has sent in it, each chunk once, in Mbit/s."""
        before = self.network.root_stats().completed
        self.network.run(seconds)
        return (self.network.root_stats().completed - before) * frame_bytes(VALUES) * 8e-6 / seconds

    def finish(self) -> None:
        """Every sum is right in the end."""
        until = self.network.now + 3 * SECONDS
        while not self.network.worker_stats().operations_done:
            assert self.network.now < until and not self.network.worker_stats().operations_failed
            self.network.run(1.0)
        assert (self.sums == len(PLAN.job.workers)).all()


def waits(network: VirtualNetwork, way: str, mbps: float) -> float:
    """Packets that have waited for a link of this rate at most, since it has been so narrow."""
    return network.longest_wait(*ON_THE_WAY[way]) * mbps * 1e6 / 8 / frame_bytes(VALUES)


@pytest.mark.parametrize("way", ON_THE_WAY)
def test_a_job_answers_to_marks_and_grows_again(way: str) -> None:
    """A link carries a quarter of what the job would send, for a while. Marks keep its queue short, and the link stays
    used; when there is room again the job takes it."""
    with VirtualNetwork(TOPOLOGY, PLAN, values=VALUES) as network:
        job, link = Job(network), ON_THE_WAY[way]
        planned = job.rate(2.0)
        narrow = planned / 4
        assert network.marked() == network.worker_stats().marked == 0
        network.narrow(*link, narrow, mark_packets=MARK)
        job.rate(1.0)
        network.narrow(*link, narrow, mark_packets=MARK)  # waits are counted from here on
        before, marked = network.worker_stats(), network.marked()
        assert 0.95 * narrow < job.rate(6.0) < 1.01 * narrow
        after = network.worker_stats()
        assert MARK <= waits(network, way, narrow) < 3 * MARK
        told = 1 if way == "results to one worker" else len(PLAN.job.workers)
        assert (after.marked - before.marked) / (network.marked() - marked) == pytest.approx(told, rel=0.1)
        assert network.dropped() == 0
        network.narrow(*link, mark_packets=MARK)
        job.rate(1.0)
        assert job.rate(2.0) > 0.98 * planned
        job.finish()


def test_without_marks_a_queue_has_all_that_the_plan_lets_be_under_way() -> None:
    with VirtualNetwork(TOPOLOGY, PLAN, values=VALUES) as network:
        job = Job(network)
        narrow = job.rate(2.0) / 4
        network.narrow(*ON_THE_WAY["sums"], narrow, mark_packets=0)
        job.rate(6.0)
        assert waits(network, "sums", narrow) > 5 * MARK
        assert network.marked() == network.worker_stats().marked == 0


def test_marks_of_the_jobs_own_bursts_cost_it_little() -> None:
    """A link that carries what is planned, and marks what finds a single packet: nobody else has to be given way to."""
    with VirtualNetwork(TOPOLOGY, PLAN, values=VALUES) as network:
        job = Job(network)
        planned = job.rate(2.0)
        network.narrow(*ON_THE_WAY["sums"], 1.1 * planned, mark_packets=1)
        assert job.rate(6.0) > 0.9 * planned
        assert network.marked() > 0
