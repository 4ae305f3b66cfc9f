"""Parameter servers that die or hang in the middle of an all-reduce: their chunks go to the others, and no sum is
lost.
"""

from __future__ import annotations

import signal
import time

import pytest

from controlplane.planner.generators import leaf_spine
from controlplane.service.core import trust
from controlplane.service.core.disabled import Why
from controlplane.service.core.parts import mended
from tests.emulation.rig import Rig, paper_testbed
from tests.emulation.test_lifetime import poll
from tests.support.examples import nightly
from topologies.zygote import HostFailure, Zygote

WORKERS = 6
RATE = 20.0
SIZE = 400_000


@pytest.mark.parametrize("how", ["killed", nightly("hangs")])
def test_parameter_server_that_is_lost_gives_its_part_to_the_others_and_gets_it_back(how, monkeypatch) -> None:
    monkeypatch.setattr(trust, "STEADY_SECONDS", 0.5)
    with Rig("softswitch", paper_testbed(RATE), "inart", answers_failures=True) as rig:
        rig.start_all()
        rig.allreduce(SIZE // 10).check()
        lost, other = rig.job.parameter_servers
        before = time.monotonic()
        rig.submit(SIZE)
        process = rig.roots[lost]
        process.signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        rig.collect().check()
        print(f"{lost} {how}: {time.monotonic() - before:.2f} s")
        rig.allreduce(SIZE // 10).check()
        assert rig.service.network.jobs.get().roster.configs.keys() == {*rig.job.workers, other}
        poll(lambda: any(f"that {lost} added up moved to {other}" in line for line in rig.log), "said", 60.0)
        assert not any("gave up" in line for line in rig.log), rig.log
        if how == "killed":
            rig.start_root(lost)
        else:
            process.signal(signal.SIGCONT)
        poll(lambda: lost in rig.service.roster.configs, "it is used again", 60.0)
        rig.allreduce(SIZE // 10).check()
        assert any(f"{lost} can be used again" in line for line in rig.log), rig.log
        print("\n".join(rig.log[-30:]))


@pytest.mark.timeout(400)
def test_parameter_server_that_came_back_while_other_things_failed_is_used_again(monkeypatch) -> None:
    """A spine is lost, a parameter server is killed and started again, and a worker is killed; then all are back."""
    monkeypatch.setattr(trust, "STEADY_SECONDS", 1.0)
    network = leaf_spine(2, 2, 3, 100.0, aggregation_mbps=None, ingress_mbps=None)
    with Rig("softswitch", network, "inart", workers=4, roots=2, answers_failures=True) as rig:
        rig.start_all()
        rig.allreduce(SIZE).check()
        (job,) = rig.service.network.jobs
        lost, other = rig.job.parameter_servers
        worker = rig.job.workers[1]
        rig.service.network.failover.lose({"s1": "switch s1 does not answer"}, Why.SILENT)
        rig.roots[lost].kill()
        poll(lambda: lost not in job.roster.configs, "the job goes on without it", 60.0)
        rig.start_root(lost)
        poll(lambda: lost in job.roster.waiting(), "it has joined again", 60.0)
        rig.workers.pop(worker).kill()
        poll(lambda: not job.roster.running, "the job waits for its worker", 60.0)
        rig.service.network.failover.take(mended, ("s1",), "it answers again")
        left = dict(rig.workers)
        rig.start_worker(worker)  # A worker begins with an all-reduce of one number, for which it needs the others.
        poll(lambda: job.roster.running, "all have joined", 60.0)
        for process in left.values():
            process.send({"size": 4})
        rig.workers[worker].receive(90.0)
        for process in left.values():
            process.receive(90.0)
        poll(lambda: job.roster.running and lost in job.roster.configs, "it is used again", 60.0)
        poll(lambda: len(job.migrator.versions) == 1, "nothing is left of what was before", 60.0)
        rig.roots[other].kill()
        poll(lambda: set(job.roster.configs) == {*rig.job.workers, lost}, "it carries the job alone", 60.0)
        print("\n".join(rig.log[-30:]))
        assert job.roster.running


def test_job_that_may_goes_on_without_a_worker() -> None:
    with Rig("softswitch", paper_testbed(RATE), "inart", workers=WORKERS, answers_failures=True, at_least=4) as rig:
        rig.start_all()
        rig.allreduce(SIZE // 10).check()
        rig.submit(SIZE)
        lost = rig.job.workers[3]
        rig.workers.pop(lost).kill()
        outcome = rig.collect()
        assert len(outcome.digests) == 1, "all have the same sum, with the lost worker's part or without it"
        assert len(outcome.workers) == 1
        assert outcome.workers <= {WORKERS, WORKERS - 1}
        left = [index for index in range(WORKERS) if index != 3]
        outcome = rig.allreduce(SIZE // 10, among=left)
        outcome.check()
        assert outcome.workers == {WORKERS - 1}
        poll(
            lambda: any(f"5 workers go on without {lost}" in line for line in rig.log), "said", 60.0
        )  # This runs when everything is over.
        print("\n".join(rig.log[-12:]))


@pytest.mark.timeout(600)
def test_ddp_goes_on_without_a_rank_where_the_job_may() -> None:
    """This has fallback=False; with fallback the ranks agree on each step over gloo, which lacks one rank for ever."""
    pytest.importorskip("torch", reason="torch is not installed")
    with Rig("softswitch", paper_testbed(100.0), "inart", workers=4, answers_failures=True, at_least=3) as rig:
        rig.start_roots()
        module = "tests.emulation.ddp_rank"
        common = {"MASTER_ADDR": rig.topology.address(rig.job.workers[0]), "MASTER_PORT": "29500", "WORLD_SIZE": "4",
                  "INART_CONTROLLER": rig.service.address}  # fmt: skip
        with Zygote(rig.emulation, ("torch._dynamo", module)) as zygote:
            trainers = []
            for rank, node in enumerate(rig.job.workers):
                own = {"RANK": str(rank), "GLOO_SOCKET_IFNAME": rig.emulation.interface(node)}
                trainers.append(zygote.spawn(node, f"{module}:train", {"dies": rank == 2, "variables": common | own}))
            lost = trainers.pop(2)
            assert len({trainer.receive(300.0) for trainer in trainers}) == 1, "the same model on all that are left"
            with pytest.raises(HostFailure, match="has ended"):
                lost.receive(60.0)
        said = f"3 workers go on without {rig.job.workers[2]}"
        poll(lambda: any(said in line for line in rig.log), "said", 60.0)
