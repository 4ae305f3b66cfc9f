"""APSP and SelMcast over time: in the simulator, and the same policy objects on sockets."""

from __future__ import annotations

import threading

import networkx as nx
import numpy as np
import pytest

from controlplane.planner.strategies.wan.apsp import algorithm as apsp
from controlplane.planner.strategies.wan.apsp.policy import Apsp, ApspSettings
from controlplane.planner.strategies.wan.policy import (
    Abort,
    Back,
    Changed,
    ContinueAlone,
    Drop,
    Finished,
    Lost,
    Pace,
    Progress,
    Ready,
    Release,
    Start,
)
from controlplane.planner.strategies.wan.selmcast.network import Network
from controlplane.planner.strategies.wan.selmcast.policy import (
    MulticastSettings,
    SelMcast,
    SelMcastRounds,
    SelMcastSettings,
)
from controlplane.planner.wan_networks import by_distance, overlay
from overlay.sim.simulation import Simulation, seconds_of
from tests.overlay.test_agents import SECONDS, running
from tests.overlay.test_policies import mesh, named


def line(*mbps: float) -> nx.DiGraph:
    graph = nx.DiGraph()
    for k, rate in enumerate(mbps):
        graph.add_edge(f"h{k}", f"h{k + 1}", mbps=rate)
        graph.add_edge(f"h{k + 1}", f"h{k}", mbps=rate)
    return graph


def a_round(policy, values: int, number: int = 1):
    """Return the task that starts when all are ready, after all have finished it."""
    (start,) = [o for node in policy.nodes for o in policy.handle(Ready(node, values), 0.0)]
    assert isinstance(start, Start) and start.task.number == number
    start.task.check()
    for node in start.task.participants:
        policy.handle(Finished(node, number), 1.0)
    return start.task


class TestApsp:
    def test_the_server_moves_when_links_change(self):
        graph = line(100.0, 10.0)  # h0 - h1 - h2
        policy = Apsp(graph, settings=ApspSettings(delay="fluid", change=0.1), root="h1")
        assert a_round(policy, 1000).trees[0].root == "h1"
        for u, v, mbps in (("h1", "h2", 1000.0), ("h0", "h1", 1.0)):
            policy.handle(Changed(u, v, mbps), 2.0)
            policy.handle(Changed(v, u, mbps), 2.0)
        policy.fixed = "h2"
        assert a_round(policy, 1000, 2).trees[0].root == "h2"
        a_round(policy, 1000, 3)
        assert policy.decisions == 2

    def test_flows_are_routed_as_the_algorithm_says(self):
        graph = named(by_distance("internet2"))
        policy = Apsp(graph, settings=ApspSettings(seed=3))
        found = apsp.place(graph, 1.0, seed=3, most_paths=60)
        tree = a_round(policy, 100_000).trees[0]
        assert tree.root == found.root
        assert {edge.sender: (edge.sender, *edge.via, edge.receiver) for edge in tree.up} == found.paths

    def test_small_changes_change_nothing(self):
        policy = Apsp(line(100.0, 10.0))
        before = a_round(policy, 10).trees[0].root
        policy.handle(Changed("h0", "h1", 105.0), 0.0)
        assert a_round(policy, 10, 2).trees[0].root == before and policy.decisions == 1

    def test_a_new_place_is_faster_than_the_old_one_where_links_change(self):
        seconds = {}
        for change in (None, 0.1):
            graph = named(by_distance("internet2", seed=1))
            policy = Apsp(graph, settings=ApspSettings(change=change))
            run = Simulation(policy, overlay(by_distance("internet2", seed=1)), 2_000_000)
            other = by_distance("internet2", seed=9, law="inverse")
            for u, v, data in other.edges(data=True):
                run.set_rate(f"dc{u}", f"dc{v}", data["mbps"])
                run.tell(Changed(f"h{u}", f"h{v}", data["mbps"]))
            run.run(2)
            seconds[change] = run.sim.now
        assert seconds[0.1] < seconds[None]

    def test_on_sockets_rounds_follow_the_server(self):
        policy = Apsp(named(nx.relabel_nodes(mesh(4), {})), settings=ApspSettings(chunk_values=300))
        rng, roots = np.random.default_rng(1), set()
        with running(policy) as (coordinator, agents):
            for round_, root in enumerate(("h0", "h0", "h2", "h1")):
                policy.fixed = root
                coordinator.tell(Changed("h0", "h1", 100.0 * 2**round_))  # This makes it decide anew.
                given = {node: rng.integers(-99, 99, 5000).astype(np.float32) for node in agents}
                mean = np.mean(list(given.values()), axis=0)
                for future in [agents[node].synchronise_async(given[node]) for node in agents]:
                    future.result(SECONDS)
                roots.add(policy.placement.root)
                for values in given.values():
                    np.testing.assert_array_equal(values, mean.astype(np.float32))
        assert roots == {"h0", "h1", "h2"}


