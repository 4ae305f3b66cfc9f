"""Random schedules of larger systems: every worker gets every exact result, whatever the network does."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4src.protocol import Verdict
from tests.model.simulation import Harm, Simulation
from tests.model.tree import ROOT, Tree, racks, star, two_level, with_direct
from tests.support.examples import examples, nightly

BOUNDED = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw a tree of up to 6 workers and 4 aggregation points in any shape; every point has a worker below it."""
    points = draw(st.integers(1, 4))
    parents = tuple(draw(st.sampled_from([ROOT, *range(point + 1, points)])) for point in range(points))
    inner = [point for point in range(points) if point not in parents]
    extra = draw(st.lists(st.sampled_from([ROOT, *range(points)]), max_size=6 - len(inner)))
    return Tree((*inner, *extra), parents)


probability = st.sampled_from([0.0, 0.01, 0.1, 0.3])
harms = st.builds(
    Harm,
    loss=probability,
    duplicate=probability,
    reorder=st.sampled_from([0.0, 0.2, 1.0]),
    reboot=st.sampled_from([0.0, 0.002, 0.02]),
    stray=st.sampled_from([0.0, 0.05]),
)


@BOUNDED
@given(trees(), st.sampled_from([1, 2, 4]), st.integers(1, 12), harms, st.integers(0, 2**32))
def test_every_worker_gets_every_exact_result(tree: Tree, slots: int, chunks: int, harm: Harm, seed: int) -> None:
    simulation = Simulation(tree, slots, chunks, harm, seed)
    simulation.run(limit=200_000)


@BOUNDED
@given(trees(), st.sampled_from([1, 4]), harms, st.integers(0, 2**32), st.integers(0, 300))
def test_a_new_epoch_in_the_middle_of_anything(tree: Tree, slots: int, harm: Harm, seed: int, before: int) -> None:
    Simulation(tree, slots, 8, harm, seed).run_with_new_epoch(5, before, limit=200_000)


@BOUNDED
@given(trees(), st.integers(0, 2**32), st.sampled_from([0.05, 0.5]))
def test_time_outs_that_come_too_early(tree: Tree, seed: int, early: float) -> None:
    simulation = Simulation(tree, 2, 8, Harm(reorder=0.5), seed)
    for _ in range(20_000):
        if simulation.done:
            return
        if len(simulation.network) < 50 and simulation.random.random() < early:
            simulation.early_resend()
        simulation.step()
    raise AssertionError("not done")


@pytest.mark.parametrize("side", [8, nightly(16)])
def test_many_workers_over_two_levels(side: int) -> None:
    """No switch distinguishes more than this many flows; the root distinguishes all workers."""
    simulation = Simulation(racks(side, side), 4, 2, Harm(), seed=1)
    simulation.run(limit=100_000)
    assert sum(switch.verdicts[Verdict.COMPLETED] for switch in simulation.switches) == (side + 1) * 2

    seldom = 0.0005 if side == 16 else 0.005  # of more packets
    harm = Harm(loss=seldom, duplicate=0.01, reorder=0.2, reboot=seldom)
    simulation = Simulation(racks(side, side), 4, 2, harm, seed=1)
    simulation.run(limit=200_000)
    assert all(len(worker.results) == 2 for worker in simulation.workers)
    assert sum(switch.verdicts[Verdict.FLUSHED] for switch in simulation.switches)


def test_without_faults_one_packet_per_chunk_reaches_the_root() -> None:
    """The purpose of the system: W contributions in, one sum out."""
    for tree, direct in ((star(4), 0), (two_level(3, 2), 0), (with_direct(4), 1), (racks(3, 3), 0)):
        simulation = Simulation(tree, 4, 20, Harm(), seed=1)
        at_root = 0
        deliver = simulation.deliver

        def count(kind: str, node: int, port: int, frame: bytes, deliver=deliver) -> None:  # type: ignore[no-untyped-def]
            nonlocal at_root
            at_root += kind == "root"
            deliver(kind, node, port, frame)

        simulation.deliver = count  # type: ignore[method-assign]
        while not simulation.done and (simulation.network or any(w.sent < w.chunks for w in simulation.workers)):
            simulation.step()
        assert simulation.done
        assert at_root == 20 * (1 + direct)
