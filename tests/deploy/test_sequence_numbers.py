"""A job whose workers have used half of an epoch's sequence numbers gets another epoch."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.common.agentconfig import NUMBERS_USED
from controlplane.common.log_lines import calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.job import Job
from controlplane.service.next_plan import MigrationError
from controlplane.service.trees import LOOK_SECONDS, RENEW_AT, TreeWatch
from tests.support.waiting import wait_until

JOB = Job("one", ("h1", "h2", "h4", "h5"), ("h3", "h6"), 1_000_000)


class Watched:
    """A running job in memory, whose first worker reports what it has used, by a clock that only the test advances."""

    def __init__(self, rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig, self.job = rig, rig.add(JOB)
        rig.join(self.job)
        self.now = 1000.0
        monkeypatch.setattr("controlplane.service.trees.time", SimpleNamespace(monotonic=lambda: self.now))
        self.renewals = 0
        self.said: list[str] = []
        self.go_on = threading.Event()
        self.problem = ""
        monkeypatch.setattr(self.job.migrator, "renew", self.renew)
        self.watch = TreeWatch(rig.network, calling(self.said.append))

    def renew(self) -> Any:
        self.renewals += 1
        self.go_on.wait(30)
        if self.problem:
            raise MigrationError(self.problem)
        return SimpleNamespace(epoch=77, first_operation=5)

    def look(self, used: float) -> None:
        self.now += LOOK_SECONDS
        epoch = self.job.roster.epoch
        self.job.roster.report(pb.ReportRequest(node="h1", epoch=epoch, statistics={NUMBERS_USED: used}))
        self.watch.look()


@pytest.fixture
def watched(rig: Any, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(rig, monkeypatch)


def test_a_job_is_renewed_once_at_half_of_the_numbers(watched: Watched) -> None:
    watched.look(RENEW_AT / 2)
    assert watched.renewals == 0
    watched.look(RENEW_AT)
    wait_until(lambda: watched.renewals == 1, "it is renewed")
    watched.look(0.7)
    assert watched.renewals == 1, "one renewal at a time"
    watched.go_on.set()
    wait_until(lambda: any("epoch 77 begins at operation 5" in line for line in watched.said), "the log says so")


def test_a_renewal_that_is_impossible_is_tried_again_and_said_once(watched: Watched) -> None:
    watched.go_on.set()
    watched.problem = "no room"
    for count in range(1, 4):
        watched.look(0.6)
        wait_until(lambda count=count: watched.renewals == count, "it is tried")  # type: ignore[misc]
        wait_until(lambda: not any(thread.is_alive() for thread in watched.watch._renewing.values()), "it has ended")
    assert sum("could not be given another epoch: no room" in line for line in watched.said) == 1
