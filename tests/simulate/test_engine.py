"""The simulator agrees with closed forms and with a second, different max-min computation, and it conserves data."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.planner.generators import random_topology
from controlplane.planner.simulate import BigSwitch, LinkNetwork, Overlay, SimulationError, Simulator, follow, outage
from tests.support.examples import examples


def finish_times(simulator: Simulator, flows: list[tuple[float, list[int], int]]) -> list[float]:
    """Send all flows at time 0 and return when each finishes."""
    ends = [math.nan] * len(flows)

    def note(k: int) -> None:
        ends[k] = simulator.now

    for k, (size, path, priority) in enumerate(flows):
        simulator.send(size, path, lambda k=k: note(k), priority=priority)
    simulator.run()
    return ends


def test_one_bottleneck_is_processor_sharing() -> None:
    """Flows of sizes 1, 2 and 3 on 6 Mbit/s have rates of 2 each until 0.5 s, then 3 each until 5/6 s, then 6 until 1
    s.
    """
    ends = finish_times(Simulator([6.0]), [(1, [0], 0), (2, [0], 0), (3, [0], 0)])
    assert ends == pytest.approx([0.5, 5 / 6, 1.0])


def test_one_bottleneck_first_come_first_served() -> None:
    ends = finish_times(Simulator([6.0], "fcfs"), [(1, [0], 0), (2, [0], 0), (3, [0], 0)])
    assert ends == pytest.approx([1 / 6, 0.5, 1.0])


@pytest.mark.parametrize("hops", [1, 2, 5])
def test_parking_lot(hops: int) -> None:
    """A long flow over all links beside one short flow per link: every flow gets half, whatever the number of links."""
    simulator = Simulator([10.0] * hops)
    long = simulator.send(100, range(hops))
    short = [simulator.send(100, [k]) for k in range(hops)]
    assert [simulator.rate(f) for f in (long, *short)] == pytest.approx([5.0] * (hops + 1))


def test_max_min_textbook() -> None:
    """A flow that another link limits leaves its share to the others (as in Bertsekas and Gallager, 6.5.2)."""
    simulator = Simulator([1.0, 2.0, 10.0])
    a = simulator.send(9, [0])
    b = simulator.send(9, [0, 1, 2])
    c = simulator.send(9, [1])
    d = simulator.send(9, [2])
    assert [simulator.rate(f) for f in (a, b, c, d)] == pytest.approx([0.5, 0.5, 1.5, 9.5])


def test_links_are_directed() -> None:
    """Traffic in one direction does not slow down the other, and each direction has its own bandwidth."""
    overlay = Overlay([[0.0, 8.0], [2.0, 0.0]])
    ends = finish_times(Simulator(overlay.capacities), [(8, [overlay.link(0, 1)], 0), (8, [overlay.link(1, 0)], 0)])
    assert ends == pytest.approx([1.0, 4.0])
    links = LinkNetwork(random_topology(3, 2))
    u, v = next(iter(links.index))
    simulator = Simulator(links.capacities)
    there, back = (simulator.send(1.0, links.route(route)) for route in ((u, v), (v, u)))
    assert [simulator.rate(there), simulator.rate(back)] == pytest.approx(
        [links.capacities[links.link(u, v)], links.capacities[links.link(v, u)]]
    )


def test_strict_priorities_preempt_and_give_the_rest_away() -> None:
    simulator = Simulator([10.0, 4.0])
    low = simulator.send(10, [0], priority=1)
    high = simulator.send(8, [0, 1])
    assert simulator.rate(high) == pytest.approx(4)
    assert simulator.rate(low) == pytest.approx(6)
    assert simulator.run() == pytest.approx(2.0)


def test_preemption_of_a_flow_in_service() -> None:
    for sharing in ("fair", "fcfs"):
        simulator = Simulator([10.0], sharing)  # type: ignore[arg-type]
        ends: list[tuple[str, float]] = []
        simulator.send(10, [0], lambda s=simulator, e=ends: e.append(("low", s.now)), priority=5)
        simulator.at(
            0.5,
            lambda s=simulator, e=ends: s.send(5, [0], lambda: e.append(("high", s.now))),  # type: ignore[misc]
        )
        simulator.run()
        assert ends == [("high", pytest.approx(1.0)), ("low", pytest.approx(1.5))]


def test_multicast_on_layer_3_waits_for_the_slowest_receiver_and_on_layer_7_shares_the_upload() -> None:
    switch = BigSwitch([10.0, 10.0, 10.0], [10.0, 10.0, 2.0])
    simulator = Simulator(switch.capacities)
    simulator.send(10, switch.multicast(0, [1, 2]))
    assert simulator.run() == pytest.approx(5.0)
    ends = finish_times(Simulator(switch.capacities), [(10, switch.unicast(0, j), 0) for j in (1, 2)])
    assert ends == pytest.approx([10 / 8, 5.0])


def test_multicast_that_loses_its_slowest_receiver() -> None:
    switch = BigSwitch([10.0, 10.0, 10.0], [10.0, 10.0, 2.0])
    simulator = Simulator(switch.capacities)
    flow = simulator.send(10, switch.multicast(0, [1, 2]))
    simulator.at(1.0, lambda: simulator.set_path(flow, switch.multicast(0, [1])))
    assert simulator.run() == pytest.approx(1.8)


def test_coefficients_count_as_often_as_a_flow_uses_a_resource() -> None:
    simulator = Simulator([10.0])
    twice = simulator.send(10, [0], coefficients=[2.0])
    once = simulator.send(10, [0])
    assert simulator.rate(twice) == simulator.rate(once) == pytest.approx(10 / 3)
    simulator.run()
    assert simulator.carried(0) == pytest.approx(30)


def test_bandwidth_that_changes() -> None:
    """With 10 Mbit/s for 1 s, 5 for 2 s, then 20, 30 Mbit take 1 + 2 + 0.5 s."""
    simulator = Simulator([10.0])
    follow(simulator, 0, [(1.0, 5.0), (3.0, 20.0)])
    simulator.send(30, [0])
    assert simulator.run() == pytest.approx(3.5)


def test_flows_wait_through_an_outage() -> None:
    for sharing in ("fair", "fcfs"):
        simulator = Simulator([10.0], sharing)  # type: ignore[arg-type]
        outage(simulator, [0], 0.5, 2.5, [10.0])
        simulator.send(10, [0])
        assert simulator.run() == pytest.approx(3.0)


def test_a_node_that_is_down_takes_all_its_links_with_it() -> None:
    """Node 1 is away from 0.5 to 2.5 s: flows from and to it end at 3 s, others at 1 s."""
    overlay, switch = Overlay(np.full((3, 3), 10.0)), BigSwitch([10.0] * 3, [10.0] * 3)
    for network, paths in (
        (overlay, [[overlay.link(0, 2)], [overlay.link(0, 1)], [overlay.link(1, 2)]]),
        (switch, [switch.unicast(0, 2), switch.unicast(2, 1), switch.unicast(1, 0)]),
    ):
        simulator = Simulator(network.capacities)
        outage(simulator, network.node(1), 0.5, 2.5, network.capacities)
        assert finish_times(simulator, [(10.0, path, 0) for path in paths]) == pytest.approx([1.0, 3.0, 3.0])
    links = LinkNetwork(random_topology(3, 2))
    for name in ("v1", "h1"):
        assert {link for link, k in links.index.items() if k in links.node(name)} == {
            link for link in links.index if name in link
        }
    with pytest.raises(SimulationError, match="x does not exist"):
        links.node("x")


def test_a_run_that_cannot_end_says_so() -> None:
    simulator = Simulator([0.0])
    simulator.send(1, [0])
    assert simulator.run(until=5.0) == 5.0
    with pytest.raises(SimulationError, match="1 flows have no bandwidth"):
        simulator.run()


def test_remaining_can_be_changed_and_zero_finishes() -> None:
    simulator = Simulator([10.0])
    ends: list[float] = []
    flow = simulator.send(10, [0], lambda: ends.append(simulator.now))
    simulator.at(0.5, lambda: simulator.set_remaining_many([flow], [20]))
    simulator.run(1.0)
    assert simulator.remaining(flow) == pytest.approx(15)
    simulator.set_remaining_many([flow], [0])
    simulator.run()
    assert ends == [1.0] and simulator.remaining(flow) == 0


def test_groups_wait_for_their_flows_and_holds() -> None:
    simulator = Simulator([1.0, 1.0])
    ends: list[float] = []
    group = simulator.groups(1, lambda _: ends.append(simulator.now))[0]
    simulator.hold(group)
    simulator.send_many([1, 2], [0, 1], [group, group])
    simulator.at(5.0, lambda: simulator.release(group))
    simulator.run()
    assert ends == [5.0]


def test_flows_change_their_group_and_their_remaining_data() -> None:
    """Three flows of 10 Mbit share links of 10 Mbit/s; at 0.5 s two of them move to a group of their own, one with 1
    Mbit left and one with 20.
    """
    simulator = Simulator([10.0, 10.0, 10.0])
    ends: list[tuple[int, float]] = []
    first, second = simulator.groups(2, lambda group: ends.append((group, simulator.now)))
    flows = simulator.send_many([10, 10, 10], [0, 1, 2], [first] * 3)

    def change() -> None:
        simulator.set_groups(flows[1:], [second, second])
        simulator.set_remaining_many(flows[1:], [1.0, 20.0])

    simulator.at(0.5, change)
    simulator.run()
    assert ends == [(first, pytest.approx(1.0)), (second, pytest.approx(2.5))]


def test_promised_flows_start_when_their_group_is_done() -> None:
    """Flows 0 and 1 arrive at 1 s and 2 s; a flow that was promised for then takes 3 s more; its group has counted it
    from 0 on.
    """
    simulator = Simulator([1.0, 1.0, 1.0])
    ends: list[float] = []
    first, last = simulator.groups(1, None)[0], simulator.groups(1, lambda _: ends.append(simulator.now))[0]
    promised = simulator.send_many([3, 3], [2, 1], [last, last], after=[first, first])
    simulator.send_many([1, 2], [0, 1], [first, first])
    simulator.run(1.5)
    assert [simulator.rate(f) for f in promised] == [0, 0] and simulator.remaining(promised[0]) == 3
    simulator.run()
    assert ends == [5.0]


@pytest.mark.parametrize("sharing", ["fair", "fcfs"])
def test_promised_flows_are_as_if_a_callback_had_sent_them(sharing: str) -> None:
    """The order of arrival holds, too: at 1 s the promised flow comes after one that was sent later but arrived
    earlier.
    """

    def run(promise: bool) -> list[float]:
        simulator = Simulator([1.0, 1.0], sharing)  # type: ignore[arg-type]
        ends: dict[str, float] = {}
        first = simulator.groups(1, None)[0]
        second = simulator.groups(1, lambda _: ends.__setitem__("second", simulator.now))[0]
        if promise:
            simulator.send_many([2], [1], [second], after=[first])
        else:
            simulator.on_done(first, lambda _: simulator.send_many([2], [1], [second]))  # type: ignore[arg-type, return-value]
        simulator.send_many([1], [0], [first])
        simulator.at(0.5, lambda: simulator.send(3, [1], lambda: ends.__setitem__("other", simulator.now)))  # type: ignore[arg-type, return-value]
        simulator.run()
        return [ends["second"], ends["other"]]

    assert run(True) == run(False) == ([5.5, 3.5] if sharing == "fcfs" else [5.0, 5.5])


def test_promised_flows_can_be_cancelled_changed_and_chained() -> None:
    simulator = Simulator([1.0, 2.0])
    ends: list[float] = []
    a, b = simulator.groups(2, None)
    c = simulator.groups(1, lambda _: ends.append(simulator.now))[0]
    gone, moved = simulator.send_many([9, 4], [0, 0], [b, b], after=[a, a])
    simulator.send_many([0, 1], [0, 0], [c, c], after=[b, b])
    simulator.set_remaining_many([gone], [0])
    simulator.set_path(moved, [1])
    simulator.send_many([1], [0], [a])
    simulator.run()
    assert ends == [1 + 4 / 2 + 1]


def test_a_promise_that_nothing_keeps_is_an_error_and_rows_must_stand_together() -> None:
    simulator = Simulator([1.0])
    a, b, c = simulator.groups(3, None)
    with pytest.raises(SimulationError, match="stand together"):
        simulator.send_many([1, 1, 1], [0, 0, 0], [c, c, c], after=[a, b, a])
    with pytest.raises(SimulationError, match="wait for"):
        simulator.send_many([1, 1], [0, 0], [c, c], after=[a])
    with pytest.raises(SimulationError, match="does not exist"):
        simulator.send_many([1], [0], [c], after=[9])
    assert simulator.active == 0
    simulator.send_many([1], [0], [c], after=[a])
    with pytest.raises(SimulationError, match="never be done"):
        simulator.run()


def test_local_and_empty_flows_take_no_time() -> None:
    overlay = Overlay(np.full((2, 2), 5.0))
    ends = finish_times(Simulator(overlay.capacities, "fcfs"), [(7, [overlay.link(1, 1)], 0), (7, [], 0), (0, [1], 0)])
    assert ends == [0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s.send(1, [2]),
        lambda s: s.send(-1, [0]),
        lambda s: s.send(math.nan, [0]),
        lambda s: s.send(1, [0], coefficients=[0.0]),
        lambda s: s.send(1, [0, 0]),
        lambda s: s.send_many([1, 2], [0], [0, 0]),
        lambda s: s.set_capacity(5, 1.0),
        lambda s: s.set_capacity(0, -1.0),
        lambda s: s.at(-1.0, lambda: None),
        lambda s: s.remaining(3),
        lambda s: s.set_path(s.send(1, [0]), [9]),
        lambda s: s.set_groups([s.send(1, [0])], [9]),
        lambda s: s.set_groups([s.send(1, [0])], [0, 0]),
        lambda s: s.set_remaining_many([3], [1.0]),
        lambda s: s.set_remaining_many([s.send(1, [0])], [-1.0]),
        lambda s: s.set_remaining_many([s.send(1, [0])], []),
        lambda s: Simulator([math.nan]),
        lambda s: Simulator([1.0], "lifo"),
    ],
)
def test_wrong_calls_are_refused(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SimulationError):
        wrong(Simulator([1.0, 1.0]))


def reference_max_min(
    capacities: list[float], flows: list[tuple[float, list[int], int]], times: list[list[float]]
) -> list[float]:
    """Return max-min rates computed in another way: all rates of a class are raised together in small exact steps to
    the next full resource.

    times: how often each flow uses each resource of its path.
    """
    use = [dict(zip(path, often, strict=True)) for (_, path, _), often in zip(flows, times, strict=True)]
    left = list(capacities)
    rates = [0.0] * len(flows)
    for priority in sorted({p for _, _, p in flows}):
        growing = {k for k, (_, _, p) in enumerate(flows) if p == priority}
        while growing:
            users = {r: sum(use[k].get(r, 0.0) for k in growing) for r in range(len(left))}
            step = min(left[r] / users[r] for r in users if users[r])
            for k in growing:
                rates[k] += step
            for r, weight in users.items():
                left[r] -= step * weight
            full = {r for r, weight in users.items() if weight and left[r] <= 1e-9}
            growing -= {k for k in growing if full & set(flows[k][1])}
    return rates


paths = st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True)
flow_lists = st.lists(st.tuples(st.integers(1, 50).map(float), paths, st.integers(0, 2)), min_size=1, max_size=10)
capacity_lists = st.lists(st.integers(1, 20).map(float), min_size=5, max_size=5)


@settings(max_examples=examples(150), deadline=None)
@given(capacity_lists, flow_lists, st.data())
def test_rates_are_max_min(
    capacities: list[float], flows: list[tuple[float, list[int], int]], data: st.DataObject
) -> None:
    """The rates agree also for flows that use a resource more than once, as aggregation trees do."""
    times = [data.draw(st.lists(st.sampled_from([1.0, 1.0, 2.0, 3.0]), min_size=len(path), max_size=len(path)))
             for _, path, _ in flows]  # fmt: skip
    simulator = Simulator(capacities)
    ids = [
        simulator.send(size, path, priority=priority, coefficients=often)
        for (size, path, priority), often in zip(flows, times, strict=True)
    ]
    assert [simulator.rate(f) for f in ids] == pytest.approx(reference_max_min(capacities, flows, times), abs=1e-6)


@settings(max_examples=examples(150), deadline=None)
@given(capacity_lists, flow_lists, st.sampled_from(["fair", "fcfs"]), st.data())
def test_everything_arrives_and_no_resource_carries_more_than_it_can(  # type: ignore[no-untyped-def]
    capacities, flows, sharing, data
) -> None:
    simulator = Simulator(capacities, sharing)
    starts = [data.draw(st.integers(0, 5)) for _ in flows]
    ends = [math.nan] * len(flows)

    def start(k: int) -> None:
        size, path, priority = flows[k]
        simulator.send(size, path, lambda: ends.__setitem__(k, simulator.now), priority=priority)

    for k, begin in enumerate(starts):
        simulator.at(begin, lambda k=k: start(k))
    changes = data.draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=5))
    for begin, resource in changes:
        simulator.at(begin, lambda r=resource: simulator.set_capacity(r, capacities[r] / 2))
    middle = simulator.run(3.0)
    for r in range(5):
        assert simulator.carried(r) <= capacities[r] * middle * (1 + 1e-9)
    end = simulator.run()
    assert not any(map(math.isnan, ends))
    for r in range(5):
        sent = sum(size for size, path, _ in flows if r in path)
        assert simulator.carried(r) == pytest.approx(sent, rel=1e-6)
        assert sent <= capacities[r] * end * (1 + 1e-9)
    for k, (size, path, _) in enumerate(flows):
        assert ends[k] >= starts[k] + size / min(capacities[r] for r in path) - 1e-6


@settings(max_examples=examples(60), deadline=None)
@given(capacity_lists, flow_lists)
def test_first_come_first_served_is_strict_priority_by_arrival(  # type: ignore[no-untyped-def]
    capacities, flows
) -> None:
    served = Simulator(capacities, "fcfs")
    ranked = Simulator(capacities, "fair")
    one = [(size, path, 0) for size, path, _ in flows]
    many = [(size, path, k) for k, (size, path, _) in enumerate(flows)]
    assert finish_times(served, one) == pytest.approx(finish_times(ranked, many), rel=1e-6)


def test_the_same_seed_gives_the_same_events() -> None:
    def run() -> list[float]:
        rng = np.random.default_rng(3)
        simulator = Simulator(rng.uniform(1, 10, 20))
        flows = [(rng.uniform(1, 9), rng.choice(20, 3, replace=False).tolist(), 0) for _ in range(60)]
        return finish_times(simulator, flows)

    assert run() == run()


TWO_THREADS = """
import threading
from controlplane.planner.simulate import Simulator

def simulate(seed, ends):
    for _ in range(150):
        simulator = Simulator([10.0] * 4)
        flows = 40 + seed * 300
        for k in range(flows):
            simulator.send(1 + (k * 7 + seed) % 13, [k % 4, (k + 1) % 4], priority=k * 5 % 3)
        ends.append(simulator.run())

alone = [[], []]
for seed in (0, 1):
    simulate(seed, alone[seed])
together = [[], []]
threads = [threading.Thread(target=simulate, args=(seed, together[seed])) for seed in (0, 1)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert together == alone
"""


def test_threads_simulate_at_the_same_time() -> None:
    """Calls of the C library in several threads, each with a simulator of its own, give the same times as calls in
    sequence. They run in a process of their own, because a simulator that reads another's flows may crash it.
    """
    done = subprocess.run([sys.executable, "-c", TWO_THREADS], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
