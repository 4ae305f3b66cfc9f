"""CREW's decisions compared with the LP and brute force, and the training policy with closed forms."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from controlplane.planner.job import Job
from controlplane.planner.plan.task import Task
from controlplane.planner.simulate.plans import synchronisation_seconds
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.wan.crew import algorithm as crew
from controlplane.planner.strategies.wan.crew import all_reduce as allreduce
from controlplane.planner.strategies.wan.crew.links import Links
from controlplane.planner.strategies.wan.crew.policy import Crew, CrewSettings
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.policy import (
    Abort,
    Back,
    Changed,
    ContinueAlone,
    DefaultSplit,
    Event,
    Finished,
    Lost,
    Mend,
    Ready,
    Silent,
    Start,
)
from evaluation.crew.figures import broken, rounds, tree_seconds
from evaluation.crew.times import ring_time, server_time
from evaluation.crew.training import Setup, Training, one_reduce
from evaluation.wan.networks import overlay
from tests.support.examples import examples

matrices = st.integers(2, 7).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 20), min_size=n, max_size=n), min_size=n, max_size=n)
).map(lambda rows: np.array(rows, dtype=float))  # fmt: skip


def phase_times(bandwidth_mbps: np.ndarray, initiators: list[int], weights: np.ndarray) -> tuple[float, float]:
    """Return the seconds of scatter and of multicast per Mbit of the model, by equations (1a) and (1b); infinite over a
    link without bandwidth.
    """
    matrix = crew.mesh(bandwidth_mbps)
    x = np.asarray(weights, float)
    group = sorted(initiators)
    with np.errstate(divide="ignore", invalid="ignore"):
        scatter = np.where(x > 0, x / matrix[group].min(axis=0), 0.0)
        multicast = np.where(x > 0, x / matrix[:, group].min(axis=1), 0.0)
    return float(scatter.max()), float(multicast.max())


def lp_time(matrix: np.ndarray, members: list[int]) -> float | None:
    """Return the solver's optimum of LP (2) as printed: minimise t1 + t2, x_j <= a_j t1, x_j <= c_j t2, sum x = 1."""
    m = crew.mesh(matrix)
    a, c = m[members].min(axis=0), m[:, members].min(axis=1)
    n = len(m)
    rows = []
    for j in range(n):
        for k, rate in ((n, a[j]), (n + 1, c[j])):
            row = np.zeros(n + 2)
            row[j], row[k] = 1, -rate
            rows.append(row)
    total = np.concatenate([np.ones(n), [0, 0]])[None, :]
    cost = np.concatenate([np.zeros(n), [1, 1]])
    result = linprog(cost, A_ub=np.array(rows), b_ub=np.zeros(2 * n), A_eq=total, b_eq=[1])
    return result.fun if result.success else None


@settings(max_examples=examples(150), deadline=None)
@given(matrices, st.data())
def test_closed_form_is_the_lp_optimum(matrix: np.ndarray, data: st.DataObject) -> None:
    members = data.draw(st.lists(st.integers(0, len(matrix) - 1), min_size=2, unique=True))
    optimum = lp_time(matrix, members)
    if optimum is None:
        with pytest.raises(WanError):
            crew.optimal_split(matrix, members)
        return
    split = crew.optimal_split(matrix, members)
    assert split.weights.sum() == pytest.approx(1) and (split.weights >= 0).all()
    assert split.time == pytest.approx(optimum, rel=1e-6)
    assert sum(phase_times(matrix, members, split.weights)) <= split.time * (1 + 1e-9)


def own_links(matrix: np.ndarray) -> Links:
    """Return a matrix in which every connection has a link to itself."""
    nodes = [f"h{k}" for k in range(len(matrix))]
    pairs = {(u, v): [u, v] for u in nodes for v in nodes if u != v}
    return Links(nodes, pairs, {(u, v): float(matrix[int(u[1:]), int(v[1:])]) for u, v in pairs})


@settings(max_examples=examples(80), deadline=None)
@given(matrices, st.data())
def test_a_row_for_each_link_is_lp_2_where_connections_share_none(matrix: np.ndarray, data: st.DataObject) -> None:
    members = data.draw(st.lists(st.integers(0, len(matrix) - 1), min_size=2, unique=True))
    everyone = range(len(matrix))
    optimum = lp_time(matrix, members)
    if optimum is None:
        with pytest.raises(WanError):
            own_links(matrix).split(members, everyone)
        return
    split = own_links(matrix).split(members, everyone)
    assert split.time == pytest.approx(optimum, rel=1e-6)
    assert sum(phase_times(matrix, members, split.weights)) <= split.time * (1 + 1e-6)


