"""The simulator carries out the same tasks: its times can be computed by hand, and its events are in the right
order.
"""

from collections.abc import Sequence

import networkx as nx
import numpy as np
import pytest

from controlplane.planner.plan.task import Edge, Sending, SumTree, Task
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.wan.policy import Event, FollowPlan, Order, Rounds, Start
from controlplane.planner.topology import Topology
from controlplane.planner.wan_networks import netstorm_draw, overlay
from evaluation.wan.networks import whole_job
from overlay.core.framing import FRAME_HEADERS
from overlay.core.measurement import ClockOffset, ThroughputEstimator
from overlay.core.message import HEADER_BYTES
from overlay.core.tcp import Connections
from overlay.sim.network import TcpSettings
from overlay.sim.simulation import SEGMENT_BYTES, Simulation, seconds_of
from tests.overlay.test_tcp import mathis_mbps
from topologies.wan.networks import emulated

NODES = ("h0", "h1")


class One(Rounds):
    """A policy that always uses the same tree."""

    def __init__(self, tree: SumTree, **options: int) -> None:
        super().__init__(tree.contributors)
        self.tree, self.options = tree, options

    def task(self, number: int, values: int, now: float) -> Task:
        return Task(number, values, (self.tree,), **self.options)


class Waits(Rounds):
    """A policy that has no task of its own."""

    def handle(self, event: Event, now: float) -> Sequence[Order]:
        return ()


def line(*mbps: float) -> nx.DiGraph:
    graph = nx.DiGraph()
    for k, rate in enumerate(mbps):
        graph.add_edge(k, k + 1, mbps=rate)
        graph.add_edge(k + 1, k, mbps=rate)
    return graph


