"""The cost model agrees with packets followed one by one, with the counts of agents, and with the simulator."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import fattree, leaf_spine, random_topology, testbed
from controlplane.planner.job import Job, JobError, parse_job, place_job
from controlplane.planner.plan.cost import cost_of, data_packets, exponent_packets, packets, windows
from controlplane.planner.plan.follow import round_trips
from controlplane.planner.plan.limits import Limits, limited
from controlplane.planner.plan.model import Assignment, Relay, Tree
from controlplane.planner.plan.pacing import bucket_packets
from controlplane.planner.plan.slots import HOSTS, under_way, with_host_ms
from controlplane.planner.simulate.plans import Flows, run_plan, synchronisation_seconds
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology
from p4src.protocol import data_values, frame_bytes
from tests.controlplane.instances import random_plan
from tests.controlplane.test_strategies import REFUSALS
from tests.simulate.packets import all_reduce_seconds
from tests.support.examples import examples

VALUES = 256
BITS = 8 * frame_bytes(VALUES)
STRATEGIES = ("inart", "inart-strict", "atp", "lbmm", "equal")


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """Draw networks whose hosts need no time: the packets of this test take no time in them, either."""
    delay = draw(st.sampled_from([0.0, 0.5, 4.0]))
    made = draw(
        st.sampled_from(
            [
                lambda: testbed(10.0, 10.0, 10.0, results_on_links=True),
                lambda: fattree(4, 20.0, delay_ms=delay),
                lambda: leaf_spine(3, 2, 4, 20.0, uplink_mbps=10.0, delay_ms=delay),
                lambda: random_topology(4, 10, 2, draw(st.integers(0, 100))),
            ]
        )
    )()
    return limited(with_host_ms(made, 0.0), Limits.of_target("v1model"))


def memory(topology: Topology, slots: int | None) -> dict[str, dict[str, int | None]]:
    return {v: {"slots": slots} for v in topology.switches}


def followed(plan, topology: Topology, size: int, link_bytes: float = 0.0) -> float:
    """Return the time of an all-reduce in seconds, simulated packet by packet."""
    cost = cost_of(plan, topology, plan.rate_mbps)
    data = data_packets(plan, VALUES, size)
    counts = [(exponent_packets(count, VALUES), count) for count in data]
    slots = list(cost.windows.slots)
    return all_reduce_seconds(plan, topology, BITS, counts, slots=slots, buckets=cost.buckets, link_bytes=link_bytes)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    networks(),
    st.sampled_from(STRATEGIES),
    st.sampled_from([10_000, 40_000, 200_000]),
    st.integers(0, 50),
    st.sampled_from([0.0, 3_000.0, 25_000.0]),
)
def test_seconds_are_those_of_packets_on_links(topology, strategy, size, seed, link_bytes):
    job = replace(place_job(topology, 6, 2, seed=seed), model_bytes=size)
    try:
        plan = get_strategy(strategy)(topology, job)
    except REFUSALS:
        return
    cost = replace(
        cost_of(plan, topology, plan.rate_mbps), credit=lambda net, link: link_bytes * 8e-3 / net.bandwidth_mbps(*link)
    )
    seconds = followed(plan, topology, size, link_bytes)
    # Packets of several trees may meet once more, which the formula leaves out: one or two packets of each tree.
    meet = len(plan.trees) * BITS / 10e6
    # Neither model says which of two packets that arrive together goes first; a tree may wait once more for its tokens.
    wait = max(bucket * BITS / 1e6 / rate for bucket, rate in zip(cost.buckets, cost.tree_rates_mbps, strict=True))
    near = 0.05 if size >= 200_000 else 0.15
    assert max(cost.estimated_seconds(size)) == pytest.approx(seconds, rel=near, abs=max(wait, 2 * meet))
    if link_bytes:
        assert cost.seconds(size) == pytest.approx(seconds, rel=0.05, abs=max(wait, 2 * meet))
        return
    assert cost.seconds(size) == pytest.approx(seconds, rel=0.05, abs=meet)
    if size >= 200_000:
        assert cost.seconds(size) == pytest.approx(seconds, rel=0.05)


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(networks(), st.sampled_from([16, 32]), st.integers(0, 20))
def test_windows_bind_as_they_do_for_packets(topology, slots, seed):
    """With long links and few slots, the rate that is printed is the one at which packets arrive."""
    far = {link: {"delay_ms": 20.0} for link in topology.links if topology.kind(link[0]) == topology.kind(link[1])}
    topology = topology.replace(links=far, nodes=memory(topology, slots * 4))
    job = replace(place_job(topology, 6, 1, seed=seed), model_bytes=200_000)
    try:
        plan = get_strategy("inart-strict")(topology, job)
    except REFUSALS:
        return
    evaluation = evaluate(plan, topology)
    assert plan.rate_mbps == evaluation.rate_mbps
    seconds = followed(plan, topology, 200_000)
    assert cost_of(plan, topology, plan.rate_mbps).seconds(200_000) == pytest.approx(seconds, rel=0.05)
    if evaluation.bottleneck.kind == "aggregation_memory":
        # With as many slots as its rate asks for the plan would be faster, and memory is named as its bottleneck.
        free = topology.replace(nodes=memory(topology, 1 << 14))
        assert evaluate(plan, free).rate_mbps > plan.rate_mbps
        assert evaluation.bottleneck.name in {point for tree in plan.trees for point in tree.points}


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(networks(), st.integers(0, 10**6), st.sampled_from([24, 48, 64, 200, 2048]), st.floats(0.5, 50))
def test_slots_follow_rates_within_memory(topology, seed, slots, faster):
    topology = topology.replace(nodes=memory(topology, slots))
    job = place_job(topology, 5, 2, seed=seed % 50)
    plan = random_plan(topology, job, seed)
    rate = faster * evaluate(plan, topology.replace(nodes=memory(topology, None))).rate_mbps
    found = windows(plan, topology, rate)
    if not rate:  # The plan aggregates where no switch can: there are no windows.
        assert found is None
        return
    if found is None:
        at = {v: sum(v in tree.points for tree in plan.trees) for v in topology.switches}
        assert max(at.values()) * 16 > slots
        return
    for v in topology.switches:
        assert sum(n for n, tree in zip(found.slots, plan.trees, strict=True) if v in tree.points) <= slots
    needs = under_way(replace(plan, rate_mbps=rate), topology, BITS)
    assert all(n & (n - 1) == 0 and n >= 16 for n in found.slots)
    # At the rate that the windows carry, they carry the same again: agents can follow what they are told.
    again = windows(plan, topology, min(rate, found.rate_mbps))
    assert again.rate_mbps >= min(rate, found.rate_mbps) * (1 - 1e-9)
    # Where memory is ample, every tree has as many slots as it asks for.
    if slots >= 2048 and sum(max(64, 4 * need) for need in needs) < slots:
        assert found.rate_mbps >= rate


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(networks(), st.sampled_from(STRATEGIES), st.integers(1, 10**6), st.integers(0, 50))
def test_the_simulator_takes_as_long(topology, strategy, size, seed):
    job = replace(place_job(topology, 6, 2, seed=seed), model_bytes=size)
    try:
        plan = get_strategy(strategy)(topology, job)
    except REFUSALS:
        return
    cost = cost_of(plan, topology, plan.rate_mbps, pace=0.97)
    assert all(part.wait_s >= 0 for part in cost.tree_parts(size)), "also where rounding would make it -3e-17"
    assert run_plan(plan, topology, flows=Flows(pace=0.97))[0] == pytest.approx(cost.seconds(size), rel=1e-6)


def test_packet_counts_are_those_of_agents():
    from worker_agent.split import ranges

    topology = limited(fattree(4), Limits.of_target("v1model"))
    plan = get_strategy("inart")(topology, place_job(topology, 8, 2, model_bytes=1_000_000))
    generator = random.Random(1)
    for size in [4, *(generator.randrange(4, 2_000_000, 4) for _ in range(20))]:
        parts = ranges(size // 4, data_values(VALUES), [tree.share for tree in plan.trees])
        assert data_packets(plan, VALUES, size) == [-(-elements // data_values(VALUES)) for _, elements in parts]
    assert sum(packets(plan, VALUES, 4)) == 2


def test_jobs_have_one_size_several_or_any():
    topology = limited(testbed(10.0, 10.0, 10.0), Limits.of_target("v1model"))
    one, many, free = (parse_job(f"workers=4,ps=2{model}", topology) for model in (",model=50K", ",model=50K*2+1K", ""))
    assert (one.sizes, many.sizes, free.sizes) == ((50_000,), (50_000, 50_000, 1_000), ())
    assert many.model_bytes == 101_000
    for job in (one, many, free):
        assert Job.from_json(job.to_json()) == job
    plan = get_strategy("atp")(topology, many)
    cost = cost_of(plan, topology, plan.rate_mbps)
    assert cost.job_seconds() == pytest.approx(2 * cost.seconds(50_000) + cost.seconds(1_000))
    for wrong in ("50K*x", "0", "5Q", "1K+"):
        with pytest.raises(JobError):
            parse_job(f"workers=4,ps=2,model={wrong}", topology)
    with pytest.raises(JobError, match="its buckets have 3 bytes, not 5"):
        Job("job", ("a",), ("b",), 5, buckets=(1, 2))
    # Without a model size only the rate counts; for small models a plan of few trees is better.
    fast = get_strategy("inart")(topology, free)
    small = get_strategy("inart")(topology, replace(free, model_bytes=4_000, buckets=None))
    assert fast.rate_mbps >= small.rate_mbps and len(small.trees) <= len(fast.trees)


def test_a_schedule_of_buckets_is_minimised_to_its_last_result():
    """Where the last bucket is small and ready late, what counts is the time of that one."""
    topology = limited(testbed(10.0, 10.0, 10.0), Limits.of_target("v1model"))
    words = "workers=4,ps=2,model=300K+4K"
    together = get_strategy("inart")(topology, parse_job(words, topology))
    job = parse_job(f"{words},ready=0+5000", topology)
    assert Job.from_json(job.to_json()) == job
    plan = get_strategy("inart")(topology, job)
    last = get_strategy("inart")(topology, parse_job("workers=4,ps=2,model=4K", topology))

    def ends(of):
        return cost_of(replace(of, job=job), topology, of.rate_mbps).job_seconds()

    assert ends(plan) <= min(ends(together), ends(last)) + 1e-9
    cost = cost_of(plan, topology, plan.rate_mbps)
    assert cost.job_seconds() == pytest.approx(5 + cost.seconds(4_000))
    assert cost.job_seconds(True) == pytest.approx(5 + max(cost.estimated_seconds(4_000)))
    busy = replace(job, ready_ms=(0.0, 1.0))  # the second is ready while the first is under way
    assert ends(plan) > cost_of(replace(plan, job=busy), topology, plan.rate_mbps).job_seconds()
    assert cost_of(replace(plan, job=busy), topology, plan.rate_mbps).job_seconds() == pytest.approx(
        max(cost.seconds(300_000) + cost.seconds(4_000), 0.001 + cost.seconds(4_000)), rel=0.05
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("model=1K+1K,ready=0", "ready_ms has 1 times, and its model has 2"),
        ("model=1K+1K,ready=5+0", "ready_ms must not fall"),
        ("model=1K+1K,ready=0+x", "ready must be times in ms, like 10"),
        ("ready=0", "the model's size is not given"),
        ("model=1K,ready=nan", "ready_ms must be numbers of ms"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_said(words, message):
    with pytest.raises(JobError, match=message):
        parse_job(f"workers=4,ps=2,{words}", testbed(10.0, 10.0, 10.0))


def test_without_packets_the_simulator_counts_no_headers():
    topology = testbed(10.0, 10.0, 10.0)
    plan = get_strategy("atp")(topology, parse_job("workers=4,ps=2,model=1M", topology))
    assert cost_of(plan, topology, plan.rate_mbps) is None
    assert synchronisation_seconds(plan, topology) == pytest.approx(8 / plan.rate_mbps)


def test_buckets_are_those_of_the_engine():
    """Agents send ahead of their pace as far as the model allows them to."""
    import ctypes

    from worker_agent.native_worker import library

    bucket = library().inart_worker_bucket
    bucket.restype, bucket.argtypes = ctypes.c_double, [ctypes.c_double] * 2 + [ctypes.c_uint32] * 3
    generator = random.Random(1)
    for _ in range(500):
        values, slots = generator.choice([4, 64, 256, 1024, 2048]), 1 << generator.randrange(0, 14)
        total = 10 ** generator.uniform(-2, 6)
        tree = total * generator.random()
        packet = frame_bytes(values) * 8e-6
        shared = generator.random() < 0.5
        assert bucket_packets(tree / packet, total / packet, slots, values, shared) == pytest.approx(
            bucket(tree, total, slots, values, shared)
        )


def test_a_roots_own_contribution_may_come_last():
    """Host h5 is worker and parameter server, and its contribution has the longest way to the switch that adds."""
    topology = fattree(4, 100.0)
    near = [Assignment(worker, "a1", (worker, "e1", "a1")) for worker in ("h1", "h2")]
    far = Assignment("h5", "a1", ("h5", "e3", "a3", "c1", "a1"))
    up = Relay("a1", "h5", ("a1", "c1", "a3", "e3", "h5"))
    down = [("h5", "e3"), ("e3", "a3"), ("a3", "c1"), ("c1", "a1"), ("a1", "e1"), ("e1", "h1"), ("e1", "h2")]
    tree = Tree("h5", 1.0, (*near, far), (up,), tuple(down))
    [levels] = round_trips([tree], topology, BITS)
    assert [(level.source, level.end) for level in levels] == [
        ("workers", "a1"), ("a1", "h5"), ("h5", "workers"), (HOSTS, "")
    ]  # fmt: skip
    packet_ms = BITS / 100e6 * 1e3  # on each link but a server's own, which is as fast as one wishes
    assert [level.ms for level in levels[:3]] == pytest.approx([3 * packet_ms, 4 * packet_ms, 5 * packet_ms])
