"""CREW and NetStorm over time: in the simulator, and the same policy objects on sockets."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from controlplane.planner.plan.task import Task
from controlplane.planner.strategies.wan.apsp.policy import Apsp
from controlplane.planner.strategies.wan.crew import algorithm as crew
from controlplane.planner.strategies.wan.crew.policy import Crew, CrewSettings
from controlplane.planner.strategies.wan.netstorm.policy import NetStorm, NetStormSettings
from controlplane.planner.strategies.wan.policy import Abort, Back, Finished, Lost, Measured, Mend, Ready, Start
from controlplane.planner.wan_networks import netstorm_draw, overlay
from overlay.sim.simulation import Simulation, seconds_of
from tests.overlay.test_agents import SECONDS, running, until


@pytest.mark.parametrize("kind", [Apsp, NetStorm])
def test_connections_of_an_agent_that_is_back_are_whole(kind):
    """Its neighbours found them broken as its process ended, before the coordinator had noticed that."""
    nodes = [f"h{k}" for k in range(5)]
    policy = kind(named(mesh(5)))
    policy.settings = replace(policy.settings, aware=False) if kind is NetStorm else policy.settings

    def hops(now: float) -> set[tuple[str, str]]:
        (start,) = [order for node in nodes for order in policy.handle(Ready(node, 1000), now)]
        return set(start.task.hops())

    before = hops(0.0)
    lost = {pair for pair in before if "h1" in pair}
    assert lost
    for sender, receiver in lost:
        policy.handle(Lost(*({sender, receiver} - {"h1"}), "h1"), 1.0)
    assert hops(100.0) != before
    policy.handle(Lost("h1"), 101.0)
    policy.handle(Back("h1"), 102.0)
    assert hops(200.0) == before


def named(graph: nx.DiGraph) -> nx.DiGraph:
    """Return the sites' graph with their agents as nodes."""
    return nx.relabel_nodes(graph, {v: f"h{v}" for v in graph})


def mesh(n: int, seed: int = 1) -> nx.DiGraph:
    rng = np.random.default_rng(seed)
    graph = nx.DiGraph()
    for u in range(n):
        for v in range(n):
            if u != v:
                graph.add_edge(u, v, mbps=float(rng.integers(50, 500)))
    return graph


def matrix(graph: nx.DiGraph) -> np.ndarray:
    n = len(graph)
    return np.array([[graph.edges[u, v]["mbps"] if u != v else np.inf for v in range(n)] for u in range(n)])


