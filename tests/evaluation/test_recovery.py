"""After any disturbance the agents are back at their rate within seconds, whatever their number. What runs are their
own engines, in virtual time: each run is the same, on any machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from controlplane.planner.evaluate import evaluate
from controlplane.planner.plan import Plan
from controlplane.planner.topology import Topology
from evaluation.recovery.__main__ import main, network_of, parse
from evaluation.recovery.bound import most_carried
from evaluation.recovery.disturbances import KINDS, Played, Recovery
from evaluation.recovery.networks import racks
from evaluation.recovery.virtual import VirtualNetwork
from p4src.protocol import frame_bytes
from tests.support.examples import nightly

GOAL_SECONDS = 2.0
MOST_EXCESS = 1.5
"""Packets to the parameter servers, over those that are needed: a storm of single contributions has tens of times."""


def played(topology: Topology, plan: Plan, kind: str, values: int, seconds: float = 8.0) -> Recovery:
    """One disturbance in an all-reduce, which ends well."""
    with VirtualNetwork(topology, plan, values=values) as network:
        run = Played(network, kind, seconds=seconds)
        result = run.run(4.0)
        assert run.finish(60.0), "every worker has every sum, and each is right"
        return result


def check(result: Recovery) -> None:
    assert result.failed == 0
    assert result.back_seconds is not None and result.back_seconds <= GOAL_SECONDS, result
    assert result.excess < MOST_EXCESS, "what was lost is added up again; it does not come worker by worker"


@pytest.mark.parametrize("kind", KINDS)
def test_a_fat_tree_is_back_within_two_seconds(kind: str) -> None:
    topology, plan = network_of(parse(["--k", "4", "--workers", "8", "--ps", "2", "--bandwidth", "10"]))
    check(played(topology, plan, kind, values=256))


@pytest.mark.parametrize("kind", [kind if kind in ("loss", "start") else nightly(kind) for kind in KINDS])
def test_a_hundred_workers_are_back_within_two_seconds(kind: str) -> None:
    topology, plan = racks(100, 4, 2.0)
    check(played(topology, plan, kind, values=64))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [nightly(kind) for kind in KINDS])
def test_a_thousand_workers_are_back_within_two_seconds(kind: str) -> None:
    topology, plan = racks(1000, 4, 2.0)
    check(played(topology, plan, kind, values=64))


def test_the_root_asks_for_lost_contributions() -> None:
    """Without a question nothing would come again: all of a window was lost, and workers repeat one chunk by
    themselves."""
    topology, plan = racks(32, 1, 2.0)
    result = played(topology, plan, "loss", values=64)
    assert result.questions > 0
    assert result.resent > 32 * 20, "more than the workers' timers could have sent again"
    assert result.unadded < 32, "a packet a worker of one chunk would be as many; a window was lost"


def test_the_same_seed_gives_the_same_run() -> None:
    topology, plan = racks(32, 2, 2.0)
    first, again = (played(topology, plan, "burst", values=64, seconds=4.0) for _ in range(2))
    assert first == again


def test_nobody_carries_more_than_what_losses_leave() -> None:
    """Workers of one rack are two links away from their parameter server, so about half of what they send arrives where
    each link loses 30 %; the plan uses half of their links."""
    topology, plan = racks(31, 1, 2.0)
    assert {len(a.route) for tree in plan.trees for a in tree.assignments} == {2}
    links = 1 + len(plan.trees[0].way(plan.trees[0].points[0])) - 1
    assert most_carried(topology, plan, 0.3) == pytest.approx(min(1.0, 2 * 0.7**links))
    assert most_carried(topology, plan, 0.0) == 1.0 and most_carried(topology, plan, 1.0) == 0.0
    far, farther = (network_of(parse(["--k", "4", "--workers", "6", "--bandwidth", "20", "--ps", n])) for n in "12")
    assert 0 < most_carried(*far, 0.3) < 0.3 and 0 < most_carried(*farther, 0.3) < 0.3


def test_slow_trees_share_their_wake_ups() -> None:
    """49 trees of 22 packets a second each: a wake-up for each answer would be what 50 agents on a machine do most."""
    topology, plan = network_of(parse(["--k", "6", "--workers", "50", "--ps", "4", "--bandwidth", "20"]))
    assert len(plan.trees) > 40
    with VirtualNetwork(topology, plan, values=256) as network:
        run = Played(network, "stop", seconds=1.0)
        run.begin()
        assert run.finish(3.0)
        stats = network.worker_stats()
        assert stats.resent_timeout == stats.resent_gap == stats.resent_recovery == 0
        assert stats.wakeups < stats.answers / 2


def test_the_command_reports_its_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--workers", "16", "--ps", "1", "--kinds", "loss"]) == 0
    assert "sums right" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        parse(["--kinds", "earthquake"])


@pytest.mark.parametrize("kind", [kind if kind in ("stop", "burst") else nightly(kind) for kind in KINDS])
def test_hosts_that_are_workers_and_parameter_servers_are_back_within_two_seconds(kind: str) -> None:
    """What a host sends as a worker and what it sends as a parameter server never fill its link together."""
    words = ["--k", "4", "--workers", "8", "--ps", "workers", "--bandwidth", "20"]
    topology, plan = network_of(parse(words))
    assert plan.job.both_roles == set(plan.job.workers) and len(plan.trees) > 8
    check(played(topology, plan, kind, values=256))


def test_hosts_that_are_workers_and_parameter_servers_keep_their_pace() -> None:
    """What waits for the link that a host's two roles share is sent later, and not given up: ten seconds' gradients
    take hardly longer than at the pace of the plan (agents keep 0.97 of it). Without that it was 0.93.
    """
    topology, plan = network_of(parse(["--k", "4", "--workers", "8", "--ps", "workers", "--bandwidth", "20"]))
    values, pace = 256, 0.97
    gradient = np.ones(int(plan.rate_mbps * 1e6 / 32 * 10), np.float32)
    with VirtualNetwork(topology, plan, values=values, pace=pace) as network:
        sums, begun = np.zeros_like(gradient), network.now
        for worker in plan.job.workers:
            network.submit(worker, gradient, sums)
        while network.worker_stats().operations_done < 1:
            assert network.now < begun + 20, "the all-reduce ends"
            network.run(0.01)
        packets = network.worker_stats().chunks_sent / len(plan.job.workers)
        sent_mbps = packets * frame_bytes(values) * 8e-6 / (network.now - begun)
        assert (sums == len(plan.job.workers)).all()
        assert network.dropped() == 0
    assert 0.96 * plan.rate_mbps < sent_mbps <= pace * plan.rate_mbps * 1.001


def summed(topology: Topology, plan: Plan, seconds: float, lost_seconds: float = 0.0) -> float:
    """How long an all-reduce of so many seconds at the plan's rate takes. All packets are lost at first, for so long.
    Every sum is right."""
    gradient = np.ones(int(plan.rate_mbps * 1e6 / 32 * seconds), np.float32)
    with VirtualNetwork(topology, plan, values=256) as network:
        network.faults(1.0 if lost_seconds else 0.0)
        sums, begun = np.zeros_like(gradient), network.now
        for worker in plan.job.workers:
            network.submit(worker, gradient, sums)
        network.run(lost_seconds)
        network.faults()
        while (stats := network.worker_stats()).operations_done < 1:
            assert not stats.operations_failed and network.now < begun + 10 * seconds
            network.run(1.0)
        assert (sums == len(plan.job.workers)).all()
        return network.now - begun


def with_a_slow_tree(packets_per_second: float) -> tuple[Topology, Plan]:
    """A job of 8 workers, each a parameter server, of links of 0.5 Mbit/s, and one tree of so many packets a second."""
    topology, plan = network_of(parse(["--k", "4", "--workers", "8", "--ps", "workers", "--bandwidth", "0.5"]))
    first, second = plan.trees[:2]
    rate = evaluate(replace(plan, trees=(replace(first, share=1.0),)), topology).rate_mbps
    share = packets_per_second * frame_bytes(256) * 8e-6 / rate
    return topology, replace(
        plan, rate_mbps=rate, trees=(replace(first, share=1 - share), replace(second, share=share))
    )


def test_a_tree_of_a_packet_in_100_seconds_holds_nothing_up() -> None:
    """k = 6 with 50 workers that are parameter servers had such a tree beside 113 others. It was given a chunk of an
    all-reduce of 35 s, and that failed: no progress for 60 s."""
    took = summed(*with_a_slow_tree(0.01), seconds=60.0)
    assert took < 60.0 * 1.2


def test_a_tree_of_a_packet_in_80_seconds_is_given_the_time() -> None:
    """What a tree may not yet send is no want of progress, also where operations fail after 60 s without any."""
    took = summed(*with_a_slow_tree(0.0125), seconds=300.0)
    assert took < 300.0 * 1.15


def test_what_a_slow_tree_has_lost_is_not_given_up() -> None:
    """Timers once waited for eight packets of a tree, which are 80 s of this one, and operations fail after 60 s."""
    took = summed(*with_a_slow_tree(0.1), seconds=60.0, lost_seconds=1.0)
    assert took < 60.0 * 3