class TestSelMcast:
    nodes = tuple(f"h{k}" for k in range(6))
    ones = np.ones(6)

    def test_bsp_reaches_every_pair_in_k_plus_one_rounds(self):
        policy = SelMcastRounds(self.nodes, self.ones, self.ones, 2, settings=MulticastSettings(k=3))
        seen = [
            {(t.root, r) for t in a_round(policy, 100, number).trees for r in t.receivers} for number in range(1, 9)
        ]
        for first in range(5):
            assert len(set.union(*seen[first : first + 4])) == 30
        assert all(len(pairs) >= 12 for pairs in seen)

    def ready(self, policy: SelMcast, node: str, now: float) -> tuple[list[Drop], Start]:
        *drops, start = policy.handle(Ready(node, 1000), now)
        assert isinstance(start, Start) and all(isinstance(drop, Drop) for drop in drops)
        start.task.check()
        return drops, start

    def test_a_worker_goes_on_when_it_has_arrived_and_is_not_too_far_ahead(self):
        policy = SelMcast(self.nodes[:3], [1] * 3, [1] * 3, 1, settings=SelMcastSettings(threshold=1, k=None))
        for node in self.nodes[:3]:
            policy.handle(Back(node), 0.0)
        now = 1.0
        orders: list[object] = []
        for _ in range(2):
            _, start = self.ready(policy, "h0", now)
            for receiver in start.task.awaited:
                orders = list(policy.handle(Finished(receiver, start.task.number), now))
            now += 1
        assert orders == [] and policy.round.tolist() == [2, 0, 0], "two ahead: it waits"
        gone = []
        for node in ("h1", "h2"):
            _, start = self.ready(policy, node, now)
            for receiver in start.task.awaited:
                gone += policy.handle(Finished(receiver, start.task.number), now)
        assert {order.node for order in gone if isinstance(order, Release)} == {"h0", "h1", "h2"}

    def test_the_slowest_receivers_are_preempted_but_not_those_that_have_most_of_it(self):
        policy = SelMcast(self.nodes, self.ones, self.ones, 1, settings=SelMcastSettings(k=None, eta=0.5))
        for node in self.nodes:
            policy.handle(Back(node), 0.0)
        _, first = self.ready(policy, "h0", 1.0)
        assert set(first.task.awaited) <= set(self.nodes) - {"h0"}
        lucky = first.task.awaited[0]
        policy.handle(Progress("h0", first.task.number, lucky, 0.1), 1.1)
        drops, _ = self.ready(policy, "h1", 1.2)
        assert all(lucky not in drop.nodes for drop in drops)

    def test_a_lost_receiver_is_dropped_and_a_lost_sender_given_up(self):
        policy = SelMcast(self.nodes, self.ones, self.ones, 3, settings=SelMcastSettings(k=None))
        for node in self.nodes:
            policy.handle(Back(node), 0.0)
        _, start = self.ready(policy, "h0", 1.0)
        receiver = start.task.awaited[0]
        assert Drop(start.task.number, (receiver,)) in policy.handle(Lost(receiver), 2.0)
        assert Abort(start.task.number, "h0 is lost") in policy.handle(Lost("h0"), 3.0)
        assert not policy.sending and not policy.tasks

    def test_selmcast_goes_more_rounds_than_orpheus_where_downloads_differ(self):
        graph = nx.DiGraph()
        n, down = 8, np.array([200.0, 20.0] * 4)
        hub = 8
        for k in range(n):
            graph.add_edge(k, hub, mbps=200.0)
            graph.add_edge(hub, k, mbps=float(down[k]))
        rounds = {}
        for scheme in ("SelMcast", "Orpheus"):
            policy = SelMcast(
                [f"h{k}" for k in range(n)],
                [200.0] * n,
                down,
                2,
                settings=SelMcastSettings(scheme=scheme, k=None, threshold=50),
            )
            compute = np.random.default_rng(5)
            run = Simulation(
                policy, overlay(graph), 1_000_000, compute=lambda node, compute=compute: float(compute.uniform(0.5, 1))
            )
            run.run(10**9, seconds=15.0)
            rounds[scheme] = policy.round.sum()
        assert rounds["SelMcast"] > 1.2 * rounds["Orpheus"]

    def test_an_agent_without_receivers_continues_alone(self):
        policy = SelMcast(self.nodes[:2], [1] * 2, [1] * 2, 1, settings=SelMcastSettings(k=None))
        for node in self.nodes[:2]:
            policy.handle(Back(node), 0.0)
        policy.handle(Lost("h1"), 1.0)
        (order,) = policy.handle(Ready("h0", 1000), 2.0)
        assert isinstance(order, ContinueAlone) and order.node == "h0" and not policy.tasks

    def test_a_late_report_of_the_sender_does_not_undo_an_arrival(self):
        policy = SelMcast(self.nodes[:3], [1] * 3, [1] * 3, 2, settings=SelMcastSettings(k=None))
        for node in self.nodes[:3]:
            policy.handle(Back(node), 0.0)
        _, start = self.ready(policy, "h0", 1.0)
        number = start.task.number
        policy.handle(Progress("h0", number, "h2", 0.0), 1.1)
        assert not policy.handle(Finished("h1", number), 1.2), "h2 has not said that it has it"
        policy.handle(Progress("h0", number, "h1", 0.0), 1.3)
        assert policy.handle(Finished("h2", number), 1.4) == [Release("h0", number)]

    def test_switches_copy_at_rates_that_change_with_other_senders(self):
        graph = named(nx.complete_graph(4, nx.DiGraph))
        nx.set_edge_attributes(graph, 100.0, "mbps")
        network = Network(graph, {(u, v): (u, v) for u in graph for v in graph}, switch="s-{}".format)
        policy = SelMcast(
            tuple(graph),
            [1] * 4,
            [1] * 4,
            3,
            settings=SelMcastSettings(k=None, layer="L3", headroom=0.1),
            network=network,
        )
        for node in graph:
            policy.handle(Back(node), 0.0)
        (first,) = policy.handle(Ready("h0", 1000), 1.0)
        assert first.task.trees[0].rate_mbps == pytest.approx(90.0)
        assert first.task.trees[0].routes[0] == ("h0", "s-h0", "s-h1", "h1")
        assert policy.handle(Changed("h0", "h3", 20.0), 1.5) == [Pace(1, pytest.approx(18.0))]
        (start,) = policy.handle(Ready("h3", 1000), 2.0)  # It goes over other links.
        assert isinstance(start, Start)
        assert Drop(1, ("h3",)) in policy.handle(Lost("h0", "h3"), 3.0)
        assert not network.reached(0)[3] and network.reached(0)[1]
        network.change(("h0", "h3"), 100.0)
        network.change(("h3", "h0"), 100.0)
        assert network.reached(0)[3]
        policy.handle(Lost("h0", "h1"), 3.5)
        assert not network.reached(0)[1]
        network.try_again(40.0)
        assert network.reached(0)[1]
        policy.handle(Lost("h1", "h2"), 4.0)
        policy.handle(Lost("h2"), 5.0)  # That was the last one.
        assert network.reached(1)[2]

    def test_on_sockets_copies_come_whole_and_everybody_goes_on(self):
        nodes = self.nodes[:4]
        policy = SelMcast(nodes, [1] * 4, [1] * 4, 2, settings=SelMcastSettings(k=2, threshold=2, chunk_values=5_000))
        rounds, got = 6, {node: [] for node in nodes}
        with running(policy) as (_, agents):

            def train(k: int, node: str) -> None:
                for round_ in range(rounds):
                    mine = np.full(100_000, 10 * k + round_, np.float32)
                    agents[node].synchronise(mine, SECONDS)
                    assert (mine == 10 * k + round_).all(), "a copy changes nothing of its sender's"
                    got[node] += agents[node].copies()

            threads = [threading.Thread(target=train, args=(k, node)) for k, node in enumerate(nodes)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(SECONDS)
            assert not any(thread.is_alive() for thread in threads)
        assert policy.round.tolist() == [rounds] * 4
        copies = [copy for node in nodes for copy in got[node]]
        assert len(copies) >= 4 * rounds
        for copy in copies:
            first = copy.values[0]
            assert (copy.values == first).all() and int(first) // 10 == nodes.index(copy.sender)

    def test_on_sockets_a_receiver_dies_and_its_senders_go_on(self):
        nodes = self.nodes[:3]
        policy = SelMcast(nodes, [1] * 3, [1] * 3, 2, settings=SelMcastSettings(k=None, chunk_values=1000))
        with running(policy) as (_, agents):
            futures = [agents[node].synchronise_async(np.ones(2_000_000, np.float32)) for node in nodes[:2]]
            agents["h2"].close()
            for future in futures:
                future.result(SECONDS)
        assert policy.round[:2].tolist() == [1, 1]


def test_a_simulated_copy_takes_its_links_time():
    graph = nx.DiGraph()
    graph.add_edge(0, 1, mbps=10.0)
    graph.add_edge(1, 0, mbps=10.0)
    policy = SelMcast(("h0", "h1"), [10.0] * 2, [10.0] * 2, 1, settings=SelMcastSettings(k=None))
    found = seconds_of(policy, overlay(graph), 1_000_000, 2)
    assert found == pytest.approx([32 / 10 * (1514 + 66 / 2) / 1448] * 2, rel=0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "p must be 1"),
        ({"scheme": "X"}, "unknown scheme 'X'"),
        ({"eta": 2.0}, "eta between 0 and 1"),
    ],
)
def test_wrong_settings_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        SelMcast(("a", "b", "c"), [1] * 3, [1] * 3, 0, SelMcastSettings(**options))
