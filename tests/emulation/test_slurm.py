"""Slurm's own daemons on an emulated network: `sbatch --comment inart` puts a job into the network and takes it off.

Debian has them (apt-get install slurmctld slurmd munge slurm-client). What the verb decides is in
tests/deploy/test_slurm.py, which needs no Slurm.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from controlplane.common.log_lines import calling
from controlplane.planner.generators import parse_topology
from topologies import Emulation
from topologies.deployment import Fabric, Service
from topologies.slurm import Slurm, missing

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"no Slurm here: apt-get install {missing()}"),
    pytest.mark.timeout(600),
]
SECONDS = 180.0
FOREVER = "srun inart allreduce --bytes 40K --repeat 1000000"


class Cluster:
    def __init__(self, service: Service, slurm: Slurm, emulation: Emulation) -> None:
        self.service, self.slurm, self.emulation = service, slurm, emulation

    def jobs(self) -> list[str]:
        return [job.name for job in self.service.network.jobs]

    def begin(self, *options: str) -> int:
        """Hand in a job that goes on for ever; returns when all its agents have joined."""
        number = self.slurm.submit(FOREVER, nodes=3, comment="inart", options=options)
        self.until(lambda: self.jobs() == [f"slurm-{number}"], number, "the job is in the network")
        roster = self.service.network.jobs.get(f"slurm-{number}").roster
        self.until(lambda: set(roster.members()) == set(roster.configs), number, "its agents have joined")
        return number

    def ends(self, number: int, state: str) -> None:
        """Wait until Slurm says so, and the job is gone from the network."""
        self.until(lambda: self.slurm.state(number) == state, number, f"Slurm says {state}")
        self.until(lambda: not self.jobs(), number, "the job is gone from the network")

    def until(self, condition, number: int, what: str) -> None:
        try:
            self.emulation.wait(condition, what, SECONDS)
        except Exception:
            print(self.slurm.output(number), self.slurm.job(number), self.slurm.logs(), sep="\n")
            raise


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    topology = parse_topology("leafspine:leaves=2,spines=2,servers=2,bandwidth=20")
    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(topology, "softswitch"))
        service = stack.enter_context(stack.enter_context(Fabric(emulation, calling(print))).control())
        yield Cluster(service, stack.enter_context(Slurm(emulation, service.address)), emulation)


def test_a_job_adds_up_on_the_nodes_that_slurm_has_given_it(cluster):
    slurm = cluster.slurm
    number = slurm.submit("srun inart allreduce --bytes 40K --repeat 2 --json", nodes=3, comment="inart:ps=workers")
    cluster.ends(number, "COMPLETED")
    said = slurm.output(number)
    assert f"inart: job slurm-{number} is in the network" in said
    results = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert len(results) == 3 and len({result["digest"] for result in results}) == 1
    assert "Mbit/s per worker" in slurm.job(number)["AdminComment"]


def test_a_job_is_taken_off_when_it_is_cancelled_fails_or_loses_a_node(cluster):
    slurm = cluster.slurm
    number = cluster.begin()
    slurm.command(["scancel", str(number)])
    cluster.ends(number, "CANCELLED")
    number = slurm.submit("exit 3", nodes=3, comment="inart")
    cluster.ends(number, "FAILED")
    assert f"job slurm-{number} is in the network" in slurm.output(number)
    number = cluster.begin("--no-requeue")
    node = cluster.service.network.jobs.get(f"slurm-{number}").plan.job.workers[-1]
    slurm.kill_node(node)
    cluster.ends(number, "NODE_FAIL")


def test_what_the_network_cannot_take_runs_without_it_or_waits(cluster):
    """As its user wants it; the reason is in the output, or with the job. And jobs that do not ask for the network."""
    slurm = cluster.slurm
    number = slurm.submit('echo "job: $INART_JOB."', nodes=2, comment="inart:ps=9")
    cluster.ends(number, "COMPLETED")
    said = slurm.output(number)
    assert "inart: not in the network, it runs over torch.distributed: the job needs 9 parameter servers" in said
    assert "job: ." in said
    number = slurm.submit("echo ran", nodes=2, comment="inart:ps=9,else=wait")
    cluster.until(lambda: _again(slurm.job(number)), number, "it is back in the queue")
    assert "ran" not in slurm.output(number)
    assert "waits for room in the network: the job needs 9" in slurm.job(number)["AdminComment"]
    slurm.command(["scancel", str(number)])
    number = slurm.submit('echo "job: $INART_JOB."', nodes=2)
    cluster.ends(number, "COMPLETED")
    assert slurm.output(number) == "job: .\n"


def _again(job) -> bool:
    return (job["JobState"], job["Restarts"]) == ("PENDING", "1")
