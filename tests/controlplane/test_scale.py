"""The mechanisms that make planning fast and interruptible: merged racks and switches, bounds, the deadline."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.cli.plan.command import main
from controlplane.planner import evaluate as evaluation_of
from controlplane.planner.evaluate import bound, evaluate
from controlplane.planner.generators import fattree, leaf_spine, parse_topology, testbed
from controlplane.planner.in_trees import InTrees
from controlplane.planner.job import Job, parse_job, place_job
from controlplane.planner.plan import Plan
from controlplane.planner.plan.host_collectives import host_rows
from controlplane.planner.routing import Network, Router, Unreachable
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.deadline import OutOfTime, deadline, limited_time, without_deadline
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.strategies.fabric.column_bound import column_bound
from controlplane.planner.strategies.fabric.column_generation import generate
from controlplane.planner.strategies.fabric.equivalent import Lifting, merge_equivalent
from controlplane.planner.strategies.fabric.master import Master
from controlplane.planner.strategies.fabric.parts_bound import divisions, parts
from controlplane.planner.topology import Topology
from evaluation.inart import kinds
from evaluation.inart.checked import faults
from tests.controlplane.instances import instances, random_plan, troubled_instances
from tests.controlplane.test_strategies import REFUSALS, check_plan
from tests.support.examples import examples, nightly


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(), st.integers(0, 10**6), st.booleans())
def test_no_plan_exceeds_the_cheap_bound(instance, seed, results):
    topology, job = instance
    topology = Topology(
        {v: topology.graph.nodes[v] for v in topology.nodes}, topology.graph.edges(data=True), results_on_links=results
    )
    limit = cheap_bound(topology, job)
    assert limit.mbps <= bound(topology, job) and limit.what
    for each in range(5):
        plan = random_plan(topology, job, seed + each)
        for tree in plan.trees:
            for trees in ((replace(tree, share=1.0),), plan.trees):
                rate = evaluate(Plan(job, "random", 0.0, trees), topology).rate_mbps
                assert rate <= limit.mbps * (1 + 1e-9)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(instances(), troubled_instances(max_switches=5, max_workers=5)))
def test_our_plans_do_not_exceed_the_cheap_bound(instance):
    topology, job = instance
    try:
        plan = get_strategy("inart")(topology, job)
    except REFUSALS:
        return
    assert plan.rate_mbps <= cheap_bound(topology, job).mbps * (1 + 1e-9)


@pytest.mark.parametrize(("divisor", "rate"), [(4, 7.0), (8, 4.5)])
def test_a_thin_rack_is_named_and_reached(divisor, rate):
    """By hand: with a link C (1 - 1/n) narrower than needed for n workers, n f - C (1 - 1/n) <= n B."""
    topology = fattree(6, oversubscription=divisor)
    job = place_job(topology, 50, 4, seed=1)
    limit = cheap_bound(topology, job)
    assert limit.mbps == pytest.approx(rate) and "rack e" in limit.what
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    assert plan.rate_mbps == pytest.approx(rate)


def test_pods_are_looked_at():
    topology = fattree(4)
    racks, pods = divisions(topology)
    assert len(racks.part) == 8
    found = parts(topology, place_job(topology, 12, 2, seed=0), pods).values()
    assert len(found) == 4
    assert all(pod.workers + pod.roots <= 4 and pod.out == pod.into == 80 for pod in found)
    assert sum(pod.workers for pod in found) == 12 and sum(pod.roots for pod in found) == 2


def test_equivalent_switches_become_one_with_all_they_have():
    topology = fattree(6, oversubscription=4)
    merged = merge_equivalent(topology)
    assert merged is not None
    # the switches of each pod, and the core switches
    assert sorted(len(m) for m in merged.members.values()) == [3, 3, 3, 3, 3, 3, 9]
    small = merged.topology
    assert len(small.switches) == 18 + 6 + 1
    for total in (
        lambda t: sum(t.residual_aggregation_mbps(v) for v in t.switches),
        lambda t: sum(t.residual_bandwidth_mbps(u, v) for u, v in t.links),
    ):
        assert total(small) == pytest.approx(total(topology))
    assert merge_equivalent(fattree(4, heterogeneous=(10, 30), seed=1)) is None
    other = fattree(4).replace(nodes={"a1": {"aggregation_mbps": 8.0}})
    split = merge_equivalent(other)
    assert split is not None and all("a1" not in members for members in split.members.values())


@pytest.mark.parametrize(
    ("topology", "workers"),
    [
        (fattree(4, oversubscription=4), 12),
        nightly(fattree(4, oversubscription=4, aggregation_mbps=100), 12),
        (leaf_spine(5, 3, 4, uplink_mbps=3), 17),
        (leaf_spine(4, 2, 4, uplink_mbps=5, aggregation_mbps=30), 14),
    ],
)
def test_the_smaller_network_loses_nothing(topology, workers):
    job = place_job(topology, workers, 2, seed=0)
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    network = Network(topology)
    with mock.patch("controlplane.planner.strategies.fabric.inart.merge_equivalent", return_value=None):
        direct = get_strategy("inart")(topology, job)
    generated = generate(network, job, [direct], bound(topology, job))
    assert generated is not None
    limit = column_bound(generated[0], generated[0].solve()[2])
    assert 0.99 * min(limit, cheap_bound(topology, job).mbps) <= plan.rate_mbps <= limit * (1 + 1e-6)
    assert plan.rate_mbps >= direct.rate_mbps * 0.995


@pytest.mark.parametrize("most", [False, True])
def test_lifted_trees_are_trees_of_the_network(most):
    topology = fattree(6, oversubscription=4, aggregation_mbps=100)  # This network sends sums of sums.
    job = place_job(topology, 50, 4, seed=1)
    merged = merge_equivalent(topology)
    assert merged is not None
    small = get_strategy("inart")(merged.topology, job)
    assert any(relay.next != tree.root for tree in small.trees for relay in tree.relays)
    master = Master(Network(topology), job, 1.0, None)
    lifting = Lifting(master, merged)
    for tree in small.trees:
        found = list(lifting.columns(tree, most=most))
        assert found and sum(part for _, part in found) <= tree.share * (1 + 1e-9)
        for column, _ in found:
            Plan(job, "lifted", 0.0, (replace(column.tree, share=1.0),)).check(topology)
            counted = master.make(column.tree)  # The column is computed again from the routes of its tree.
            assert counted is not None
            assert counted.rows.tolist() == column.rows.tolist()
            assert counted.uses.tolist() == pytest.approx(column.uses.tolist())


def test_workers_of_a_rack_with_links_of_their_own_width():
    """Only the narrowest of the links can be a bottleneck; the plan respects every one of them."""
    topology = fattree(4, oversubscription=4)
    job = place_job(topology, 12, 2, seed=0)
    own = {(w, topology.access_switch(w)): {"bandwidth_mbps": 4.0} for w in job.workers[::2]}
    narrow = topology.replace(links=own | {(v, u): {"bandwidth_mbps": 3.0} for u, v in list(own)[:1]})
    plan = get_strategy("inart")(narrow, job)
    check_plan(plan, narrow)
    assert plan.rate_mbps == pytest.approx(3.0)


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_there_is_a_plan_when_time_is_over(seconds):
    topology = fattree(6, oversubscription=4, heterogeneous=(10, 30), seed=1)
    job = place_job(topology, 50, 4, seed=1)
    heard: list[float] = []
    with limited_time(seconds, lambda what, rate, limit: heard.append(rate)) as limit:
        plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    assert limit.cut_short
    assert not seconds or (heard and plan.rate_mbps >= max(heard) * 0.99)


class Asked:
    """A clock that advances one second with each reading."""

    looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return float(self.looks)


@pytest.mark.parametrize(
    ("topology", "workers"),
    [
        (fattree(4, oversubscription=4), 12),  # a network with equivalent switches
        (fattree(4, oversubscription=4, heterogeneous=(10, 30), seed=1), 12),
        (fattree(4, oversubscription=4).replace(nodes={f"e{i}": {"slots": 64, "fan_in": 4} for i in range(1, 9)}), 12),
    ],
)
def test_whenever_time_is_over_there_is_a_plan_and_little_is_done_after_it(topology, workers):
    """The deadline passes after this many readings of the clock, wherever the planner then is."""
    job = place_job(topology, workers, 2, seed=0)
    with limited_time(1e9, clock=(all_of_it := Asked())) as limit:
        best = get_strategy("inart")(topology, job)
    assert not limit.cut_short and all_of_it.looks > 50  # The planner reads the clock often.
    rates = []
    for looks in sorted({*range(4), *(all_of_it.looks * part // 10 for part in range(10))}):
        clock = Asked()
        with limited_time(looks, clock=clock) as limit:
            plan = get_strategy("inart")(topology, job)
        check_plan(plan, topology)
        assert limit.cut_short or plan.rate_mbps == pytest.approx(best.rate_mbps)
        assert clock.looks - looks < 40
        rates.append(plan.rate_mbps)
    assert min(rates) > 0 and max(rates) <= best.rate_mbps * (1 + 1e-9)
    assert rates[-1] > rates[0]


def test_a_large_network_takes_little_work_once_time_is_over(capsys, monkeypatch):
    """A network of 1,000 workers, planned by the command with no time left: each node is looked at a few times per
    tree, and the plan is evaluated once. Both are counted, as the machine's speed says nothing."""
    work = {"hops": 0, "evaluations": 0}
    monkeypatch.setattr(Network, "next_hops", counted(Network.next_hops, "hops", work))
    monkeypatch.setattr(evaluation_of, "evaluated_anew", counted(evaluation_of.evaluated_anew, "evaluations", work))
    monkeypatch.setattr("controlplane.cli.plan.single.searching", lambda arguments: 0.0)
    words = "--topology fattree:k=16,oversubscription=16 --job workers=1008,ps=16,seed=1 --time-limit 1 --json"
    assert main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cut_short"] and found["rate_mbps"] == pytest.approx(20 / 19)
    assert work["evaluations"] == 1
    # 128 racks to each of 16 roots, by searches that know nothing of each other: 160,000.
    assert work["hops"] < 20_000