def line(*mbps: float) -> Links:
    """Return a line of hosts h0, h1, h2, ..., each link with its rate both ways."""
    nodes = [f"h{k}" for k in range(len(mbps) + 1)]
    step = {True: 1, False: -1}
    routes = {
        (u, v): nodes[i : j + 1] if j > i else nodes[i : j - 1 if j else None : -1]
        for i, u in enumerate(nodes) for j, v in enumerate(nodes) if i != j
    }  # fmt: skip
    ends = [(nodes[k + (not up)], nodes[k + (not up) + step[up]]) for k in range(len(mbps)) for up in (True, False)]
    return Links(nodes, routes, dict(zip(ends, np.repeat(mbps, 2).tolist(), strict=True)))


def test_where_connections_share_a_link_the_split_counts_all_of_them() -> None:
    # The hosts are h0, h1 and, beyond them, h2 and h3. LP (2) takes h0's traffic to h1, h2 and h3 for three ways of 10
    # and 5. It is one link, and traffic that does not cross it costs nothing.
    links = line(10, 5, 5)
    assert crew.optimal_split(links.narrowest(), [0, 1]).weights[2:].sum() == pytest.approx(1 / 3)
    shared = links.split([0, 1], range(4))
    assert shared.weights[2:] == pytest.approx([0, 0], abs=1e-9)
    assert shared.time == pytest.approx(2 * 0.5 / 10)
    for members in ([0, 1], [0, 3], [0, 1, 2, 3]):
        together, apart = links.split(members, range(4), pipelined=True).time, links.split(members, range(4)).time
        # With both phases at once, the time is between the longer phase and the sum.
        assert apart / 2 - 1e-9 <= together <= apart + 1e-9


def test_the_policy_follows_reported_link_rates() -> None:
    links = line(100, 100)
    policy = Crew(["h0", "h1", "h2"], links.narrowest(), 2, links=links)
    for node in policy.nodes:
        policy.handle(Back(node), 0.0)
    before = links.split([0, 2], range(3)).time
    for link in (("h0", "h1"), ("h1", "h0")):
        policy.handle(Changed(*link, 10.0), 1.0)
    assert policy.belief[0, 2] == policy.belief[2, 0] == 10.0 and policy.belief[1, 2] == 100.0
    assert links.split([0, 2], range(3)).time == pytest.approx(10 * before)
    policy.handle(Changed("h0", "h2", 1.0), 2.0)  # h0 and h2 have no link.
    assert policy.belief[0, 2] == 10.0


def test_harmonic_split_is_worse_where_links_are_not_symmetric() -> None:
    matrix = np.array([[0, 10, 1], [1, 0, 10], [10, 1, 0]], dtype=float)
    best = crew.optimal_split(matrix, [0, 1]).time
    m = crew.mesh(matrix)
    a, c = m[[0, 1]].min(axis=0), m[:, [0, 1]].min(axis=1)
    harmonic = 1 / (1 / a + 1 / c)
    assert sum(phase_times(matrix, [0, 1], harmonic / harmonic.sum())) > best * 1.01


def test_one_worker_and_one_initiator() -> None:
    assert crew.optimal_split([[0.0]], [0]).time == 0
    split = crew.optimal_split(np.full((3, 3), 5.0), [1])
    assert split.time == 0 and split.weights.tolist() == [0, 1, 0]


@pytest.mark.parametrize("members", [[], [0, 0], [3], [-1]])
def test_wrong_initiators_are_refused(members: list[int]) -> None:
    with pytest.raises(WanError, match="initiator"):
        crew.optimal_split(np.ones((3, 3)), members)


def test_unreachable_workers_get_no_block() -> None:
    matrix = np.full((4, 4), 10.0)
    matrix[0, 3] = 0
    assert crew.optimal_split(matrix, [0, 1]).weights[3] == 0
    with pytest.raises(WanError, match="no worker has bandwidth"):
        crew.optimal_split(np.zeros((3, 3)), [0, 1])


