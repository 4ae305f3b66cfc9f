"""The star of namespaces that all tests here share (an agent opens its own sockets on it)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import pytest

from evaluation.hosts.network import StarNetwork
from evaluation.hosts.star import TreeShape, star
from tests.hosts.rig import DEADLINE, Rig
from tests.support.star_switch import Switch
from worker_agent.io_options import IoOptions

WORKERS, SERVERS = 4, 2


@pytest.fixture(scope="session")
def network() -> Iterator[StarNetwork]:
    if os.geteuid():
        pytest.skip("needs root: makes network namespaces")
    job = star(WORKERS, SERVERS)
    agents = job.workers + job.servers
    with StarNetwork("inart-t", [agent.node for agent in agents], [agent.address for agent in agents]) as made:
        yield made


MIXED = (TreeShape(0, 0.5, True), TreeShape(1, 0.3, False), TreeShape(1, 0.2, True))


@pytest.fixture(scope="session")
def switch(network: StarNetwork) -> Iterator[Switch]:
    """One star for all tests: each rig finds it as if new."""
    with Switch(network.middle, network.ports(), 64) as made:
        yield made


@pytest.fixture
def make_rig(network: StarNetwork, switch: Switch) -> Iterator[Callable[..., Rig]]:
    """Return a rig of 4 workers and 2 servers with three trees (two aggregated, one direct); see `star` for the
    options.
    """
    rigs: list[Rig] = []

    def make(
        trees: Sequence[TreeShape] = MIXED,
        *,
        values: int = 64,
        slots: int = 64,
        rate_mbps: float = 0.0,
        workers: int = WORKERS,
        timeout: float = DEADLINE,
        without: Sequence[str] = (),
        io: IoOptions | None = None,
        gathers: bool = False,
        beside: bool = False,
        lanes: int = 1,
        anybody: bool = False,
    ) -> Rig:
        hosts = list(network.hosts)
        sizes = {"values_per_packet": values, "slots": slots}
        job = star(workers, SERVERS, trees, **sizes, rate_mbps=rate_mbps, hosts=hosts, gathers=gathers)
        job = (job.beside() if beside else job).in_lanes(lanes)
        rigs.append(Rig(network, switch, job, timeout=timeout, without=without, io=io, anybody=anybody))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()
