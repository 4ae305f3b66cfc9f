"""An MPI program of which nobody has changed a line runs under Open MPI's `mpirun`, and its collectives are added in
the network.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.planner.generators import parse_topology
from evaluation.mpi.network import MpiNetwork, compiled, missing

pytestmark = pytest.mark.timeout(400)
HERE = Path(__file__).resolve().parent
SECONDS = 240
HOSTS = 3
SMALLEST = {"INART_MPI_SMALLEST": "65536"}


@pytest.fixture(scope="module")
def network() -> Iterator[MpiNetwork]:
    if why := missing():
        pytest.skip(why)
    topology = parse_topology("dumbbell:left=2,right=1,bandwidth=100,aggregation=300,ingress=100")
    with MpiNetwork(topology, HOSTS) as made:
        yield made


@pytest.fixture(scope="module")
def program(network: MpiNetwork) -> str:
    return str(compiled(HERE / "mpi_checks.c", network.folder))


def through(said: str) -> int:
    """The number of collectives that went through the network, as rank 0 reports it."""
    found = re.search(r"inart: (\d+) collectives went through the network", said)
    return int(found[1]) if found else 0


def test_collectives_go_through_the_network_and_are_right(network: MpiNetwork, program: str) -> None:
    """Two rounds of sums on two communicators, an all-gather, a broadcast and a sum beside a message: 3 + 3 + 3."""
    done = network.run(network.command([program]), SECONDS, SMALLEST)
    assert (done.returncode, done.stdout) == (0, "all right\n"), done.stderr
    assert through(done.stderr) == 9, done.stderr


def test_when_the_job_is_removed_mpi_does_what_follows(network: MpiNetwork, program: str) -> None:
    remove = f"{sys.executable} -m inart job remove mpi"
    done = network.run(network.command([program, remove]), SECONDS, SMALLEST)
    assert "all right\n" in done.stdout, done.stderr
    assert "a collective has failed in the network" in done.stderr
    assert through(done.stderr) == 9, done.stderr


def test_without_an_agent_mpi_does_all_and_says_why(network: MpiNetwork, program: str) -> None:
    mpi = [sys.executable, "-m", "inart", "mpi", "--", program]
    done = network.run(network.plain(mpi), SECONDS, SMALLEST)
    assert (done.returncode, done.stdout) == (0, "all right\n"), done.stderr
    assert done.stderr.count("do not go through the network: no agent at") == HOSTS
    assert not through(done.stderr)