weights = st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any).map(lambda w: np.array(w) / sum(w))


@settings(max_examples=examples(200), deadline=None)
@given(weights, st.integers(0, 500))
def test_every_chunk_is_in_one_block_of_about_its_weight(x: np.ndarray, chunks: int) -> None:
    blocks = crew.split_model(x, chunks)
    everything = [c for block in blocks for a, b in block for c in range(a, b)]
    assert everything == list(range(chunks))
    assert all(abs(crew.size(block) - w * chunks) <= 1 for block, w in zip(blocks, x, strict=True))
    assert all(crew.size(block) == 0 for block, w in zip(blocks, x, strict=True) if w == 0)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 10), st.integers(0, 300), st.data())
def test_rearrangement_moves_no_chunk_without_need(n: int, chunks: int, data: st.DataObject) -> None:
    draw = st.lists(st.integers(0, 50), min_size=n, max_size=n).filter(any)
    old, new = (np.array(data.draw(draw), float) for _ in range(2))
    old, new = old / old.sum(), new / new.sum()
    before = crew.split_model(old, chunks)
    after = crew.rearrange(new, before)
    flat = [{c for a, b in block for c in range(a, b)} for block in after]
    first = [{c for a, b in block for c in range(a, b)} for block in before]
    assert sorted(c for block in flat for c in block) == list(range(chunks))
    assert [len(b) for b in flat] == np.diff(crew.block_bounds(new, chunks)).tolist()
    for was, now in zip(first, flat, strict=True):
        kept = was & now
        assert len(kept) == min(len(was), len(now))
        assert not kept or max(kept) < min(was - now, default=chunks)  # The largest indexes leave.


def test_replacement_takes_the_least_loaded_connected_worker() -> None:
    matrix = np.full((5, 5), 10.0)
    matrix[0, 4] = 0
    loads = [0, 0, 9, 3, 0]
    assert crew.replacement(matrix, [0, 1], loads, 1.0, excluded=[0, 1]) == 3  # Worker 4 is not connected with 0.
    assert crew.replacement(matrix, [0, 1], loads, 1.0, excluded=[0, 1, 2, 3]) is None


def test_ring_takes_the_best_next_and_its_time_is_the_worst_links() -> None:
    matrix = np.array([[0, 9, 5, 1], [1, 0, 9, 5], [5, 1, 0, 9], [9, 5, 1, 0]], dtype=float)
    for seed in range(4):
        ring = allreduce.greedy_ring(matrix, [0, 1, 2, 3], seed)
        assert ring_time(matrix, ring) == pytest.approx(2 * 3 / 4 / 9)
    with pytest.raises(WanError):
        ring_time(np.zeros((3, 3)), [0, 1, 2])


def test_parameter_server_has_the_largest_average_bandwidth() -> None:
    matrix = np.full((3, 3), 5.0)
    assert allreduce.parameter_server(matrix) == 0
    matrix[2, 1] = 6
    assert allreduce.parameter_server(matrix) == 2
    assert allreduce.parameter_server(np.full((3, 3), 5.0), [[0, 1, 9], [1, 0, 1], [9, 1, 0]]) == 1


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 6), st.integers(0, 5))
def test_tree_packings_span_and_their_shares_sum_to_one(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.integers(1, 20, (n + 1, n + 1)).astype(float)
    members = sorted(rng.choice(n + 1, n, replace=False).tolist())
    blink = allreduce.blink(matrix, members)
    for packing in (blink, allreduce.topo_adopt(matrix, members, steps=50, seed=seed)):
        assert len(packing) <= 5
        assert sum(share for _, share in packing) == pytest.approx(1)
        for tree, _ in packing:
            assert {v for e in tree.edges for v in e} | {tree.root} == set(members)
            assert len(tree.edges) == len(members) - 1
        assert tree_seconds(packing, crew.mesh(matrix), 8.0, pipelined=False) >= 8 * (1 - 1e-9) * (
            allreduce.fullest_link(packing, matrix)
        )


# --- the policy on the simulator ---


def test_one_reduce_takes_scatter_then_multicast() -> None:
    """On equal links both phases of every block take x / b."""
    matrix = np.full((10, 10), 100.0)
    assert one_reduce(Setup("CREW", 3, model_mbit=1000), matrix, [0, 4, 7]) == pytest.approx(2 * 1000 / 10 / 100)
    assert one_reduce(Setup("OPR", 3, model_mbit=1000), matrix, [0, 4, 7]) == pytest.approx(2 * 1000 / 3 / 100)
    assert one_reduce(Setup("A2A", 3, model_mbit=1000), matrix, [0, 4, 7]) == pytest.approx(1000 / 100)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 1000))
