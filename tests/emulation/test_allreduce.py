"""Sums through real switches are right, whatever the network does."""

import pytest

from controlplane.planner.generators import fattree
from tests.emulation.rig import Rig, paper_testbed
from tests.support.examples import nightly
from topologies.zygote import HostFailure

pytestmark = pytest.mark.usefixtures("patient")
SIZE = 400_000  # bytes: some 400 chunks over two trees
FAST, SLOW = 60.0, 6.0  # Mbit/s of a link; bmv2 keeps up with the slow one


def rate(kind: str) -> float:
    return SLOW if kind == "bmv2" else FAST


@pytest.mark.parametrize("strategy", [nightly("lbmm"), nightly("atp"), "equal"])
def test_sums_are_right(kind: str, strategy: str) -> None:
    with Rig(kind, paper_testbed(rate(kind)), strategy) as rig:
        rig.start_all()
        for size in (4, 1024 * 4, SIZE if kind == "softswitch" else SIZE // 4):
            rig.allreduce(size).check()
        verdicts = rig.verdicts()
        assert verdicts["refused"] == verdicts["malformed"] == verdicts["unknown"] == 0
        assert (verdicts["completed"] > 0) == any(tree.points for tree in rig.plan.trees)


def test_plan_over_three_tiers(kind: str) -> None:
    """Aggregation and return trees across a whole fat-tree, with workers and a root in different pods."""
    topology = fattree(4, rate(kind) / 2, aggregation_mbps=None)
    with Rig(kind, topology, "equal", workers=6, roots=1) as rig:
        rig.start_all()
        rig.allreduce(SIZE // 4).check()


FAULTS: dict[str, dict[str, float]] = {
    "loss 1 %": {"loss": 0.01},
    "loss 10 %": {"loss": 0.10},
    "duplication": {"duplicate": 0.2},
    "reordering": {"reorder": 0.2, "delay_ms": 2.0, "jitter_ms": 2.0},
    "all": {"loss": 0.03, "duplicate": 0.05, "reorder": 0.1, "delay_ms": 1.0, "jitter_ms": 1.0},
}
NO_FAULTS = dict.fromkeys(("loss", "duplicate", "reorder", "delay_ms", "jitter_ms"), 0.0)


@pytest.mark.parametrize("strategy", ["atp", nightly("lbmm")])
def test_faults_cost_time_and_never_a_sum(strategy: str) -> None:
    """One fault after the other on the same network; after each it works as if nothing had happened."""
    with Rig("softswitch", paper_testbed(FAST), strategy) as rig:
        rig.start_all()
        for name, faults in FAULTS.items():
            rig.shape_all(**NO_FAULTS | faults)
            for size in (SIZE, 97_000, 4):
                outcome = rig.allreduce(size)
                outcome.check()
                if size == SIZE and "loss" in faults:
                    assert outcome.resent > 0, f"{name}: packets were to be lost"
                if size == SIZE and "duplicate" in faults:
                    assert outcome.duplicates > 0, f"{name}: packets were to be doubled"
            rig.shape_all(**NO_FAULTS)
            rig.allreduce(97_000).check()
        verdicts = rig.verdicts()
        assert verdicts["refused"] == verdicts["malformed"] == verdicts["unknown"] == 0


def test_switch_reboots_in_the_middle(kind: str) -> None:
    with Rig(kind, paper_testbed(rate(kind)), "atp") as rig:
        rig.start_all()
        size = SIZE * 4 if kind == "softswitch" else SIZE // 2
        for switch in rig.topology.switches:
            watched = rig.job.workers[0]
            before = rig.emulation.counters(watched)
            rig.submit(size)
            rig.emulation.wait(
                lambda watched=watched, before=before: (rig.emulation.counters(watched) - before).rx_bytes > size // 4,
                "the all-reduce is under way",
            )
            rig.emulation.reboot(switch)
            rig.collect().check()
        assert any("is back" in line for line in rig.log)
        rig.allreduce(SIZE // 4).check()


def test_workers_that_are_late_or_submit_late_or_other_sizes(kind: str) -> None:
    """A late worker is named and waited for. When one submits late, the others' chunks wait in the switches' slots and
    are resent; its chunks still count once. Other sizes are an error everywhere.
    """
    with Rig(kind, paper_testbed(rate(kind)), "atp") as rig:
        rig.start_roots()
        *early, late = rig.job.workers
        for node in early:
            rig.start_worker(node)
        rig.emulation.wait(lambda: [a.node for a in rig.service.roster.status().agents if not a.joined] == [late],
                           f"everyone but {late} has joined")  # fmt: skip
        assert not any(line.startswith("all ") for line in rig.log)
        rig.start_worker(late)
        rig.ready()
        rig.allreduce(SIZE // 4).check()
        watched = early[0]
        before = rig.emulation.counters(watched)
        for node in early:
            rig.workers[node].send({"size": SIZE})
        rig.emulation.wait(
            lambda: (rig.emulation.counters(watched) - before).tx_packets > 3,
            "the others have sent what they can",
        )
        rig.workers[late].send({"size": SIZE})
        rig.collect().check()
        for node in early:
            rig.workers[node].send({"size": 8192})
        rig.workers[late].send({"size": 4096})
        for process in rig.workers.values():
            with pytest.raises(HostFailure, match=r"Mismatch|Aborted"):
                process.receive(60)
