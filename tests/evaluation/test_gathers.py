"""All-gathers, also beside reduce-scatters, take hardly longer than their bytes do, and bring the right bytes whatever
is lost. What runs are the agents' own engines, in virtual time: each run is the same, on any machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from controlplane.planner.job import Job
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology
from evaluation.recovery.virtual import VirtualNetwork
from p4src.protocol import data_values, frame_bytes
from tests.support.examples import examples
from worker_agent.collectives import GATHER, SCATTER_SUM

SWITCH, VALUES, MBPS = "switch", 256, 200.0
CHUNK_BYTES = 4 * data_values(VALUES)
PACKET_SECONDS = 8e-6 * frame_bytes(VALUES) / MBPS
MOST = 1.09
"""Times the bound: agents send at 0.97 of the planned rate, one in 31 chunks is everybody's, and one round trip passes
before the data."""


@contextmanager
def job_that_gathers(workers: int, servers: int, *, loss: float = 0.0, seed: int = 1) -> Iterator[VirtualNetwork]:
    """One switch, so many workers and parameter servers (0: the workers are) on links of MBPS, and a plan for
    gathers."""
    names = [f"h{number}" for number in range(workers + servers)]
    nodes = [{"id": SWITCH, "kind": "switch"}]
    nodes += [{"id": name, "kind": "server", "ip": f"10.9.0.{number}"} for number, name in enumerate(names, 1)]
    link = {"bandwidth_mbps": MBPS, "delay_ms": 0.05}
    edges = [{"source": SWITCH, "target": name, **link, "ports": {SWITCH: n}} for n, name in enumerate(names, 1)]
    topology = Topology.load({"nodes": nodes, "edges": edges})
    job = Job("gathers", tuple(names[:workers]), tuple(names[workers:] or names), model_bytes=10**7, gathers=True)
    plan = get_strategy("inart")(topology, job, seed=0)
    with VirtualNetwork(topology, plan, values=VALUES, seed=seed) as network:
        network.faults(loss)
        yield network


class Gathered:
    """A gather of random bytes, begun on all workers. chunks: of each worker's part."""

    def __init__(self, network: VirtualNetwork, nbytes: int, seed: int) -> None:
        workers = network.plan.job.workers
        self.wanted = np.random.default_rng(seed).integers(0, 256, (len(workers), nbytes), dtype=np.uint8)
        self.chunks = -(-nbytes // CHUNK_BYTES)
        self.found = []
        for number, name in enumerate(workers):
            array = np.zeros_like(self.wanted)
            array[number] = self.wanted[number]
            self.found.append(array)
            network.submit(name, array.reshape(-1), array.reshape(-1), GATHER, "bytes")

    def check(self) -> None:
        for array in self.found:
            np.testing.assert_array_equal(array, self.wanted)


class Scattered:
    """A reduce-scatter of whole numbers, begun on all workers. chunks: of each worker's part."""

    def __init__(self, network: VirtualNetwork, values: int) -> None:
        workers = network.plan.job.workers
        self.chunks = -(-values // data_values(VALUES))
        base = np.arange(len(workers) * values, dtype=np.float32).reshape(len(workers), values) % 100
        self.wanted = base * sum(range(1, len(workers) + 1))
        self.found = []
        for number, name in enumerate(workers, 1):
            array = base * np.float32(number)
            self.found.append(array)
            network.submit(name, array.reshape(-1), array.reshape(-1), SCATTER_SUM)

    def check(self) -> None:
        for number, array in enumerate(self.found):
            np.testing.assert_allclose(array[number], self.wanted[number], atol=0.01)


def seconds_of(network: VirtualNetwork, operations: int, most: float, step: float = 0.0005) -> float:
    """Let time pass until every worker has done so many operations; return how much."""
    began = network.now
    while network.worker_stats().operations_done < operations:
        assert network.now < began + most, f"not done after {most} s: {network.worker_stats()}"
        network.run(step)
    return network.now - began


@pytest.mark.parametrize(("workers", "servers"), [(4, 2), (8, 2), (4, 0)])
def test_gathers_take_hardly_longer_than_what_each_worker_receives(workers: int, servers: int) -> None:
    """Whoever is last to send gets no more than the others, so it does not fall back further and further. (It got its
    own chunks back: whoever was behind by some of them then received W / (W - 1) times what its link carries.)"""
    count = 3
    with job_that_gathers(workers, servers) as network:
        gathers = [Gathered(network, 2_000_000 // workers, seed) for seed in range(count)]
        others = sum(one.chunks for one in gathers) * (workers - 1)
        assert seconds_of(network, count, 2.0) < MOST * PACKET_SECONDS * others
        for one in gathers:
            one.check()
        for name in network.plan.job.workers:
            most = 1.02 if servers else 1.03  # one in 31 chunks is everybody's, or one in 15 of trees with fewer slots
            assert network.carried(SWITCH, name) < most * others
        assert network.worker_stats().resent_timeout == 0


def test_a_reduce_scatter_beside_a_gather_takes_hardly_longer_than_what_each_worker_sends() -> None:
    workers, part = 4, 400 * CHUNK_BYTES
    with job_that_gathers(workers, 2) as network:
        both = Scattered(network, part // 4), Gathered(network, part, 1)
        sent = both[0].chunks * workers + both[1].chunks
        assert seconds_of(network, 2, 2.0) < 1.12 * PACKET_SECONDS * sent, "exponents, and a round trip for them, too"
        for one in both:
            one.check()


@dataclass(frozen=True)
class Run:
    """What is done, and what goes wrong. stops: agents that stand still for a while, in turn."""

    workers: int
    servers: int
    nbytes: tuple[int, ...]
    scattered: int = 0
    loss: float = 0.0
    stops: tuple[int, ...] = ()
    seed: int = 1


runs = st.builds(
    Run,
    workers=st.integers(2, 5),
    servers=st.integers(0, 3),
    nbytes=st.lists(st.integers(1, 400_000), min_size=1, max_size=3).map(tuple),
    scattered=st.sampled_from([0, 5_000, 50_000]),
    loss=st.sampled_from([0.0, 0.01, 0.1]),
    stops=st.lists(st.integers(0, 7), max_size=2).map(tuple),
    seed=st.integers(1, 1000),
)


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(runs)
@example(Run(4, 2, (400_000, 100_000), 50_000, 0.1, (1, 4)))
@example(Run(3, 2, (300_000,), stops=(0, 1)))
@example(Run(4, 0, (400_000, 100_000), 50_000, 0.01, (1, 3)))
def test_gathers_bring_the_right_bytes_whatever_is_lost(run: Run) -> None:
    with job_that_gathers(run.workers, run.servers, loss=run.loss, seed=run.seed) as network:
        begun: list[Gathered | Scattered] = [Gathered(network, nbytes, run.seed) for nbytes in run.nbytes]
        if run.scattered:
            begun.append(Scattered(network, run.scattered))
        agents = network.plan.job.workers + network.plan.job.parameter_servers
        for number in run.stops:
            network.run(0.005)
            network.stop([agents[number % len(agents)]], 0.2)
        seconds_of(network, len(begun), 300.0, step=0.05)
        for one in begun:
            one.check()