def test_a_reduce_takes_between_half_of_t_and_t(seed: int) -> None:
    """The paper's T / 2 <= T_CREW <= T holds on any links."""
    rng = np.random.default_rng(seed)
    matrix = rng.uniform(1, 20, (8, 8))
    members = rng.choice(8, 3, replace=False).tolist()
    whole = 100 * crew.optimal_split(matrix, members).time
    assert whole / 2 * (1 - 1e-9) <= one_reduce(Setup(p=3, model_mbit=100), matrix, members) <= whole * (1 + 1e-9)


def test_scatter_that_does_not_block_starts_before_the_group_is_known() -> None:
    """Worker 0 is ready at 0, worker 1 at 10 s: by then 0 has scattered everything, in its final form on equal
    links.
    """
    matrix = np.full((4, 4), 10.0)

    def compute(worker: int) -> float:
        return [0.0, 10.0, 1e9, 1e9][worker]

    ends = {}
    for blocking in (True, False):
        run = Training(Setup(p=2, blocking=blocking, model_mbit=40), matrix, compute)
        ends[blocking] = run.run(13.0).durations[0]
    assert ends[True] == pytest.approx(2.0)
    assert ends[False] == pytest.approx(2.0)  # Worker 1 still has to scatter: the last block decides.
    assert run.result.rounds[:2].sum() >= 2


def test_early_scatter_delays_others() -> None:
    """Scatter of a second group shares links with the first group's multicast. Workers 0 and 1 scatter from 0 to 1 s,
    then worker 2 sends them its block until 2 s. Worker 2 has been ready itself since 0.5 s and scatters to them over
    the same links, which takes half a second more.
    """
    matrix = np.full((4, 4), 10.0)
    for setup, end in (
        (Setup(p=2), 2.0),
        (Setup(p=2, blocking=False), 2.5),
    ):
        pauses = {worker: iter([first, 1e9]) for worker, first in enumerate([0.0, 0.0, 0.5, 1e9])}
        run = Training(replace(setup, model_mbit=40), matrix, lambda worker, pauses=pauses: next(pauses[worker]))  # type: ignore[misc]
        assert run.run(20.0).durations == pytest.approx([end])


def test_with_all_workers_crew_and_opr_are_the_same() -> None:
    matrix = np.random.default_rng(1).uniform(5, 20, (6, 6))
    pair = [one_reduce(Setup(s, 6), matrix, list(range(6))) for s in ("CREW", "OPR")]
    assert pair[0] == pytest.approx(pair[1])


def test_a_worker_that_a_member_cannot_reach_is_replaced_or_left_out() -> None:
    """0 and 3 cannot reach each other: another worker adds 3's block, too, or there are three blocks from the start."""
    matrix = np.full((4, 4), 10.0)
    only_two = dict(enumerate([0.0, 0.0, 1e9, 1e9]))
    for aware in (True, False):
        seconds = []
        for avoid in (False, True):
            setup = Setup(p=2, model_mbit=30, network_aware=aware, broken=((0, 3),), avoid=avoid)
            run = Training(setup, matrix, only_two.__getitem__)
            seconds.append(run.run(5.0).durations[0])
            assert run.policy.replaced == (0 if avoid else len(run.result.durations) + 1)
        assert seconds == pytest.approx([2.25, 2.0])


@pytest.mark.parametrize("avoid", [False, True])
def test_workers_for_whose_group_nobody_can_add_go_on_without_a_round(avoid: bool) -> None:
    setup = Setup(p=2, broken=((0, 1), (0, 2), (0, 3)), avoid=avoid)
    result = Training(setup, np.full((4, 4), 10.0), [1.0, 1.0, 1e9, 1e9].__getitem__).run(4.5)
    assert result.rounds.sum() == 0 and result.trained.tolist() == [4, 4, 0, 0]