class TestCrew:
    nodes = tuple(f"h{k}" for k in range(5))

    def test_the_first_p_that_are_ready_are_a_group_and_blocks_follow_lp_2(self):
        bandwidth = matrix(mesh(5))
        policy = Crew(self.nodes, bandwidth, 3)
        for node in self.nodes:
            policy.handle(Back(node), 0.0)
        assert policy.handle(Ready("h4", 1000), 0.0) == [] and policy.handle(Ready("h0", 1000), 0.1) == []
        (start,) = policy.handle(Ready("h2", 1000), 0.2)
        assert isinstance(start, Start)
        start.task.check()
        assert start.task.participants == ("h4", "h0", "h2")
        weights = crew.optimal_split(bandwidth, [4, 0, 2]).weights
        counts = {tree.root: tree.count for tree in start.task.trees}
        for k, node in enumerate(self.nodes):
            assert counts.get(node, 0) == pytest.approx(1000 * weights[k], abs=1)

    def started(self, p=3, scheme="CREW"):
        policy = Crew(self.nodes, matrix(mesh(5)), p, settings=CrewSettings(scheme=scheme))
        for node in self.nodes:
            policy.handle(Back(node), 0.0)
        (start,) = [o for node in self.nodes[:p] for o in policy.handle(Ready(node, 1000), 0.0)]
        return policy, start.task

    def test_a_lost_aggregators_block_goes_to_the_worker_of_equation_3(self):
        policy, task = self.started()
        lost = next(k for k, tree in enumerate(task.trees) if tree.root not in task.participants)
        helper = task.trees[lost].root
        loads = [sum(tree.count for tree in task.trees if tree.root == node) for node in self.nodes]
        belief = matrix(mesh(5))
        np.fill_diagonal(belief, np.inf)
        loads[self.nodes.index(helper)] = 0
        chosen = crew.replacement(belief, [0, 1, 2], loads, task.trees[lost].count, [self.nodes.index(helper)])
        (mend,) = policy.handle(Lost(helper), 1.0)
        assert isinstance(mend, Mend) and mend.task.number == task.number
        mend.task.check()
        assert helper not in mend.task.nodes and len(mend.task.trees) == len(task.trees) + 1
        new = mend.task.trees[-1]
        assert new.root == self.nodes[chosen]
        assert (new.first, new.count) == (task.trees[lost].first, task.trees[lost].count)
        assert mend.task.trees[lost].count == 0
        assert [t for k, t in enumerate(mend.task.trees[:-1]) if k != lost] == [
            t for k, t in enumerate(task.trees) if k != lost
        ]
        assert policy.handle(Lost(helper), 1.0) == []  # No task depends on it any more.
        assert Task.from_json(mend.task.to_json()) == mend.task

    def test_a_cut_between_two_members_moves_both_blocks_or_repeats_the_task(self):
        policy, task = self.started()
        (mend,) = policy.handle(Lost("h0", "h1"), 1.0)
        mend.task.check()
        assert {task.trees[k].root for k, t in enumerate(mend.task.trees[: len(task.trees)]) if not t.count} == {
            "h0", "h1",
        }  # fmt: skip
        assert all({e.sender, e.receiver} != {"h0", "h1"} for t in mend.task.trees for e in (*t.up, *t.down) if t.count)
        opr, task = self.started(2, "OPR")
        (abort,) = opr.handle(Lost("h0", "h1"), 1.0)  # Nobody else aggregates, and both do.
        assert isinstance(abort, Abort) and abort.again

    def test_a_lost_member_has_the_task_done_again_without_it(self):
        policy, task = self.started()
        (abort,) = policy.handle(Lost("h2"), 1.0)
        assert abort == Abort(task.number, "h2 is lost", again=True)
        helper = "h2"
        (again,) = [o for node in ("h0", "h1", "h3") for o in policy.handle(Ready(node, 1000), 1.0)]
        again.task.check()
        assert helper not in again.task.nodes
        for node in again.task.participants:
            policy.handle(Finished(node, again.task.number), 2.0)
        assert not policy.running

    def test_trees_avoid_a_broken_connection(self):
        policy = Crew(self.nodes, matrix(mesh(5)), 2)
        for node in self.nodes:
            policy.handle(Back(node), 0.0)
        policy.handle(Lost("h0", "h3"), 0.0)
        (start,) = [o for node in ("h0", "h1") for o in policy.handle(Ready(node, 1000), 0.0)]
        assert all({e.sender, e.receiver} != {"h0", "h3"} for t in start.task.trees for e in (*t.up, *t.down))

    def test_simulated_time_is_that_of_the_lp_when_chunks_are_whole_blocks(self):
        graph = mesh(6)
        bandwidth, values = matrix(graph), 1_000_000
        policy = Crew([f"h{k}" for k in range(6)], bandwidth, 6, settings=CrewSettings(chunk_values=values))
        found = seconds_of(policy, overlay(graph), values)[0]
        wire = (1514 + 66 / 2) / 1448  # These are frames, and acknowledgements of the opposite traffic.
        assert found == pytest.approx(crew.optimal_split(bandwidth, range(6)).time * values * 32e-6 * wire, rel=0.02)

    def test_groups_of_p_go_more_rounds_than_everyone_together(self):
        graph = mesh(6)
        rng = np.random.default_rng(3)

        def rounds(policy: Crew) -> float:
            done = [0]
            run = Simulation(
                policy,
                overlay(graph),
                2_000_000,
                compute=lambda node: float(rng.uniform(0.1, 2.0)),
                finished=lambda task, s: done.__setitem__(0, done[0] + len(task.participants)),
            )
            run.run(10**9, seconds=60.0)
            return done[0]

        nodes = [f"h{k}" for k in range(6)]
        assert rounds(Crew(nodes, matrix(graph), 3)) > 1.2 * rounds(Crew(nodes, matrix(graph), 6))

    def test_on_sockets_an_aggregator_dies_and_no_member_notices(self):
        nodes = tuple(f"h{k}" for k in range(4))
        policy = Crew(nodes, matrix(mesh(4)), 3, settings=CrewSettings(chunk_values=64))
        with running(policy) as (_, agents):
            given = {node: np.full(400_000, k, np.float32) for k, node in enumerate(nodes[:3])}
            futures = [agents[node].synchronise_async(given[node]) for node in given]
            until(lambda: agents["h3"].tasks.running or all(f.done() for f in futures))
            agents["h3"].close()
            for future in futures:
                future.result(SECONDS)
            for values in given.values():
                np.testing.assert_array_equal(values, np.float32(1.0))

    def test_on_sockets_only_the_lost_aggregators_block_is_done_again(self):
        policy = Crew(self.nodes, matrix(mesh(5)), 3, settings=CrewSettings(chunk_values=256))
        with running(policy) as (_, agents):
            for name in ("h3", "h4"):  # They receive and aggregate nothing: the task is in its middle.
                agents[name].dispatcher.deliver = lambda *message: None
            given = {node: np.full(20_000, k, np.float32) for k, node in enumerate(self.nodes[:3])}
            futures = [agents[node].synchronise_async(given[node]) for node in given]
            until(lambda: agents["h3"].tasks.running and agents["h4"].tasks.running)
            agents["h3"].close()
            until(lambda: policy.replaced or any(f.done() for f in futures))
            agents["h4"].close()
            for future in futures:
                future.result(SECONDS)
            for values in given.values():
                np.testing.assert_array_equal(values, np.float32(1.0))
            assert policy.numbers == 1 and policy.replaced >= 2, "blocks were replaced, nothing was done again"
            assert all(agents[node].counters["mended"] >= 2 for node in given)

    def test_in_the_simulator_a_replaced_block_costs_less_than_the_task_again(self):
        graph = mesh(5)
        times = {}
        for name in ("mended", "again", "undisturbed"):
            policy = Crew(self.nodes, matrix(graph), 3, settings=CrewSettings(chunk_values=10_000))
            if name == "again":
                policy.with_others = lambda task, trees: None
            run = Simulation(policy, overlay(graph), 1_000_000)

            def lose(run=run, policy=policy):
                (task, _) = next(iter(policy.running.values()))
                run.tell(Lost(next(t.root for t in task.trees if t.root not in task.participants)))

            if name != "undisturbed":
                run.sim.after(0.05, lose)
            times[name] = run.run(1)
        assert times["undisturbed"] < times["mended"] < times["again"]