def counted(function, what, work):
    """Return the function, which now counts its calls."""

    def call(*arguments):
        work[what] += 1
        return function(*arguments)

    return call


def test_deadlines_nest():
    assert deadline().left is None and not deadline().passed()
    with limited_time(100.0) as outer:
        with limited_time() as inner:
            assert inner.left is not None and inner.left <= 100.0
            with without_deadline():
                assert deadline().left is None
            inner.stop()
            assert deadline().passed()
        assert outer.cut_short and not outer.passed()
        with limited_time() as inner:
            outer.stop()  # Ctrl-C stops all deadlines.
            with pytest.raises(OutOfTime):
                inner.check()
    assert deadline().left is None


def test_a_job_of_one_worker():
    topology = testbed()
    assert cheap_bound(topology, Job("one", ("W1",), ("S1", "S2"), 1)).mbps == pytest.approx(6.0)


def test_the_best_in_hand_is_never_dropped(monkeypatch):
    """Time ends in the search, or while its trees are copied, on a fabric where no copies may be made after that: the
    plan is as good as the best that was reported.
    """
    monkeypatch.setattr("controlplane.planner.strategies.fabric.inart.COPIED_LATE", 0)
    monkeypatch.setattr("controlplane.planner.strategies.fabric.inart.LARGE", 0)
    topology = parse_topology("leafspine:leaves=20,spines=4,servers=11,uplink=1")
    job = place_job(topology, 200, 4, seed=1)
    for looks in (1200, 1900, 2500):
        heard: list[float] = []
        with limited_time(looks, lambda what, rate, limit: heard.append(rate), clock=Asked()) as limit:  # noqa: B023
            plan = get_strategy("inart")(topology, job)
        assert limit.cut_short and plan.rate_mbps >= max(heard) * 0.99 > 1.0
        check_plan(plan, topology)


