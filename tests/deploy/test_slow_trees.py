"""Trees that carry less than planned are reported once, and a late rank is not taken for a slow network."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from controlplane.common.log_lines import calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.service import trees
from controlplane.service.epochs import EpochStore
from controlplane.service.roster import Roster, Rules
from controlplane.service.trees import TreeWatch, planned_tree_rates
from p4src.protocol import ENCODING
from tests.deploy.job import configs

WORKERS = ("w1", "w2")


class Job:
    """A job of two workers whose agents report once a second of a clock that only the test advances."""

    def __init__(self, folder, monkeypatch) -> None:  # type: ignore[no-untyped-def]
        self.now = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        self.roster = Roster(configs(), EpochStore(folder), Rules(ENCODING))
        for node, config in self.roster.configs.items():
            self.roster.join(pb.JoinRequest(node=node, role=config.role, version=ENCODING, agent=node))
        self.plan = SimpleNamespace(version=1)
        self.name = "one"
        self.counted = {node: [0.0, 0.0] for node in WORKERS}  # seconds busy, bytes
        self.said: list[str] = []
        network = SimpleNamespace(jobs=SimpleNamespace(staying=lambda: [self]))
        self.watch = TreeWatch(network, calling(self.said.append))  # type: ignore[arg-type]
        ((self.tree, self.planned),) = planned_tree_rates(self.roster.configs).items()

    def second(self, **parts: float) -> None:
        """Let a second pass in which each worker was busy for this fraction, at a tenth of the planned rate."""
        self.now += trees.LOOK_SECONDS
        for node, busy in parts.items():
            self.counted[node][0] += busy
            self.counted[node][1] += busy * self.planned * 1e6 / 8 / 10
            tree = pb.TreeReport(tree=self.tree)
            tree.busy_seconds, tree.answered_bytes = self.counted[node][0], int(self.counted[node][1])
            self.roster.report(pb.ReportRequest(node=node, epoch=self.roster.epoch, trees=[tree]))
        self.roster.report(pb.ReportRequest(node="ps1", epoch=self.roster.epoch))
        self.watch.look()
        assert self.roster.running


@pytest.fixture
def job(tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    made = Job(tmp_path, monkeypatch)
    yield made
    made.roster.close()


def test_a_slow_tree_is_reported_once_per_plan(job):
    for _ in range(3 * trees.SLOW_LOOKS):
        job.second(w1=1.0, w2=1.0)
    [line] = job.said
    assert f"tree {job.tree} carries" in line and "The plan stays" in line
    job.plan.version = 2
    for _ in range(2 * trees.SLOW_LOOKS):
        job.second(w1=1.0, w2=1.0)
    assert len(job.said) == 2


def test_late_rank_is_not_taken_for_a_slow_network(job):
    """The worker has submitted nothing, so the others do not wait for the network."""
    for _ in range(5 * trees.SLOW_LOOKS):
        job.second(w1=1.0, w2=0.0)
    assert not job.said


def test_a_silent_rank_is_not_taken_for_a_slow_network(job):
    for _ in range(trees.SLOW_LOOKS // 2):
        job.second(w1=1.0, w2=1.0)
    for _ in range(5 * trees.SLOW_LOOKS):
        job.second(w1=1.0)
    assert not job.said
