"""Other traffic on the links: what switches count becomes what plans leave to it, and jobs move to what is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from controlplane.cli.controller import format_status
from controlplane.common.log_lines import calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.evaluate import unit_loads
from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job
from controlplane.service.core.others import HOLD_SECONDS, SMOOTH_SECONDS, STEP, Others, decide
from controlplane.service.measure import Measurements, OtherFlows, traffic
from controlplane.service.others import OtherTraffic
from controlplane.service.replies import other_traffic
from controlplane.service.running import RunningJob
from controlplane.targets.base import Traffic
from tests.deploy.memory_network import MemoryNetwork
from tests.support.examples import examples

RATE = 20.0
NETWORK = leaf_spine(2, 2, 5, 80.0, uplink_mbps=RATE, aggregation_mbps=None, ingress_mbps=None)
JOB = Job("one", NETWORK.servers[:3], NETWORK.servers[5:6], 1_000_000)
LINK = ("e1", "s1")
LOOK = 2.0
LONG = 3 * SMOOTH_SECONDS + 2 * HOLD_SECONDS
parts = st.floats(0.0, 1.0)


def after(state: Others, rates: list[float], now: float = 0.0) -> tuple[Others, list[float]]:
    """Return the state after these rates of one link, one each LOOK seconds, and what was left to others each time."""
    left = []
    for number, mbps in enumerate(rates):
        state, _ = decide(state, {LINK: mbps}, {LINK: RATE}, now + LOOK * number)
        left.append(state.used.get(LINK, 0.0))
    return state, left


@hypothesis_settings(max_examples=examples(60), deadline=None)
@given(parts, st.lists(parts, max_size=30), parts)
def test_plans_leave_others_what_they_take_for_long_and_jobs_never_less_than_their_part(
    least: float, before: list[float], then: float
) -> None:
    state, left = after(Others(least), [RATE * part for part in before])
    assert all(0 <= mbps <= (1 - least) * RATE + 1e-9 for mbps in left)
    changes = sum(one != other for one, other in pairwise([0.0, *left]))
    assert changes <= 1 + LOOK * len(left) / HOLD_SECONDS, "no change comes sooner after another one than it may"
    steady = [RATE * then] * int(2 * LONG / LOOK)
    _, left = after(state, steady, LOOK * len(before))
    assert left[-1] == pytest.approx(min(then, 1 - least) * RATE, abs=2 * STEP * RATE)
    assert left[-1] == 0 or left[-1] >= STEP * RATE, "a little is nothing"


def test_a_burst_changes_no_plan_and_a_link_that_is_not_measured_any_more_keeps_what_is_known() -> None:
    state, left = after(Others(0.25), [0.0, RATE, 0.0, 0.0, 0.0, RATE, 0.0, 0.0])
    assert set(left) == {0.0}
    state, left = after(Others(0.25), [12.0] * 20)
    assert left[-1] == pytest.approx(12.0, abs=STEP * RATE)
    state, changed = decide(state, {}, {LINK: RATE}, 1000.0)
    assert not changed and state.used[LINK] == left[-1]
    state, _ = decide(state, {}, {}, 1002.0)
    assert not state.used and not state.smoothed, "the link is gone from the network"


def flows_of(*readings: tuple[float, dict[str, Traffic]], of_jobs: float = 0.0) -> dict[tuple[str, str], float]:
    """Return Mbit/s by link after these readings (seconds, by switch)."""
    flows, found = OtherFlows(), dict[tuple[str, str], float]()
    for when, by_switch in readings:
        passed = {switch: (when, one) for switch, one in by_switch.items()}
        found = {link: flow.mbps for link, flow in flows.advance(passed, NETWORK, lambda link: of_jobs).items()}
    return found


def port(switch: str, other: str) -> int:
    return NETWORK.port(switch, other)


@pytest.mark.parametrize(("whole", "of_jobs"), [(False, 7.0), (True, 1.5)])
def test_a_link_carries_what_the_switch_at_its_end_receives_less_what_is_counted_of_jobs(
    whole: bool, of_jobs: float
) -> None:
    """1 MB a second is 8 Mbit/s. Of a link to a server there is only what the switch sends."""
    server = NETWORK.servers[0]
    ports = {
        "e1": {port("e1", "s1"): (1_000_000, 3_000_000), port("e1", server): (500_000, 250_000)},
        "s1": {port("s1", "e1"): (2_000_000, 0)},
    }
    first = {switch: Traffic(dict.fromkeys(held, (5, 5)), whole) for switch, held in ports.items()}
    second = {
        switch: Traffic({number: (5 + a, 5 + b) for number, (a, b) in held.items()}, whole)
        for switch, held in ports.items()
    }
    assert flows_of((0.0, first)) == {}, "a rate needs two readings"
    less = of_jobs if whole else 0.0
    assert flows_of((0.0, first), (1.0, second), of_jobs=of_jobs) == pytest.approx(
        {
            ("s1", "e1"): 8.0 - less, ("e1", "s1"): 16.0 - less,
            (server, "e1"): 4.0 - less, ("e1", server): 2.0 - less,
        }
    )  # fmt: skip


def test_a_switch_that_has_restarted_counts_anew_and_one_that_is_silent_says_nothing() -> None:
    number = port("s1", "e1")
    before, now = ({"s1": Traffic({number: (count, 0)}, False)} for count in (9_000_000, 1_000_000))
    assert flows_of((0.0, before), (1.0, now))[LINK] == pytest.approx(8.0)
    assert flows_of((0.0, before), (1.0, {}), (2.0, {"s1": Traffic({number: (10_000_000, 0)}, False)}))[
        LINK
    ] == pytest.approx(4.0), "over both seconds"


# -- a network with a job ---------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Iterator[MemoryNetwork]:
    network = MemoryNetwork(tmp_path, NETWORK, beside=0.25)
    yield network
    network.close()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def load(job: RunningJob, link: tuple[str, str]) -> float:
    """Return the Mbit/s that a job is planned to have on a link."""
    links, _, _ = unit_loads(job.plan, NETWORK.results_on_links)
    return links.get(link, 0.0) * job.plan.rate_mbps


def looks(made: MemoryNetwork) -> Callable[[float], None]:
    """Return what measures so many Mbit/s on the link for a while."""
    clock = Clock()
    others = OtherTraffic(made.network, 0.25, calling(made.log.append), clock)

    def go_on(mbps: float) -> None:
        for _ in range(int(LONG / LOOK)):
            clock.now += LOOK
            others.take({LINK: mbps})

    return go_on


def test_a_job_takes_the_way_that_others_leave_and_comes_back_when_they_end(
    made: MemoryNetwork, until: Callable[..., None]
) -> None:
    job = made.add(JOB)
    go_on = looks(made)
    alone, version = job.plan.rate_mbps, job.plan.version
    assert alone == pytest.approx(2 * RATE)
    go_on(0.0)
    assert job.plan.version == version, "nothing was there"
    go_on(12.0)
    until(lambda: job.plan.version > version)
    assert job.plan.rate_mbps == pytest.approx(2 * RATE - 12.0, abs=STEP * RATE)
    assert load(job, LINK) <= RATE - 12.0 + STEP * RATE
    assert load(job, ("e1", "s2")) == pytest.approx(RATE)
    assert any("Mbit/s from e1 to s1; jobs are planned beside it" in line for line in made.log)
    shown = format_status(pb.StatusReply(others=other_traffic(made.network)))
    assert "other traffic from" in shown and "11.98 Mbit/s" in shown
    go_on(RATE)  # TCP fills what there is
    until(lambda: job.plan.rate_mbps < 1.3 * RATE)
    assert job.plan.rate_mbps == pytest.approx(1.25 * RATE), "a job keeps its part of each link"
    go_on(0.0)
    until(lambda: job.plan.rate_mbps == pytest.approx(alone))
    assert not made.network.state.others


def test_jobs_that_share_make_way_together_and_a_new_one_is_admitted_to_what_is_left(
    made: MemoryNetwork, until: Callable[..., None]
) -> None:
    go_on = looks(made)
    first = made.add(JOB)
    second = made.add(Job("two", NETWORK.servers[3:5], NETWORK.servers[6:7], 1_000_000), together=True)
    before = first.plan.rate_mbps, second.plan.rate_mbps
    assert before == pytest.approx((RATE, RATE))
    go_on(12.0)
    until(lambda: max(first.plan.rate_mbps, second.plan.rate_mbps) < 0.8 * RATE)
    assert load(first, LINK) + load(second, LINK) <= RATE - 12.0 + STEP * RATE
    beside = made.network.admissions.shared(
        Job("three", NETWORK.servers[7:9], NETWORK.servers[2:3], 1_000_000), "inart"
    )
    assert beside.plan.rate_mbps > 0
    go_on(0.0)
    until(lambda: (first.plan.rate_mbps, second.plan.rate_mbps) == pytest.approx(before))


def test_what_is_declared_counts_where_it_is_more(made: MemoryNetwork) -> None:
    state = made.network.state
    state.others = {LINK: 5.0, ("gone", "s1"): 5.0}
    declared = NETWORK.replace(links={LINK: {"used_bandwidth_mbps": 8.0}})
    assert state.at(NETWORK, []).residual_bandwidth_mbps(*LINK) == RATE - 5.0
    assert state.at(declared, []).residual_bandwidth_mbps(*LINK) == RATE - 8.0


def test_switches_that_count_are_read(made: MemoryNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.service.measure.FRESH_SECONDS", 0.0)
    measurements = Measurements(made.network, others=True)
    assert measurements.read().others == {}
    made.targets["s1"].traffic = Traffic({port("s1", "e1"): (0, 0)}, whole=False)
    assert set(traffic(made.network.switches.keepers)) == {"s1"}, "the others have no counters"
    measurements.read()
    made.targets["s1"].traffic = Traffic({port("s1", "e1"): (1_000_000, 0)}, whole=False)
    flow = measurements.read().others[LINK]
    assert flow.mbps > 0 and flow.total == pytest.approx(1_000_000, abs=1)


def test_where_ports_count_everything_what_jobs_send_is_taken_off(
    made: MemoryNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.service.measure.FRESH_SECONDS", 0.0)
    job, number, switch = made.add(JOB), port("s1", "e1"), made.targets["s1"]
    labels = [entry.label for entry in switch.rules.labels if entry.ingress_port == number]
    assert len(job.plan.trees) and labels
    measurements = Measurements(made.network, others=True)

    def read(foreign: int, own: int) -> int:
        switch.traffic = Traffic({number: (foreign + own, 0)}, whole=True)
        switch.labels = {(number, label): (1, own // len(labels)) for label in labels}
        flow = measurements.read().others.get(LINK)
        return flow.total if flow is not None else 0

    read(0, 0)
    ours = 600_000 * len(labels)
    assert read(0, ours) < ours, "how much less depends on when both are read, one after the other"
    before = read(0, ours)
    assert read(1_000_000, ours) - before == pytest.approx(1_000_000, abs=1)