def frames(values: int) -> int:
    return -(-(values * 4 + HEADER_BYTES) // SEGMENT_BYTES)


def wire_seconds(values: int, chunks: int, mbps: float) -> float:
    """Return the seconds of chunks that leave one by one."""
    count = chunks * frames(values // chunks)
    return (values * 4 + chunks * HEADER_BYTES + count * FRAME_HEADERS) * 8e-6 / mbps


def acknowledged_seconds(values: int, chunks: int, mbps: float) -> float:
    """Return the seconds that their acknowledgements take of the other direction."""
    return chunks * frames(values // chunks) / 2 * FRAME_HEADERS * 8e-6 / mbps


def test_two_sites_there_and_back():
    values, chunk = 100_000, 10_000
    tree = SumTree("h0", 0, values, (Edge("h1", "h0"),), (Edge("h0", "h1"),), NODES, NODES)
    found = seconds_of(One(tree, chunk_values=chunk, window=0), overlay(line(100.0)), values)
    # Up and down are pipelined: the last chunk comes back after all have gone up, beside acknowledgements of the
    # others. A partial frame of a chunk that waits for the next chunk goes with that.
    whole = wire_seconds(values, 10, 100.0) + wire_seconds(chunk, 1, 100.0) + acknowledged_seconds(values, 10, 100.0)
    assert found == [pytest.approx(whole, rel=0.01)]


def test_a_window_of_one_waits_for_each_result():
    values, chunk = 100_000, 10_000
    tree = SumTree("h0", 0, values, (Edge("h1", "h0"),), (Edge("h0", "h1"),), NODES, NODES)
    found = seconds_of(One(tree, chunk_values=chunk, window=1), overlay(line(100.0)), values)
    each_way = wire_seconds(values, 10, 100.0) + acknowledged_seconds(values, 10, 100.0)
    assert found == [pytest.approx(2 * each_way, rel=2e-3)]  # Nobody waits for the last acknowledgement.


def test_forwarding_nodes_carry_the_data_again():
    values = 10_000
    up, down = Edge("h2", "h0", ("h1",)), Edge("h0", "h2", ("h1",))
    tree = SumTree("h0", 0, values, (up,), (down,), ("h0", "h2"), ("h0", "h2"))
    found = seconds_of(One(tree, chunk_values=values), overlay(line(100.0, 50.0)), values)
    there = wire_seconds(values, 1, 100.0) + wire_seconds(values, 1, 50.0)
    at_the_root = acknowledged_seconds(values, 1, 100.0)  # It leaves the root together with the result.
    assert found == [pytest.approx(2 * there + at_the_root, rel=1e-3)]


def far(*mbps: float, delay_ms: float) -> Topology:
    """Return sites in a row, with the delay that the emulated WAN has."""
    return emulated(line(*mbps), delay_ms)


def copied(values: int, chunk: int, topology: Topology, last: str) -> float:
    """Return the seconds in which h0's values reach the last site over one connection."""
    tree = SumTree("h0", 0, values, (), (Edge("h0", last),), ("h0",), (last,))
    found: list[float] = []
    run = Simulation(
        One(tree, chunk_values=chunk, op="copy"), topology, values, finished=lambda task, s: found.append(s)
    )
    run.run(1)
    return found[0]


def test_a_partial_frame_goes_with_the_next_chunk():
    # 358 values and the header are 1,496 bytes: alone two frames, in a row one frame for each and a few more.
    topology, values = far(1.0, delay_ms=0.0), 358 * 50
    stream = (values * 4 + 50 * HEADER_BYTES) * (1 + FRAME_HEADERS / SEGMENT_BYTES) * 8e-6
    assert copied(values, 358, topology, "h1") == pytest.approx(stream, rel=0.01)
    assert copied(358, 358, topology, "h1") == pytest.approx(wire_seconds(358, 1, 1.0), rel=0.01)


def test_a_connection_is_open_or_is_after_a_round_trip(monkeypatch):
    topology, values = far(1.0, 1.0, 1.0, delay_ms=20.0), 1000
    # Each of the two switches between receives a whole frame before it forwards it.
    frame = (SEGMENT_BYTES + FRAME_HEADERS) * 8e-6
    there = 3 * 0.02 + wire_seconds(values, 1, 1.0) + 2 * frame
    assert copied(values, values, topology, "h3") == pytest.approx(there, rel=1e-3)
    monkeypatch.setattr("overlay.net.transport.KEPT_CONNECTIONS", -1)
    assert copied(values, values, topology, "h3") == pytest.approx(2 * 3 * 0.02 + there, rel=1e-3)


def test_acknowledgements_take_their_part_of_the_other_direction():
    # Both send all the time; when only one does, it has the link for itself.
    values, chunk = 50_000, 1_000
    trees = [
        SumTree(root, 0, values, (), (Edge(root, other),), (root,), (other,))
        for root, other in (("h0", "h1"), ("h1", "h0"))
    ]
    seconds = []
    for each in (trees[:1], trees):
        run = Simulation(Waits(NODES), far(1.0, delay_ms=0.0), values)
        for number, tree in enumerate(each):
            run.carry_out([Start(Task(number, values, (tree,), op="copy", chunk_values=chunk))])
        seconds.append(run.run(len(each)))
    acknowledged = FRAME_HEADERS / 2 / (SEGMENT_BYTES + FRAME_HEADERS)
    assert seconds[1] / seconds[0] == pytest.approx(1 + acknowledged, rel=5e-3)


def test_loss_slows_a_connection_as_mathis_has_it():
    # The rate is below that of the formula: a window has to grow first, and losses halve it at random.
    values = 1_000_000
    tree = SumTree("h0", 0, values, (Edge("h1", "h0"),), (Edge("h0", "h1"),), NODES, NODES)
    topology = overlay(line(1000.0))  # Without a stated delay, 1 ms is assumed.
    slow = seconds_of(One(tree, chunk_values=values), topology, values, tcp=TcpSettings(loss=0.01))[0]
    assert slow == pytest.approx(2 * wire_seconds(values, 1, mathis_mbps(1e-3, 0.01)), rel=0.1)


def test_random_losses_are_determined_by_their_seed():
    values, topology = 50_000, far(3.0, delay_ms=30.0)
    tree = SumTree("h0", 0, values, (Edge("h1", "h0"),), (Edge("h0", "h1"),), NODES, NODES)
    found = [
        seconds_of(One(tree, chunk_values=1000), topology, values, tcp=TcpSettings(Connections(2, 2), 0.01, seed))
        for seed in (1, 1, 2)
    ]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("strategy", ["wan", "netstorm", "star", "crew", "apsp"])
def test_no_plan_is_faster_than_its_bound_and_fine_chunks_come_near(strategy):
    graph = netstorm_draw(np.random.default_rng(2))
    topology, values = overlay(graph), 2_000_000
    plan = get_strategy(strategy)(topology, whole_job(graph, 4 * values), seed=1)
    found = seconds_of(
        FollowPlan(plan, topology, sending=Sending(paced=False, chunk_values=8192, window=256)), topology, values
    )
    proven = get_strategy("wan")(topology, whole_job(graph, 4 * values)).proven_mbps
    assert found[0] >= values * 32e-6 / proven
    if strategy == "netstorm":
        assert found[0] <= 1.3 * values * 32e-6 / plan.rate_mbps


def test_rounds_follow_one_another_with_computing_between():
    tree = SumTree("h0", 0, 10, (Edge("h1", "h0"),), (Edge("h0", "h1"),), NODES, NODES)
    run = Simulation(One(tree), overlay(line(100.0)), 10, compute=lambda node: 2.0 if node == "h1" else 1.0)
    assert run.run(3) == pytest.approx(6.0, abs=0.1)


def test_chunks_that_waited_behind_one_another_tell_of_the_link_and_not_of_the_wait():
    through = ThroughputEstimator(1)
    assert through.arrived(0.0, 1.0, 8.0) == 8.0
    # Three more packets are all stamped at once, and each arrives a second after the one before.
    assert [through.arrived(2.0, 2.0 + k, 8.0) for k in (1, 2, 3)] == [8.0, 8.0, 8.0]
    assert through.arrived(6.0, 10.0, 8.0) == 2.0  # The link has become slower.


def test_a_link_that_becomes_slower_while_it_is_busy_is_known_after_as_many_chunks_as_the_equation_has():
    """Chunks of 8 wait behind one another all the time; the link carries 80 a second, and 20 from 10 s on."""
    through = ThroughputEstimator(4)
    arrivals = [k / 10 for k in range(1, 101)] + [10 + 0.4 * k for k in range(1, 11)]
    found = [through.arrived(0.0, now, 8.0) for now in arrivals]
    assert found[:3] == [None, None, None]
    assert found[3:100] == [pytest.approx(80.0)] * 97
    assert found[103:] == [pytest.approx(20.0)] * (len(found) - 103)
    assert [found[k] > found[k + 1] for k in range(99, 103)] == [True] * 4


def test_chunks_that_a_paused_agent_finds_at_once_do_not_count_as_faster_than_the_link():
    through = ThroughputEstimator(4)
    for k in range(1, 21):
        through.arrived(0.0, k / 100, 1.0)  # 100 a second
    # Nothing is read for 0.3 s, then the 30 chunks of this time one after the other, within a millisecond.
    burst = [through.arrived(0.0, 0.5 + k * 1e-5, 1.0) for k in range(30)]
    assert burst[-1] == pytest.approx(100.0, rel=0.05)
    after = [through.arrived(0.0, 0.5 + k / 100, 1.0) for k in range(1, 20)]
    assert all(90 <= rate <= 110 for rate in after)


def test_small_chunks_do_not_measure_but_others_wait_behind_them():
    through = ThroughputEstimator(1)
    assert through.arrived(0.0, 1.0, 1.0, counts=False) is None
    assert through.arrived(0.0, 2.0, 8.0) == 8.0


def test_the_quickest_exchange_tells_the_offset_of_the_clocks():
    offset = ClockOffset()
    assert offset.seconds is None
    offset.answered(10.0, 100.0, 13.0)
    offset.answered(20.0, 108.55, 20.1)  # The other clock is 88.5 ahead.
    offset.answered(30.0, 120.0, 33.0)
    assert offset.seconds == pytest.approx(88.5)
