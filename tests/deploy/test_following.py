"""A link that fails in silence is found by what entries count, soon, whatever the job has waited for before."""

from __future__ import annotations

import threading
import time

import pytest

from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job
from controlplane.service.hops import hops_of
from controlplane.targets.base import Counters
from tests.deploy.memory_network import Clock, MemoryNetwork
from tests.support.waiting import wait_until

NETWORK = leaf_spine(2, 2, 3, 300.0, aggregation_mbps=None, ingress_mbps=None)
LOOK_SECONDS = 0.1
SOON_SECONDS = 1.0
"""After agents have said that a tree stands."""


class Traffic:
    """Packets of a job over all of its links, as the switches count them; nothing comes out of a link that is dead."""

    def __init__(self, network: MemoryNetwork, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
        (self.job,) = network.network.jobs
        (version,) = self.job.migrator.versions
        self.hops = list(hops_of(version.plan, version.deployment, NETWORK))
        self.counts = {entry: 0 for hop in self.hops for entry in (*hop.into, hop.out)}
        self.network, self.clock, self.dead = network, clock, ""
        self.since: float | None = None
        monkeypatch.setattr(network.watch.following, "counted_packets", lambda switches: dict(self.counts))
        monkeypatch.setattr(self.job.roster, "stalled", lambda seconds: self.since)

    def go_on(self, seconds: float) -> None:
        """Packets flow meanwhile, and the watch looks."""
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.clock.now += LOOK_SECONDS
            lost = {hop.out for hop in self.hops if hop.link == self.dead}
            for entry in self.counts:
                self.counts[entry] += 0 if entry in lost else 5
            self.network.watch.following.look_at_trees()


@pytest.fixture
def traffic(rig: MemoryNetwork, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Traffic:
    rig.add(Job("one", ("h1", "h2", "h4", "h5"), ("h3", "h6"), 1_000_000))
    return Traffic(rig, monkeypatch, clock)


@pytest.mark.parametrize("waited", [0.0, 0.5, 3.0, 12.0])
def test_link_that_fails_after_a_rank_was_late_is_found_as_soon_as_any(traffic: Traffic, waited: float) -> None:
    """It took as long as the late rank had been waited for: what had come out of the link then counted, and looks
    were seconds apart."""
    traffic.since = traffic.clock.now
    traffic.go_on(waited)
    traffic.dead = traffic.hops[0].link
    traffic.since = traffic.clock.now  # the late rank has come; now the job waits for what is lost
    assert not any("lost" in line for line in traffic.network.log)
    traffic.go_on(SOON_SECONDS)
    assert any(f"nothing comes out of link {traffic.dead}" in line for line in traffic.network.log), traffic.network.log


def test_nothing_is_taken_for_lost_while_a_rank_is_late(traffic: Traffic) -> None:
    traffic.since = traffic.clock.now
    traffic.go_on(15.0)
    assert not any("lost" in line for line in traffic.network.log)


def test_a_switch_that_does_not_answer_delays_no_other_failure(
    rig: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters of a switch that hangs are waited for while another switch fails."""
    job = rig.add(Job("one", ("h1", "h2", "h4", "h5"), ("h3", "h6"), 1_000_000))
    monkeypatch.setattr(job.roster, "stalled", lambda seconds: time.monotonic() - 1.0)
    asked, answers = threading.Event(), threading.Event()
    hanging = rig.targets[NETWORK.access_switch("h1")]

    def read_counters(timeout: float = 20.0) -> Counters:
        asked.set()
        answers.wait(60.0)
        return Counters({}, {})

    monkeypatch.setattr(hanging, "read_counters", read_counters)
    rig.watch.start()
    try:
        assert asked.wait(30.0)
        rig.targets["s1"].die()
        wait_until(lambda: "s1" in rig.network.state.off, "its failure is noticed")
        assert not answers.is_set()
    finally:
        answers.set()
        rig.watch.close()
