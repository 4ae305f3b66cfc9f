"""The same inputs give the same bits: whatever the plan, the number of trees and lanes, what is lost, who stands
still, and what else was under way. What runs are the agents' own engines, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from controlplane.planner.plan import Plan
from controlplane.planner.plan.model import Assignment
from controlplane.planner.topology import Topology
from evaluation.recovery.networks import racks
from evaluation.recovery.virtual import VirtualNetwork
from tests.support.examples import examples
from worker_agent.collectives import MEAN, SUM, Collective

Array = NDArray[Any]
MBPS = 10.0


@dataclass(frozen=True)
class Way:
    """How the sums come about. shares: of the trees, one a parameter server; before: elements of an operation that is
    under way with it, so that it has other sequence numbers; slots: of the switches, which limit windows; lanes: of
    each tree."""

    shares: tuple[float, ...] = (1.0,)
    loss: float = 0.0
    late_ms: float = 0.0
    stops: tuple[int, ...] = ()
    before: int = 0
    slots: int = 1 << 14
    seed: int = 1
    direct: bool = False
    lanes: int = 1


ways = st.builds(
    Way,
    shares=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=4).map(tuple),
    loss=st.sampled_from([0.0, 0.02, 0.2]),
    late_ms=st.sampled_from([0.0, 3.0]),
    stops=st.lists(st.integers(0, 4), max_size=2, unique=True).map(tuple),
    before=st.sampled_from([0, 1, 500, 20_000]),
    slots=st.sampled_from([1 << 8, 1 << 14]),
    seed=st.integers(1, 100),
    direct=st.booleans(),
    lanes=st.sampled_from([1, 1, 2, 8]),
)


def network_of(workers: int, way: Way) -> tuple[Topology, Plan]:
    topology, plan = racks(workers, len(way.shares), MBPS)
    trees = [replace(tree, share=share / sum(way.shares)) for tree, share in zip(plan.trees, way.shares, strict=True)]
    if way.direct:  # no switch adds: each worker's packets come to the root
        leaf = topology.access_switch(plan.job.workers[0])  # of all: they are few
        for number, tree in enumerate(trees):
            routes = [Assignment(one.worker, tree.root, (one.worker, leaf, tree.root)) for one in tree.assignments]
            trees[number] = replace(tree, assignments=tuple(routes), relays=())
        plan = replace(plan, rate_mbps=plan.rate_mbps / workers)
    return topology, replace(plan, trees=tuple(trees))


def result_of(inputs: Sequence[Array], op: Collective, dtype: str, way: Way, values: int) -> bytes:
    """The bits that all workers have."""
    topology, plan = network_of(len(inputs), way)
    with VirtualNetwork(topology, plan, values=values, slots=way.slots, seed=way.seed, lanes=way.lanes) as network:
        workers = plan.job.workers
        network.faults(way.loss, way.late_ms / 1e3)
        others = [np.ones(way.before, np.float32) for _ in workers]
        sums = [one.copy() for one in inputs]
        for number, name in enumerate(workers):
            if way.before:
                network.submit(name, others[number], others[number])
            network.submit(name, inputs[number], sums[number], op, dtype)
            network.run(0.002)
        for number in way.stops:
            network.stop([(*workers, *plan.job.parameter_servers)[number % (len(workers) + 1)]], 0.5)
            network.run(0.3)
        for _ in range(4000):  # Where each link loses 20 % for good, five chunks a second are done.
            if network.worker_stats().operations_done == 1 + bool(way.before):
                break
            network.run(0.25)
        else:
            raise AssertionError(f"not done after {network.now} s: {network.worker_stats()}")
        found = {one.tobytes() for one in sums}
        assert len(found) == 1, "workers have other bits"
        return found.pop()


def inputs_of(seed: int, workers: int, elements: int, dtype: str) -> list[Array]:
    """Values of very different magnitudes, all finite."""
    random = np.random.default_rng(seed)
    scale = np.exp2(random.integers(-30, 30, -(-elements // 50))).repeat(50)[:elements]
    wide = (random.standard_normal((workers, elements)) * scale).astype(np.float32)
    if dtype == "bfloat16":
        return list((wide.view(np.uint32) >> 16).astype(np.uint16))
    return list(wide.astype(dtype) if dtype == "float32" else np.ldexp(wide, -18).astype(dtype))


@dataclass(frozen=True)
class Case:
    """What is added up. values: in a packet."""

    seed: int
    workers: int
    elements: int
    dtype: str = "float32"
    bits: int | None = None
    op: Collective = SUM
    values: int = 64


cases = st.builds(
    Case,
    seed=st.integers(0, 1000),
    workers=st.integers(1, 5),
    elements=st.integers(1, 6000) | st.integers(1, 100),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    bits=st.sampled_from([None, 32, 16, 8]),
    op=st.sampled_from([SUM, MEAN]),
    values=st.sampled_from([64, 256]),
)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(cases, ways)
@example(Case(1, 4, 5000, bits=8), Way((0.3, 0.7), 0.2, 3.0, (0, 4), 500, 1 << 8))
@example(Case(1, 3, 20), Way((0.5, 0.5), 0.2, 3.0, (4,), 1, direct=True))
@example(Case(0, 2, 1), Way(loss=0.2, before=20_000, slots=1 << 8))
@example(Case(5, 4, 3000, "bfloat16", None, MEAN, 256), Way((0.1, 0.2, 0.7), 0.02, direct=True))
def test_the_same_inputs_give_the_same_bits(case: Case, other: Way) -> None:
    inputs = inputs_of(case.seed, case.workers, case.elements, case.dtype)
    how = case.op.encoded(case.bits, case.seed)
    first = result_of(inputs, how, case.dtype, Way(), case.values)
    assert result_of(inputs, how, case.dtype, other, case.values) == first


def test_where_a_value_is_decides_its_chance_and_not_what_came_before() -> None:
    """Rounding by chance draws the same numbers again, and others with another seed."""
    inputs = inputs_of(3, 2, 2000, "float32")
    same = result_of(inputs, SUM.encoded(8, 1), "float32", Way(), 64)
    assert result_of(inputs, SUM.encoded(8, 1), "float32", Way((0.2, 0.8), before=500), 64) == same
    assert result_of(inputs, SUM.encoded(8, 2), "float32", Way(), 64) != same
