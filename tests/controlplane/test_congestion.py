"""Where packets wait, and how often a plan may be changed for that."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane import rules
from controlplane.runtime import congestion
from controlplane.runtime.congestion import Congestion, Readings, congested, throughput
from controlplane.runtime.hops import Entry, hops_of
from controlplane.targets.base import Counters
from tests.controlplane.instances import examples
from tests.controlplane.test_repair import LIMITS, PLAN, TREE

DEPLOYMENT = rules.build(PLAN, TREE, LIMITS, job_id=3, epoch=7)
HOPS = list(hops_of(PLAN, DEPLOYMENT, TREE))
ENTRIES = {entry for hop in HOPS for entry in (*hop.into, hop.out)}


def readings(counts: dict[Entry, int], times: dict[str, float]) -> Readings:
    found: dict[str, dict[tuple[int, int], tuple[int, int]]] = {}
    for (switch, port, label), count in counts.items():
        found.setdefault(switch, {})[port, label] = count, 1090 * count
    return {switch: (times[switch], Counters({}, labels)) for switch, labels in found.items()}


@settings(max_examples=examples(20), deadline=None)
@given(st.data(), st.floats(0, 0.05))
def test_link_before_which_packets_wait_is_found_whenever_its_ends_are_read(data, skew):
    full = data.draw(st.sampled_from(sorted({hop.ends for hop in HOPS})))
    late = {switch: data.draw(st.sampled_from([0.0, skew])) for switch in TREE.switches}
    looks = []
    for at in (10.0, 11.0):
        times = {switch: at + late[switch] for switch in TREE.switches}
        # 100 packets/s of every flow; 60 wait, or were lost, before the link.
        counts = {entry: 1000 + round(100 * times[entry[0]]) for entry in ENTRIES}
        counts |= {hop.out: counts[hop.out] - 60 for hop in HOPS if hop.ends == full}
        behind = {hop.out for hop in HOPS if hop.ends == full}
        for hop in HOPS:
            if hop.ends != full and behind & set(hop.into):
                counts[hop.out] = min(counts[entry] for entry in hop.into)
        looks.append(readings(counts, times))
    found = congested(HOPS, *looks)
    assert found in (None, full)
    if not any(set(hop.into) & {other.out for other in HOPS if other.ends == full} for hop in HOPS):
        assert found == full
    healthy = [readings(dict.fromkeys(ENTRIES, 1000 * n), dict.fromkeys(TREE.switches, n)) for n in (1.0, 2.0)]
    assert congested(HOPS, *healthy) is None


def test_what_a_link_carries_is_what_comes_out_of_it():
    (u, v), port = HOPS[0].ends, TREE.port(HOPS[0].ends[1], HOPS[0].ends[0])
    before = {v: (1.0, Counters({}, {(port, 1): (0, 0), (port + 1, 1): (0, 0)}))}
    after = {v: (3.0, Counters({}, {(port, 1): (9, 250_000), (port, 2): (9, 250_000), (port + 1, 1): (9, 10**9)}))}
    assert throughput((u, v), TREE, before, after) == 2.0


def test_plans_change_only_so_often_and_a_link_is_held_twice_as_long_each_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(congestion.time, "monotonic", lambda: clock[0])
    network = SimpleNamespace(
        topology=TREE, state=SimpleNamespace(slow={}, disturbed=-1e9), failover=SimpleNamespace(), jobs=[]
    )
    network.failover.limit = lambda link, mbps, why: network.state.slow.update({"-".join(link): mbps})
    network.failover.unlimit = lambda name, why: network.state.slow.pop(name)
    log: list[str] = []
    watch = Congestion(network, lambda switches: {}, log.append)  # type: ignore[arg-type]
    job, link = SimpleNamespace(name="one"), HOPS[0].ends
    name = "-".join(link)
    holds = []
    for _ in range(congestion.MOST_CHANGES):
        watch._limit(job, link, {0}, 1.0)  # type: ignore[arg-type]
        assert network.state.slow == {name: 1.0}
        began = clock[0]
        watch._limit(job, link, {0}, 0.5)  # type: ignore[arg-type]
        assert network.state.slow == {name: 1.0}, "it is known already"
        while network.state.slow:
            clock[0] += 1.0
            watch.look()
        holds.append(clock[0] - began)
    assert holds[:3] == [60.0, 120.0, 240.0]
    clock[0] = 0.0
    watch._changes.extend([0.0] * congestion.MOST_CHANGES)
    watch._limit(job, link, {0}, 1.0)  # type: ignore[arg-type]
    assert not network.state.slow
    assert "nothing is changed" in log[-1]
    watch._limit(job, HOPS[0].ends, {0}, 0.95 * TREE.bandwidth_mbps(*link))  # type: ignore[arg-type]
    assert not network.state.slow


def test_what_looks_like_a_queue_after_a_failure_is_not_taken_for_one(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(congestion.time, "monotonic", lambda: clock[0])
    asked: list[object] = []
    job = SimpleNamespace(
        name="one",
        roster=SimpleNamespace(tree_rates=lambda: {0: 0.0}, configs={}),
        updater=SimpleNamespace(versions=[]),
    )
    network = SimpleNamespace(topology=TREE, state=SimpleNamespace(slow={}, disturbed=0.0), jobs=[job])
    watch = Congestion(network, lambda switches: asked.append(switches) or {})  # type: ignore[arg-type,func-returns-value]
    monkeypatch.setattr(watch, "_look_at", lambda job: asked.append(job) or set())
    watch.look()
    assert asked == [job]
    network.state.disturbed = clock[0]
    while clock[0] < 100.0 + congestion.SETTLE_SECONDS - 1.0:
        clock[0] += 1.0
        watch.look()
    assert asked == [job], "nothing is asked while failures are answered"
    clock[0] += 1.0
    watch.look()
    assert asked == [job, job]


def test_link_that_carries_hardly_anything_keeps_a_part_of_its_bandwidth():
    """Who waits for something else sends little over it, and plans need a way."""
    taken = []
    network = SimpleNamespace(topology=TREE, state=SimpleNamespace(slow={}), failover=SimpleNamespace(), jobs=[])
    network.failover.limit = lambda link, mbps, why: taken.append(mbps)
    watch = Congestion(network, lambda switches: {})  # type: ignore[arg-type]
    watch._limit(SimpleNamespace(name="one"), HOPS[0].ends, {0}, 1e-3)  # type: ignore[arg-type]
    assert taken == [congestion.LEAST_PART * TREE.bandwidth_mbps(*HOPS[0].ends)]