def test_broken_connections_slow_training_down() -> None:
    calm = rounds(Setup(p=3), ("N2", "T2"), 0, seconds=10, n=12)
    hit = rounds(Setup(p=3, broken=broken(8, 0, 12)), ("N2", "T2"), 0, seconds=10, n=12)
    assert 0 < hit <= calm


@pytest.mark.parametrize("schedule", ["FS", "FL", "TL", "C1", "C2"])
def test_runs_repeat_exactly(schedule: str) -> None:
    setup = Setup(p=3, schedule=schedule)
    assert rounds(setup, ("N1", "T1"), 4, seconds=3, n=8) == rounds(setup, ("N1", "T1"), 4, seconds=3, n=8)


def test_wrong_setups_are_refused() -> None:
    for wrong, message in (
        ({"schedule": "X"}, "known"),
        ({"blocking": False, "broken": ((0, 1),)}, "scatter"),
        ({"scheme": "A2A", "broken": ((0, 1),)}, "failover"),
    ):
        with pytest.raises(ValueError, match=message):
            Setup(**wrong)


# --- the policy's groups, whatever happens ---


class Agents:
    """Agents that do what the policy orders, and where each of them is."""

    def __init__(self, policy: Crew) -> None:
        self.policy = policy
        self.computing: set[str] = set()
        self.queued: set[str] = set()
        self.running: dict[int, tuple[Task, set[str]]] = {}
        self.away, self.silent = set(policy.nodes), set[str]()
        self.cut: set[frozenset[str]] = set()
        for node in policy.nodes:
            self.back(node, node)

    def tell(self, event: Event) -> None:
        for order in self.policy.handle(event, 0.0):
            match order:
                case Start(task):
                    members = set(task.participants)
                    assert len(members) == self.policy.p and members <= self.queued - self.away - self.silent
                    self.queued -= members
                    self.running[task.number] = task, members
                case Mend(task):
                    before, waiting = self.running[task.number]
                    for old, new in zip(before.trees, task.trees, strict=False):
                        if new.count < old.count:
                            assert not any(self.apart(old.root, node) for node in self.silent & set(old.receivers))
                    self.running[task.number] = task, waiting
                case Abort(number, again=True):
                    self.computing |= self.running.pop(number)[1] - self.away
                case ContinueAlone(node):
                    self.queued.remove(node)
                    self.computing.add(node)
                case other:
                    assert isinstance(other, DefaultSplit)

    def ready(self, node: str, _other: str) -> None:
        if node in self.computing and node not in self.silent:
            self.computing.remove(node)
            self.queued.add(node)
            self.tell(Ready(node, 60))

    def finish(self, node: str, _other: str) -> None:
        for number, (_, waiting) in list(self.running.items()):
            if node in waiting:
                waiting.remove(node)
                self.computing.add(node)
                if not waiting:
                    del self.running[number]
                self.tell(Finished(node, number))

    def lose(self, node: str, _other: str) -> None:
        if node not in self.away:
            self.away.add(node)
            self.computing.discard(node)
            self.queued.discard(node)
            self.tell(Lost(node))

    def silence(self, node: str, _other: str) -> None:
        if node not in self.away | self.silent:
            self.silent.add(node)
            if node in self.queued:
                self.queued.remove(node)
                self.computing.add(node)
            self.tell(Silent(node))

    def back(self, node: str, _other: str) -> None:
        if node in self.away:
            self.computing.add(node)
        self.away.discard(node)
        self.silent.discard(node)
        self.cut = {pair for pair in self.cut if node not in pair}
        self.tell(Back(node))

    def part(self, node: str, other: str) -> None:
        if node != other:
            self.cut.add(frozenset((node, other)))
            self.tell(Lost(node, other))

    def meet(self, node: str, other: str) -> None:
        if node != other:
            self.cut.discard(frozenset((node, other)))
            self.tell(Back(node, other))

    def apart(self, root: str, member: str) -> bool:
        return root in self.away or frozenset((root, member)) in self.cut

    def check(self) -> None:
        """Check that every agent is in one place, and that every block's agent lives and is reached by all members."""
        waiting = [node for _, those in self.running.values() for node in those]
        assert sorted([*self.computing, *self.queued, *waiting, *self.away]) == sorted(self.policy.nodes)
        assert {node for node, *_ in self.policy.queue} == self.queued
        for number, (task, _) in self.running.items():
            task.check()
            assert number in self.policy.running
            for tree in task.trees if self.policy.settings.scheme != "A2A" else ():
                assert not tree.count or not any(self.apart(tree.root, node) for node in tree.receivers)