def test_a_large_plan_is_printed_on_a_screen(capsys):
    assert main(["--topology", "fattree:k=8", "--job", "workers=100,ps=8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 60 and max(map(len, lines)) < 400
    assert any("more trees" in line for line in lines)


def test_the_ways_of_many_racks_are_found_together_and_carry_as_much(monkeypatch):
    topology = parse_topology("fattree:k=6")
    job = parse_job("workers=50,ps=4,seed=1", topology)
    each = get_strategy("inart")(topology, job)
    monkeypatch.setattr("controlplane.planner.strategies.common.MANY_WAYS", 0)
    together = get_strategy("inart")(topology, job)
    assert together.rate_mbps == pytest.approx(each.rate_mbps, rel=1e-6)
    assert faults(topology.to_json(), together.to_json()) == []


def test_ways_found_together_are_shortest_ones_and_are_spread():
    """Eight times all racks of a fat-tree to one access switch: each of its links from above carries as much."""
    topology = parse_topology("fattree:k=4")
    network = Network(topology)
    router = Router(network)
    together = InTrees(router)
    racks = [network.index[v] for v in topology.switches if any(u in topology.servers for u in topology.neighbours(v))]
    target = racks[0]
    for _ in range(8):
        following = together.route(target, dict.fromkeys(racks, 1.0))
        for rack in racks:
            node, hops = rack, 0
            while node != target:
                node, hops = following[node], hops + 1
            assert hops == network.distances_to(target)[rack]
    arriving = [router.load[e] for u, e in network.into[target] if network.forwards[u]]
    assert sum(arriving) == pytest.approx(8 * (len(racks) - 1)) and max(arriving) == pytest.approx(min(arriving))
    assert router.load == pytest.approx(together.load.tolist())


def test_ways_found_together_say_who_is_not_reached():
    topology = parse_topology("fattree:k=4")
    alone = topology.replace(remove_links=[link for link in topology.links if link[0] == "e1"])
    network = Network(alone)
    with pytest.raises(Unreachable, match="from e1 to e2"):
        InTrees(Router(network)).route(network.index["e2"], {network.index["e1"]: 1.0})


def chains() -> Topology:
    """Return hosts a and b, with two chains of switches between their own, and c, behind two further chains: merged
    switches that only links between others join.
    """
    ends = [("s0", "s1", "p"), ("s2", "s3", "q")]
    nodes = {f"s{i}": {"kind": "switch", "aggregation_mbps": 0.0} for i in range(4)}
    pairs = [("s1", "s2", 10.0), ("a", "s0", 10.0), ("b", "s1", 10.0), ("c", "s3", 10.0)]
    for left, right, name in ends:
        for i in range(2):
            first, second = f"{name}{i}", f"{name}x{1 - i}"  # the first of each sort are not linked
            nodes |= {node: {"kind": "switch", "aggregation_mbps": 0.0} for node in (first, second)}
            pairs += [(left, first, 3.0), (first, second, 3.0), (second, right, 3.0)]
    nodes |= {host: {"kind": "server"} for host in "abc"}
    links = [(*pair, {"bandwidth_mbps": mbps}) for u, v, mbps in pairs for pair in ((u, v), (v, u))]
    return Topology(nodes, links)


def test_merged_switches_in_several_places_of_a_tree_are_each_given_members_with_links():
    topology = chains()
    assert merge_equivalent(topology) is not None
    plan = get_strategy("inart")(topology, Job("j", ("a", "b"), ("c",), 1000))
    check_plan(plan, topology)
    assert plan.rate_mbps == pytest.approx(3.0)  # two flows of it over c's two chains


@pytest.mark.parametrize("seed", [19, 43, 67, 5, 9618])
def test_large_networks_are_searched_from_the_ends_of_flows_alone(seed):
    """As fast a plan is found if the ways from all other switches are not computed."""
    instance = kinds.draw(seed)
    adding = {v: {"aggregation_mbps": 0.0} for v in instance.topology.devices[3:]}
    topology = instance.topology.replace(nodes=adding)
    whole = get_strategy("inart")(topology, instance.job)
    with mock.patch("controlplane.planner.strategies.fabric.pricing.LARGE", 0):
        plan = get_strategy("inart")(topology, instance.job)
    check_plan(plan, topology)
    assert plan.rate_mbps == pytest.approx(whole.rate_mbps, rel=1e-2)


def test_networks_of_hundreds_of_switches_are_planned_with_little_work(monkeypatch):
    """A ring of 400 routers with hosts at some: the search, and that for what hosts reach alone, end by budgets."""
    count, every = 400, 25
    nodes = {f"n{i}": {"kind": "switch", "aggregation_mbps": 0.0} for i in range(count)}
    pairs = [(f"n{i}", f"n{(i + step) % count}") for i in range(count) for step in (1, 20)]
    for i in range(0, count, every):
        nodes[f"h{i}"] = {"kind": "server"}
        pairs.append((f"h{i}", f"n{i}"))
    topology = Topology(nodes, [(*ends, {"bandwidth_mbps": 10.0}) for u, v in pairs for ends in ((u, v), (v, u))])
    job = Job("j", topology.servers, topology.servers[:4], 1000)
    monkeypatch.setattr("controlplane.planner.strategies.fabric.inart.SEARCH_WORK", 1e7)
    monkeypatch.setattr("controlplane.planner.plan.host_collectives.TREES_WORK", 1e6)
    plan = get_strategy("inart")(topology, job)
    assert 0 < plan.rate_mbps <= cheap_bound(topology, job).mbps * (1 + 1e-9)
    assert faults(topology.to_json(), plan.to_json()) == []
    assert {row.strategy for row in host_rows(topology, job)} == {"host-ring", "reduce-scatter+all-gather"}
