"""A tree without any result, for which all workers wait: the controller mends it or refuses the job with a reason."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.common.log_lines import calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.job import Job
from controlplane.service.core import standing
from controlplane.service.core.standing import Do, Stand, decide
from controlplane.service.trees import TreeWatch
from tests.deploy.memory_network import RACKS
from tests.support.examples import examples
from tests.support.waiting import wait_until

JOB = Job("one", ("h1", "h2", "h4", "h5"), ("h3", "h6"), 1_000_000)
STEPS = {Do.READ_SWITCHES: 1, Do.BEGIN_ANEW: 2, Do.REFUSE: 3}


def play(seconds: list[dict[int, bool]], per_packet: float = 0.0) -> list[tuple[int, Do, int]]:
    """Return what is done, and when: each second every worker waits for the trees that are named; True: one moves. A
    job that begins anew is in another epoch."""
    stand, epoch, done = Stand(), 1, []
    since: dict[int, int] = {}
    for now, trees in enumerate(seconds):
        moving = {tree for tree, moves in trees.items() if moves}
        since = {tree: since.get(tree, now) for tree in trees.keys() - moving}
        waits = {tree: float(now - began) for tree, began in since.items()}
        stand, do, tree = decide(stand, epoch, waits, moving, dict.fromkeys(trees, per_packet))
        if do != Do.NOTHING:
            done.append((now, do, tree))
        if do == Do.BEGIN_ANEW:
            epoch, since = epoch + 1, {}
    return done


def test_a_tree_that_stands_is_read_begun_anew_and_refused():
    done = play([{0: True, 8: False}] * 60)
    assert [(do, tree) for _, do, tree in done[:4]] == [
        (Do.READ_SWITCHES, 8), (Do.BEGIN_ANEW, 8), (Do.READ_SWITCHES, 8), (Do.REFUSE, 8),
    ]  # fmt: skip
    assert done[1][0] == standing.ANEW_SECONDS


def test_nothing_is_done_where_the_whole_job_stands():
    assert not play([{0: False, 1: False}] * 200)


def test_a_tree_of_a_packet_a_second_is_given_the_time_that_it_takes():
    assert play([{0: True, 1: False}] * 70, per_packet=1.0)[0][0] == standing.PACKETS


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.dictionaries(st.integers(0, 3), st.booleans(), max_size=4), max_size=120))
def test_only_what_stands_for_long_is_acted_on_and_nobody_is_refused_without_a_second_attempt(seconds):
    anew: set[int] = set()
    for now, do, tree in play(seconds):
        waited = seconds[max(0, now - int(standing.READ_SECONDS)) : now + 1]
        assert all(each.get(tree) is False for each in waited), "it has waited for it all the time"
        if do == Do.BEGIN_ANEW:
            anew.add(tree)
        assert do != Do.REFUSE or tree in anew


class Standing:
    """A running job in memory whose agents report that its last tree stands, by a clock that only the test advances."""

    def __init__(self, rig, monkeypatch) -> None:  # type: ignore[no-untyped-def]
        self.rig, self.job = rig, rig.add(JOB)
        rig.join(self.job)
        assert self.job.roster.running
        self.ahead = 0.0
        began = time.monotonic
        monkeypatch.setattr("time.monotonic", lambda: began() + self.ahead)
        self.looks = TreeWatch(rig.network, calling(rig.log.append))
        self.tree = len(self.job.plan.trees) - 1

    def second(self) -> None:
        self.ahead += 1.0
        for node, config in self.job.roster.configs.items():
            reports = []
            for tree in config.worker_trees or config.root_trees:
                stands = tree.tree == self.tree
                report = pb.TreeReport(tree=tree.tree, answered_bytes=0 if stands else 1000)
                if stands:
                    report.oldest_chunk = 0
                    report.missing.extend(["h4"] if config.root_trees else [])
                reports.append(report)
            self.job.roster.report(pb.ReportRequest(node=node, epoch=self.job.roster.epoch, trees=reports))
        self.looks.look()

    def seconds(self, count: float) -> None:
        for _ in range(int(count)):
            self.second()


@pytest.fixture
def standing_job(rig, monkeypatch) -> Standing:
    return Standing(rig, monkeypatch)


def test_an_entry_that_a_switch_has_lost_unnoticed_is_written_again(standing_job):
    """No link is found silent then, as what passes there is counted by that very entry."""
    tree = standing_job.job.plan.trees[standing_job.tree]
    lost = standing_job.rig.targets[next(v for v in tree.flows[0].route if v in RACKS.switches)]
    lost.rules = replace(lost.rules, labels=())
    assert not standing_job.rig.as_wanted()
    standing_job.seconds(standing.READ_SECONDS + 2)
    keeper = next(one for one in standing_job.rig.network.switches.keepers if one.target is lost)

    def mended() -> bool:
        keeper.wake()
        return standing_job.rig.as_wanted()

    wait_until(mended, "its entries are there")
    assert any("the root lacks those of h4: its switches are read again" in line for line in standing_job.rig.log)


def test_a_job_that_stands_in_two_epochs_is_refused_with_the_reason(standing_job):
    roster = standing_job.job.roster
    epoch, members = roster.epoch, list(roster.members().values())
    standing_job.seconds(standing.ANEW_SECONDS + 2)
    assert roster.running and roster.epoch > epoch, "it has begun anew"
    standing_job.seconds(standing.ANEW_SECONDS + 2)
    told = []
    for member in members:
        while (event := member.events.get(timeout=20)) is not None:
            told.append(event)
    refused = [event.refused.reason for event in told if event.WhichOneof("kind") == "refused"]
    root = standing_job.job.plan.trees[standing_job.tree].root
    assert len(refused) == len(members)
    assert all(f"tree {standing_job.tree} (root {root}) has had no result" in reason for reason in refused)
    wait_until(lambda: not len(standing_job.rig.network.jobs), "the job is gone")