EVENTS = [Agents.ready] * 8 + [Agents.finish] * 2 + [Agents.back] * 2 + [
    Agents.lose, Agents.silence, Agents.part, Agents.meet
]  # fmt: skip


@settings(max_examples=examples(400), deadline=None)
@given(st.data())
def test_every_group_is_whole_and_no_worker_gets_lost(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    scheme = data.draw(st.sampled_from(["CREW", "CREW", "OPR", "A2A"]))
    kind = CrewSettings(
        scheme=scheme, avoid=data.draw(st.booleans()), network_aware=data.draw(st.booleans()),
        blocking=scheme != "CREW" or data.draw(st.booleans()), chunk_values=1,
    )  # fmt: skip
    bandwidth = np.random.default_rng(data.draw(st.integers(0, 99))).uniform(1, 20, (n, n))
    agents = Agents(Crew([f"h{k}" for k in range(n)], bandwidth, data.draw(st.integers(1, min(n, 4))), kind))
    random = Random(data.draw(st.integers(0, 10**6)))  # hypothesis' own lists are too short
    for _ in range(80):
        random.choice(EVENTS)(agents, random.choice(agents.policy.nodes), random.choice(agents.policy.nodes))
        agents.check()


@pytest.mark.parametrize("scheme", ["CREW", "OPR", "A2A"])
def test_one_worker_trains_alone(scheme: str) -> None:
    run = Training(Setup(scheme, 1), np.ones((1, 1)), lambda _: 0.5)
    assert run.run(2.1).rounds.tolist() == [4]


def test_links_without_bandwidth_are_avoided_or_named() -> None:
    matrix = np.full((4, 4), 10.0)
    matrix[1, 3] = 0
    # There are three blocks, none at 3.
    assert one_reduce(Setup(p=2, model_mbit=30), matrix, [0, 1]) == pytest.approx(2.0)
    with pytest.raises(WanError, match="no worker has bandwidth"):
        one_reduce(Setup(p=2), np.zeros((3, 3)), [0, 1])
    with pytest.raises(WanError, match="worker 1 and the server 3"):
        server_time(matrix, [0, 1], 3)
    for packing in (allreduce.blink, allreduce.topo_adopt):
        with pytest.raises(WanError, match="no spanning tree"):
            packing(np.zeros((3, 3)), [0, 1])


def test_server_time_is_the_slowest_upload_and_then_the_slowest_download() -> None:
    matrix = np.array([[0, 4, 2], [8, 0, 8], [5, 1, 0]], dtype=float)
    assert server_time(matrix, [0, 1, 2], 0) == pytest.approx(1 / 5 + 1 / 2)
    assert server_time(matrix, [1], 1) == 0


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(2, 6), st.data())
def test_a_plan_for_a_group_has_the_whole_group_in_every_tree(n: int, data: st.DataObject) -> None:
    """In the strategy a group is a job of its workers, and all sites may aggregate. The shares are those of LP (2)."""
    rows = st.lists(st.integers(1, 30).map(float), min_size=n * n, max_size=n * n)
    matrix = np.array(data.draw(rows)).reshape(n, n)
    group = data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True))
    graph = nx.DiGraph()
    graph.add_weighted_edges_from([(i, j, matrix[i, j]) for i in range(n) for j in range(n) if i != j], weight="mbps")
    job = Job("group", tuple(f"h{i}" for i in group), tuple(f"p{i}" for i in range(n)), 1_000_000)
    topology = overlay(graph)
    plan = get_strategy("crew")(topology, job)
    plan.check(topology)
    split = crew.optimal_split(matrix, group)
    assert [plan.split[f"p{i}"] for i in range(n)] == pytest.approx(split.weights.tolist(), abs=1e-9)
    for tree in plan.trees:
        assert {a.worker for a in tree.assignments} == set(job.workers)
        assert {a.point for a in tree.assignments} == {tree.root}
    if len(group) > 1:
        # Flows are served first come, first served, as in CREW: with fair sharing, multicasts would delay scatter on
        # the same link.
        stored = synchronisation_seconds(plan, topology, stored=True, sharing="fcfs")
        assert 8 * split.time / 2 <= stored <= 8 * split.time * (1 + 1e-3)
