"""Parameter servers that die or hang in the middle: their part goes to the others, and no sum is lost."""

from __future__ import annotations

import signal
import time

import pytest

from controlplane.runtime import failures
from tests.emulation.rig import Rig, paper_testbed
from tests.emulation.test_lifetime import poll

WORKERS = 6
RATE = 20.0
SIZE = 400_000


@pytest.mark.parametrize("how", ["killed", "hangs"])
def test_parameter_server_that_is_lost_gives_its_part_to_the_others_and_gets_it_back(how, monkeypatch) -> None:
    monkeypatch.setattr(failures, "STEADY_SECONDS", 0.5)
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
        assert any(f"that {lost} added up moved to {other}" in line for line in rig.log), rig.log
        assert not any("gave up" in line for line in rig.log), rig.log
        if how == "killed":
            rig.start_root(lost)
        else:
            process.signal(signal.SIGCONT)
        poll(lambda: lost in rig.service.roster.configs, "it is used again", 60.0)
        rig.allreduce(SIZE // 10).check()
        assert any(f"{lost} can be used again" in line for line in rig.log), rig.log
        print("\n".join(rig.log[-30:]))


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
        assert any(f"5 workers go on without {lost}" in line for line in rig.log), rig.log
        print("\n".join(rig.log[-12:]))
