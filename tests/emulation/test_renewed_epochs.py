"""The sequence numbers of an epoch come to an end: the job gets another epoch, and its trainers notice nothing."""

from __future__ import annotations

import pytest

from controlplane.common.agentconfig import NUMBERS_USED
from tests.emulation import ddp_rank
from tests.emulation.functions import train
from tests.emulation.rig import Rig, paper_testbed
from tests.support.waiting import wait_until
from topologies.zygote import HostProcess

pytestmark = pytest.mark.usefixtures("patient")
RENEWALS = 2
SECONDS = 120.0
LAST_NUMBER = 20_000
NEARLY_ALL = 0.8
"""The fraction of an epoch's numbers after which the test asks for no more operations of it."""


def used(rig: Rig) -> float:
    return max(
        (member.statistics.get(NUMBERS_USED, 0.0) for member in rig.service.roster.members().values()), default=0
    )


def renewals(rig: Rig) -> int:
    return sum("of its sequence numbers were used; epoch" in line for line in rig.log)


def through_renewals(rig: Rig, processes: list[HostProcess], burst: object) -> list[object]:
    """Ask all processes for bursts of operations until the job has begun another epoch several times; return the last
    answer of one of them.
    """
    answers: list[list[object]] = [[]]
    while (before := renewals(rig)) < RENEWALS:
        for process in processes:
            process.send(burst)
        answers = [process.receive(SECONDS) for process in processes]
        assert all(answer == answers[0] for answer in answers), "workers have different results"
        if used(rig) > NEARLY_ALL:
            wait_until(lambda: renewals(rig) > before, "another epoch", SECONDS)
    assert not any("gave up" in line or "stopped" in line for line in rig.log), rig.log
    (job,) = rig.service.network.jobs
    assert job.migrator.plan.rate_mbps == job.migrator.home.rate_mbps == rig.plan.rate_mbps
    return answers[0]


def start_workers(rig: Rig) -> list[HostProcess]:
    rig.start_roots()
    workers = [
        rig.zygote.spawn(
            node,
            f"{train.__module__}:train",
            {"controller": rig.service.address, "worker": number, "size": 400_000, "last_number": LAST_NUMBER},
        )
        for number, node in enumerate(rig.job.workers)
    ]
    for worker in workers:
        worker.receive(SECONDS)
    return workers


@pytest.mark.timeout(400)
def test_agents_sum_through_several_epochs() -> None:
    with Rig("softswitch", paper_testbed(100.0), "inart", workers=3, roots=1, answers_failures=True) as rig:
        workers = start_workers(rig)
        through_renewals(rig, workers, {"steps": 2})
        for worker in workers:
            worker.send(None)


@pytest.mark.timeout(400)
def test_an_epoch_that_nobody_renews_ends_with_its_numbers() -> None:
    """No operation has a wrong result then; all-reduces that wait for their results go on in the next epoch."""
    with Rig("softswitch", paper_testbed(100.0), "inart", workers=3, roots=1) as rig:
        workers = start_workers(rig)
        first = rig.service.roster.epoch
        for worker in workers:
            worker.send({"steps": 100, "waits": True})
        answers = [worker.receive(SECONDS) for worker in workers]
        assert all(answer == answers[0] for answer in answers), "workers have different results"
        assert rig.service.roster.epoch > first
        assert any("has used up the sequence numbers" in line for line in rig.log), rig.log
        for worker in workers:
            worker.send(None)


@pytest.mark.timeout(400)
def test_training_with_the_hook_goes_through_several_epochs() -> None:
    with Rig("softswitch", paper_testbed(100.0), "inart", workers=2, roots=1, answers_failures=True) as rig:
        rig.start_roots()
        nodes = rig.job.workers
        common = {"MASTER_ADDR": rig.topology.address(nodes[0]), "MASTER_PORT": "29500", "WORLD_SIZE": str(len(nodes))}
        ranks = []
        for rank, node in enumerate(nodes):
            own = {"RANK": str(rank), "GLOO_SOCKET_IFNAME": rig.emulation.interface(node), "INART_NODE": node}
            variables = {**common, **own, "INART_CONTROLLER": rig.service.address}
            arguments = {"variables": variables, "last_number": LAST_NUMBER}
            ranks.append(rig.zygote.spawn(node, f"{ddp_rank.__name__}:train_on_demand", arguments))
        _, inside, outside = through_renewals(rig, ranks, 3)
        assert inside and not outside, "no step has left the network"
        for rank in ranks:
            rank.send(None)