class TestNetStorm:
    def test_trees_follow_the_measurements_and_roots_stay(self):
        graph = named(netstorm_draw(np.random.default_rng(1)))
        policy = NetStorm(graph, settings=NetStormSettings(chunk_values=1000, update=5.0))
        (first,) = [o for node in policy.nodes for o in policy.handle(Ready(node, 90_000), 0.0)]
        first.task.check()
        roots, before = policy.roots, first.task.trees
        u, v = next(iter(graph.edges))
        for node in policy.nodes:
            policy.handle(Finished(node, first.task.number), 1.0)
        policy.handle(Measured(u, v, 1.0), 1.0)
        assert policy.belief.edges[u, v]["mbps"] == 1.0
        (second,) = [o for node in policy.nodes for o in policy.handle(Ready(node, 90_000), 9.0)]
        second.task.check()
        assert policy.roots == roots and second.task.trees != before
        assert all((u, v) not in {(e.sender, e.receiver) for e in t.up} for t in second.task.trees)

    @pytest.mark.nightly  # Measured on sockets in evaluation.wan; `make test` has the parts: awareness, detours.
    def test_the_orders_of_the_paper_where_links_change(self):
        """Compare STAR, BKT, TSEngine (each unaware), and NetStorm without and with awareness and auxiliary paths."""
        seconds = {}
        for name, options in {
            "STAR": {"topology": "STAR"},
            "BKT": {"topology": "BKT"},
            "MST": {"topology": "MST"},
            "NetStorm": {"aware": True, "auxiliary": True},
        }.items():
            rng = np.random.default_rng(5)
            graph = netstorm_draw(rng)
            topology = overlay(graph)
            defaults = {"aware": False, "auxiliary": False, "chunk_values": 250_000, "update": 1.0}
            policy = NetStorm(named(graph), NetStormSettings(**(defaults | options)))
            run = Simulation(policy, topology, 10_000_000, probe_values=200_000, compute=lambda node: 0.5)

            def vary(run=run, rng=rng) -> None:
                for a, b, data in netstorm_draw(rng).edges(data=True):
                    run.set_rate(f"dc{a}", f"dc{b}", data["mbps"])
                run.sim.after(60.0, vary)

            run.sim.after(60.0, vary)
            run.run(40, seconds=2400.0)
            seconds[name] = run.sim.now / run.rounds
        assert seconds["NetStorm"] < seconds["MST"] < seconds["BKT"] < seconds["STAR"]

    @staticmethod
    def seconds_with_detours_over_those_without(graph, **options):
        """Of a synchronisation of 100 chunks with h0 as its root."""
        with_them, without = (
            seconds_of(
                NetStorm(
                    named(graph),
                    NetStormSettings(topology="STAR", auxiliary=detours, aware=False, chunk_values=10_000, **options),
                ),
                overlay(graph),
                1_000_000,
            )[0]
            for detours in (True, False)
        )
        return with_them / without

    def test_detours_carry_the_excess_of_the_direct_path(self):
        graph = nx.DiGraph()
        for u, v, mbps in ((0, 1, 10.0), (0, 2, 100.0), (2, 1, 100.0)):
            graph.add_edge(u, v, mbps=mbps)
            graph.add_edge(v, u, mbps=mbps)
        assert self.seconds_with_detours_over_those_without(graph, lazy=True) < 0.75

    def test_chunks_that_find_all_detours_busy_go_back_to_the_direct_path(self):
        """Section VI-A. h1 has 100 chunks at once for its root: two take the link, one the detour over h2, and the 97
        that find both busy the link again. So the root has all after 99 chunks' time and not 100, and results need none
        to speak of."""
        graph = nx.DiGraph()
        for u, v, mbps in ((0, 1, 1000.0), (1, 0, 10.0), (0, 2, 1000.0), (2, 0, 100.0), (1, 2, 100.0)):
            graph.add_edge(u, v, mbps=mbps)
        assert self.seconds_with_detours_over_those_without(graph, window=100) == pytest.approx(0.99, abs=0.002)

    def test_on_sockets_with_detours_and_awareness_every_sum_is_right(self):
        graph = named(netstorm_draw(np.random.default_rng(1)))
        policy = NetStorm(graph, settings=NetStormSettings(chunk_values=5_000, update=0.0, busy_bound=1))
        with running(policy, probe_values=1) as (_, agents):
            for round_ in range(6):
                given = {node: np.full(200_000, k + round_, np.float32) for k, node in enumerate(agents)}
                for future in [agents[node].synchronise_async(given[node]) for node in agents]:
                    future.result(SECONDS)
                for values in given.values():
                    np.testing.assert_allclose(values, 4.0 + round_, rtol=1e-6)
        assert policy.decisions > 1


def test_wrong_settings_are_refused_by_name():
    graph = named(netstorm_draw(np.random.default_rng(1)))
    with pytest.raises(ValueError, match="unknown topology 'X'; known: FAPT"):
        NetStorm(graph, settings=NetStormSettings(topology="X"))
    with pytest.raises(ValueError, match=r"p must be 1 \.\. 5, got 6"):
        Crew(TestCrew.nodes, matrix(mesh(5)), 6)
    with pytest.raises(ValueError, match="unknown scheme 'X'"):
        Crew(TestCrew.nodes, matrix(mesh(5)), 2, settings=CrewSettings(scheme="X"))
