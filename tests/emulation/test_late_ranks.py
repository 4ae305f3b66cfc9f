"""A rank that is late (a slow data loader, a checkpoint) makes the others wait, and has no other effect."""

from __future__ import annotations

import time

import pytest

from controlplane.planner.generators import parse_topology
from tests.emulation.functions import train
from tests.emulation.rig import Rig
from tests.emulation.test_lifetime import poll

pytestmark = pytest.mark.usefixtures("patient")
NETWORK = "leafspine:leaves=2,spines=2,servers=3,bandwidth=300,uplink=300"
LATE_SECONDS = 15.0
TIMES = 1
SIZE = 400_000


@pytest.mark.timeout(400)
def test_late_rank_changes_no_plan() -> None:
    """This holds also after a parameter server was killed, whose packets were lost on links that are idle from then
    on.
    """
    with Rig("softswitch", parse_topology(NETWORK), "inart", workers=4, roots=2, answers_failures=True) as rig:
        rig.start_roots()
        ranks = [
            rig.zygote.spawn(
                node,
                f"{train.__module__}:train",
                {"controller": rig.service.address, "worker": number, "size": SIZE},
            )
            for number, node in enumerate(rig.job.workers)
        ]
        for rank in ranks:
            rank.receive(90.0)

        def step(steps: int, late: float = 0.0) -> float:
            for number, rank in enumerate(ranks):
                rank.send({"steps": steps, "pause": late if number == 1 else 0.0})
            began = time.monotonic()
            answers = [rank.receive(120.0) for rank in ranks]
            assert all(answer == answers[0] for answer in answers), "workers have different results"
            return time.monotonic() - began

        step(5)
        for rank in ranks:
            rank.send({"steps": 10})
        rig.roots[rig.job.parameter_servers[1]].kill()
        for rank in ranks:
            rank.receive(120.0)
        poll(lambda: any("added up moved to" in line for line in rig.log), "the job goes on without it", 60.0)
        (job,) = rig.service.network.jobs
        usual, before = step(8), job.migrator.plan
        seen = len(rig.log)
        for _ in range(TIMES):
            step(8, LATE_SECONDS)
        after = step(8)
        said = rig.log[seen:]
        print(f"8 steps took {usual:.2f} s before a rank was late, {after:.2f} s after; said meanwhile: {said}")
        assert job.migrator.plan == before, said
        assert not said
        for rank in ranks:
            rank.send(None)
