"""Operations of a job under chaos end when all workers have the result of one epoch, in whatever order they say so."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any, cast

import pytest

from controlplane.planner.job import Job
from evaluation.chaos.findings import Findings
from evaluation.chaos.harness import Place
from evaluation.chaos.jobs import JobRun
from tests.support.waiting import wait_until
from topologies.zygote import HostFailure

SECONDS = 20.0


class Process:
    """A worker's process, whose answers the test gives."""

    def __init__(self) -> None:
        self.orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[dict[str, Any] | HostFailure] = queue.SimpleQueue()

    def send(self, order: dict[str, Any]) -> None:
        self.orders.put(order)

    def receive(self, seconds: float) -> dict[str, Any]:
        answer = self.answers.get(timeout=seconds)
        if isinstance(answer, HostFailure):
            raise answer
        return answer

    def kill(self) -> None: ...

    def end(self, seconds: float) -> None:
        self.answers.put(HostFailure("ended"))

    def next_order(self) -> dict[str, Any]:
        return self.orders.get(timeout=SECONDS)

    def answer(self, order: dict[str, Any], *, epoch: int = 0, ended: int = 0) -> None:
        """Say that the operation has ended well in this epoch, or has failed with the end of that one."""
        self.answers.put(
            {
                "operation": order["operation"], "right": not ended, "wrong": [], "error": "gone" if ended else "",
                "ended": ended, "epoch": epoch, "sequences": {},
            }
        )  # fmt: skip


class Hosts:
    """Starts processes; `of` has the last one of each node."""

    def __init__(self) -> None:
        self.of: dict[str, Process] = {}

    def spawn(self, node: str, function: str, arguments: dict[str, Any]) -> Process:
        self.of[node] = Process()
        return self.of[node]


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


@pytest.fixture
def findings() -> Findings:
    return Findings([], {})


@pytest.fixture
def job(hosts: Hosts, findings: Findings) -> Iterator[JobRun]:
    place = Place(cast(Any, None), cast(Any, hosts), findings, lambda line: None)
    run = JobRun(place, "", Job("one", ("h1", "h2"), ("h3",), 1000), 1.0, 0)
    run.start()
    for node in ("h1", "h2"):
        hosts.of[node].answers.put({"joined": 0})
    run.wait_joined(SECONDS)
    run.begin()
    yield run
    run.end()


def assert_ends_after(order: dict[str, Any], findings: Findings, hosts: Hosts) -> None:
    """Answer h1's orders of this operation until the next one's comes: this one has ended. It is ordered once more
    when h1 has answered before it is known that h2 joined.
    """
    following = hosts.of["h1"].next_order()
    while following["operation"] == order["operation"]:
        hosts.of["h1"].answer(following, epoch=2)
        following = hosts.of["h1"].next_order()
    assert following["operation"] == order["operation"] + 1
    assert findings.sums > 0 and not findings.failed


def test_result_that_is_told_after_another_workers_death_is_done_again(
    job: JobRun, hosts: Hosts, findings: Findings
) -> None:
    """h1 had it and h2 was killed; its death was known first. h2's next process then worked alone for a minute."""
    first, second = hosts.of["h1"], hosts.of["h2"]
    order = first.next_order()
    second.next_order()
    job.kill("h2")
    second.answers.put(HostFailure("killed"))
    first.answer(order, epoch=1)
    wait_until(lambda: job.epoch == 1)
    job.restart("h2")
    again = hosts.of["h2"]
    again.answers.put({"joined": 0})
    for process in (first, again):
        process.answer(process.next_order(), epoch=2)
    assert_ends_after(order, findings, hosts)


def test_result_of_an_epoch_that_ended_for_another_worker_is_done_again(
    job: JobRun, hosts: Hosts, findings: Findings
) -> None:
    first, second = hosts.of["h1"], hosts.of["h2"]
    order = first.next_order()
    second.answer(second.next_order(), ended=1)
    second.next_order()  # at once again
    first.answer(order, epoch=1)  # it had the result before the epoch ended
    for process in (first, second):
        process.answer(first.next_order() if process is first else order, epoch=2)
    assert_ends_after(order, findings, hosts)
