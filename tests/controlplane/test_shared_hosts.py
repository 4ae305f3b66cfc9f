"""Plans with hosts that are worker and parameter server at once, and with hosts that aggregate inside of trees."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.cli.plan.command import main
from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import fattree, leaf_spine, parse_topology
from controlplane.planner.job import Job, JobError, parse_job
from controlplane.planner.plan import Assignment, Plan, PlanError, Relay, Tree
from controlplane.planner.plan.cost import cost_of
from controlplane.planner.plan.host_collectives import host_rows
from controlplane.planner.plan.limits import Limits, limited
from controlplane.planner.plan.replan import replan
from controlplane.planner.plan.separated import separated
from controlplane.planner.rules import build
from controlplane.planner.simulate.plans import synchronisation_seconds
from controlplane.planner.strategies import STRATEGIES, get_strategy
from controlplane.planner.strategies.fabric.bounds import all_reduce_bound, cheap_bound
from controlplane.planner.strategies.fabric.prove import proven_bound
from controlplane.planner.topology import Topology, TopologyError
from tests.controlplane.instances import random_plan, shared_hosts
from tests.controlplane.test_strategies import FAST, REFUSALS, check_plan
from tests.support.examples import examples


def rack(hosts: int = 3, mbps: float = 12.0, **switch: float) -> Topology:
    """Return hosts a, b, ... on one switch s."""
    names = "abcdefgh"[:hosts]
    nodes = {"s": {"kind": "switch", **switch}, **{name: {"kind": "server"} for name in names}}
    links = [(u, v, {"bandwidth_mbps": mbps}) for n in names for u, v in ((n, "s"), ("s", n))]
    return Topology(nodes, links)


def star(root: str, workers: str, share: float) -> Tree:
    """Return a tree in which all workers send to the root directly over the switch s."""
    assignments = tuple(Assignment(w, root, (w,) if w == root else (w, "s", root)) for w in workers)
    edges = ((root, "s"), *(("s", w) for w in workers if w != root))
    return Tree(root, share, assignments, (), edges)


def test_data_of_a_host_to_itself_crosses_no_link():
    """Each of three hosts is worker, parameter server and root of a third of the gradient. Two thirds of a gradient and
    two thirds of the results come to each, 4/3 of the rate as in a ring; two thirds of its own gradient and a third of
    the results, which the switch copies, leave it.
    """
    topology, job = rack(aggregation_mbps=0.0), Job("j", tuple("abc"), tuple("abc"), 1000)
    plan = Plan(job, "by hand", 0.0, tuple(star(root, "abc", 1 / 3) for root in "abc"))
    found = evaluate(plan, topology)
    assert found.rate_mbps == pytest.approx(12 * 3 / 4) == pytest.approx(found.bound_mbps)
    assert found.load("nic", "s->a") == pytest.approx(12) and found.load("nic", "a->s") == pytest.approx(9)
    # It has three flows of a third each, one of which is its own.
    assert found.load("parameter_server", "a") == pytest.approx(9)
    taken = evaluate(plan, topology.replace(nodes={"a": {"ingress_mbps": 4.5}}))
    assert taken.rate_mbps == pytest.approx(4.5) and taken.bottleneck.name == "a"
    check_plan(replace(plan, rate_mbps=found.rate_mbps), topology)


def test_a_host_adds_for_others():
    """b's host adds the gradients of b and c and passes on one sum: its link takes in c's gradient and carries out one
    sum.
    """
    topology = rack(4, aggregation_mbps=0.0).replace(nodes={"b": {"aggregation_mbps": 20.0}})
    job = Job("j", tuple("abc"), ("d",), 1000)
    up = (
        Assignment("a", "d", ("a", "s", "d")),
        Assignment("b", "b-adds", ("b", "b-adds")),
        Assignment("c", "b-adds", ("c", "s", "b-adds")),
    )
    back = (("d", "s"), ("s", "a"), ("s", "b-adds"), ("b-adds", "b"), ("s", "c"))
    tree = Tree("d", 1.0, up, (Relay("b-adds", "d", ("b-adds", "s", "d")),), back)
    found = evaluate(Plan(job, "by hand", 0.0, (tree,)), topology)
    assert found.rate_mbps == pytest.approx(6)  # Two streams come to d; results and c's gradient come to b.
    assert found.load("switch", "b-adds") == pytest.approx(12) and found.load("link", "s->b-adds") == pytest.approx(12)
    at_server = replace(tree, assignments=(up[0], Assignment("b", "b", ("b",)), Assignment("c", "b", ("c", "s", "b"))))
    at_server = replace(at_server, relays=(Relay("b", "d", ("b", "s", "d")),), return_edges=(("d", "s"), *back[1:2]))
    with pytest.raises(PlanError, match=r"the route must lead from b to b|it is a server"):
        evaluate(Plan(job, "by hand", 0.0, (at_server,)), rack(4))


def test_the_fattree_with_a_parameter_server_on_every_worker():
    topology = fattree(6)
    job = parse_job("workers=50,ps=workers,seed=1", topology)
    assert job.parameter_servers == job.workers
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    assert plan.rate_mbps >= 14.19
    assert plan.rate_mbps >= 0.999 * cheap_bound(topology, job).mbps
    assert max(row.rate_mbps for row in host_rows(topology, job)) < 10.3


@pytest.mark.parametrize("spec", ["fattree:k=4,oversubscription=8", "leafspine:leaves=3,spines=2,servers=3,uplink=4"])
def test_where_racks_have_thin_links_hosts_that_add_are_as_good_as_their_own_trees(spec):
    """When switches add nothing, only hosts can, and the planner finds the best that they can do."""
    topology = parse_topology(spec)
    silent = topology.replace(nodes={v: {"aggregation_mbps": 0.0} for v in topology.switches})
    able = silent.replace(nodes={s: {"aggregation_mbps": 1e5} for s in topology.servers})
    job = parse_job("workers=7,ps=workers,seed=1", able)
    plan = get_strategy("inart")(able, job)
    check_plan(plan, able)
    assert plan.rate_mbps >= 0.999 * max(row.rate_mbps for row in host_rows(able, job))
    assert any(tree.points for tree in plan.trees)


@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shared_hosts(), st.integers(0, 1000))
def test_a_plan_taken_apart_is_the_same_plan(instance, seed):
    """Its loads are those of the real network, and put together it is the plan that it was."""
    topology, job = instance
    parts = separated(topology, job)
    assert parts is not None
    plan = random_plan(topology, job, seed)
    apart = parts.apart(plan)
    apart.check(parts.topology)
    assert evaluate(apart, parts.topology).rate_mbps == pytest.approx(evaluate(plan, topology).rate_mbps)
    again = parts.together(apart)
    again.check(topology)
    for one, other in zip(again.trees, plan.trees, strict=True):
        assert set(one.assignments) == set(other.assignments) and set(one.relays) == set(other.relays)
        assert set(one.return_edges) == set(other.return_edges)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shared_hosts(), st.sampled_from(FAST), st.integers(0, 3))
def test_every_plan_with_shared_hosts_holds(instance, name, seed):
    topology, job = instance
    try:
        plan = get_strategy(name)(topology, job, seed=seed)
    except REFUSALS as refusal:
        assert str(refusal) and "inside " not in str(refusal)
        return
    check_plan(plan, topology)
    assert plan.job == job
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.rate_mbps <= cheap_bound(topology, job).mbps * (1 + 1e-6)
    assert plan.rate_mbps <= all_reduce_bound(topology, job).mbps * (1 + 1e-6)
    again = get_strategy(name)(topology, job, seed=seed, frozen_split=plan.split)
    assert again.split == pytest.approx(plan.split)


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shared_hosts())
def test_with_aggregating_hosts_no_host_collective_is_faster(instance):
    topology, job = instance
    able = topology.replace(nodes={s: {"aggregation_mbps": 1e5, "ingress_mbps": None} for s in topology.servers})
    plan = get_strategy("inart")(able, replace(job, parameter_servers=job.workers))
    check_plan(plan, able)
    for row in host_rows(able, job):
        assert plan.rate_mbps >= row.rate_mbps * 0.99, row.strategy


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shared_hosts(), st.integers(0, 10**6))
def test_no_tree_of_shared_hosts_beats_the_bounds(instance, seed):
    topology, job = instance
    rate = evaluate(random_plan(topology, job, seed), topology).rate_mbps
    assert rate <= evaluate(random_plan(topology, job, seed), topology).bound_mbps * (1 + 1e-6)
    assert rate <= cheap_bound(topology, job).mbps * (1 + 1e-6)
    assert rate <= all_reduce_bound(topology, job).mbps * (1 + 1e-6)


@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shared_hosts(max_switches=3, max_workers=4))
def test_proven_bounds_of_shared_hosts_hold(instance):
    topology, job = instance
    plan = get_strategy("inart")(topology, job)
    least = proven_bound(topology, job).mbps
    assert plan.rate_mbps <= least * (1 + 1e-5)
    begun = proven_bound(topology, job, plan).mbps  # the same whatever trees it begins with
    assert begun >= plan.rate_mbps * (1 - 1e-5) and begun == pytest.approx(least, rel=2e-3)


def test_a_host_of_both_roles_gets_one_agent_with_the_trees_of_both(capsys, tmp_path):
    """Its packets to its own trees cross no switch; all other workers' do, and so do its results."""
    words = ["--topology", "fattree:k=4", "--job", "workers=4,ps=workers,seed=1"]
    assert main([*words, "--output", str(tmp_path / "plan.json")]) == 0
    assert "cannot be deployed" not in capsys.readouterr().out
    plan, topology = Plan.load(tmp_path / "plan.json"), fattree(4)
    made = build(plan, topology, Limits.of_target("v1model"), job_id=1, epoch=1)
    assert set(made.agents) == set(plan.job.workers)
    known = {entry.label for rules in made.rulesets.values() for entry in rules.labels}
    for node, config in made.agents.items():
        assert config.role == "worker" and config.both_roles
        assert config.link_mbps == topology.bandwidth_mbps(node, topology.access_switch(node))
        assert {tree.tree for tree in config.root_trees} == {i for i, t in enumerate(plan.trees) if t.root == node}
        assert len(config.worker_trees) == len(plan.trees)
        for tree in config.worker_trees:
            assert (tree.up_label in known) == (tree.root != node)


def test_hosts_that_add_have_a_switch_of_their_own():
    """Ports of other switches and all addresses stay the same, and a plan can be installed as it is."""
    plain = fattree(4, aggregation_mbps=0.0)
    topology = plain.replace(nodes={host: {"aggregation_mbps": 20.0} for host in plain.servers[:6]})
    job = Job("j", topology.servers[:8], topology.servers[8:10], 1000)
    assert len(topology.switches) == len(plain.switches) + 6 and topology.servers == plain.servers
    assert topology.switch_on == {host: f"{host}-adds" for host in plain.servers[:6]}
    assert topology.aggregation_mbps("h1-adds") == 20.0 and topology.neighbours("h1") == ("h1-adds",)
    assert all(topology.address(host) == plain.address(host) for host in plain.servers)
    edge = plain.access_switch("h1")
    assert topology.port(edge, "h1-adds") == plain.port(edge, "h1")
    assert topology.residual_rates_mbps["h1"] == plain.residual_rates_mbps["h1"]
    assert topology.residual_ingress_mbps("h1") == plain.residual_ingress_mbps("h1")
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    assert any(point.endswith("-adds") for tree in plan.trees for point in tree.points)
    rules = build(plan, topology, Limits.of_target("v1model"), job_id=1, epoch=1).rulesets
    assert all(rules[point].labels for tree in plan.trees for point in tree.points)
    again = Topology.load(json.loads(json.dumps(topology.to_json())))
    assert again.to_json() == topology.to_json() and again.switch_on == topology.switch_on
    slower = topology.replace(nodes={"h1": {"aggregation_mbps": 5.0}, "h2": {"aggregation_mbps": 0.0}})
    assert [slower.aggregation_mbps(f"h{i}-adds") for i in (1, 2, 3)] == [5.0, 0.0, 20.0]
    nodes = {**{n: dict(plain.graph.nodes[n]) for n in plain.nodes}, "h2-adds": {"kind": "switch"}}
    nodes["h2"]["aggregation_mbps"] = None
    with pytest.raises(TopologyError, match="'h2-adds' has the name of the switch on h2"):
        Topology(nodes, [(u, v, plain.graph.edges[u, v]) for u, v in plain.links])


def test_ports_of_switches_do_not_depend_on_the_names_of_hosts_that_add():
    nodes = {"s": {"kind": "switch"}, **{name: {"kind": "server"} for name in ("h", "h-a", "h1", "z")}}
    links = [(u, v, {"bandwidth_mbps": 10.0}) for n in nodes if n != "s" for u, v in ((n, "s"), ("s", n))]
    plain = Topology(nodes, links)
    adding = Topology({**nodes, "h": {"kind": "server", "aggregation_mbps": 5.0}}, links)
    assert [adding.port("s", near) for near in ("h-adds", "h-a", "h1", "z")] == [
        plain.port("s", near) for near in ("h", "h-a", "h1", "z")
    ]


def dual_homed_host(**own: float) -> Topology:
    """Return a fat-tree whose host h1 has a second link, to e2."""
    plain = fattree(4, aggregation_mbps=0.0)
    two_homes = [(u, v, {"bandwidth_mbps": 20.0}) for u, v in (("h1", "e2"), ("e2", "h1"))]
    nodes = {node: dict(plain.graph.nodes[node]) for node in plain.nodes}
    nodes["h1"] |= own
    return Topology(nodes, [*plain.graph.edges(data=True), *two_homes])


def test_a_host_that_adds_and_has_two_links_has_one_switch_with_both():
    plain, dual = dual_homed_host(), dual_homed_host(aggregation_mbps=20.0)
    edge = fattree(4).access_switch("h1")
    assert dual.neighbours("h1") == ("h1-adds",) and set(dual.neighbours("h1-adds")) == {edge, "e2", "h1"}
    assert all(dual.port(switch, "h1-adds") == plain.port(switch, "h1") for switch in (edge, "e2"))
    assert dual.bandwidth_mbps("h1", "h1-adds") == 10 * 2 * 20.0, "both links' rate comes through, and more"
    job = Job("j", dual.servers[:8], dual.servers[8:10], 1000)
    plan = get_strategy("inart")(dual, job)
    check_plan(plan, dual)
    single = fattree(4, aggregation_mbps=0.0).replace(nodes={"h1": {"aggregation_mbps": 20.0}})
    assert plan.rate_mbps >= get_strategy("inart")(single, job).rate_mbps * 0.995
    rules = build(plan, dual, Limits.of_target("v1model"), job_id=1, epoch=1).rulesets
    assert all(rules[point].labels for tree in plan.trees for point in tree.points)
    nodes = {node: dict(plain.graph.nodes[node]) for node in plain.nodes}
    nodes["h1"]["aggregation_mbps"] = 20.0
    beside = [(u, v, {"bandwidth_mbps": 20.0}) for u, v in (("h1", "h3"), ("h3", "h1"))]
    with pytest.raises(TopologyError, match=r"server h1 adds for others, and so must hang on switches only: .* h3"):
        Topology(nodes, [*plain.graph.edges(data=True), *beside])


def test_compare_has_a_row_for_parameter_servers_on_all_workers(capsys):
    words = ["--topology", "fattree:k=4,aggregation=9", "--job", "workers=12,ps=1,seed=1"]
    assert main([*words, "--strategy", "inart,inart-on-workers", "--json"]) == 0
    rows = {row["strategy"]: row for row in json.loads(capsys.readouterr().out)["strategies"]}
    assert rows["inart-on-workers"]["rate_mbps"] > 1.15 * rows["inart"]["rate_mbps"]
    assert rows["inart-on-workers"]["gap"] < 0.01
    assert main([*words, "--strategy", "inart,inart-on-workers"]) == 0
    assert "ps=workers" in capsys.readouterr().out


def test_place_takes_workers_servers_where_it_may(capsys, tmp_path):
    words = ["place", "--topology", "fattree:k=4,aggregation=20", "--job", "workers=12,ps=3,seed=1", "--json"]
    assert main([*words, "--apart"]) == 0
    apart = json.loads(capsys.readouterr().out)
    assert main([*words, "--output", str(tmp_path / "job.json")]) == 0
    beside = json.loads(capsys.readouterr().out)
    assert not set(apart["job"]["parameter_servers"]) & set(apart["job"]["workers"])
    assert beside["rate_mbps"] >= apart["rate_mbps"] * (1 - 1e-6)
    assert beside["rate_mbps"] <= beside["bound_mbps"] * (1 + 1e-6)
    written = parse_job(str(tmp_path / "job.json"), fattree(4))
    assert list(written.parameter_servers) == beside["job"]["parameter_servers"]


def test_packets_and_time_of_a_plan_with_shared_hosts():
    """Data that a host sends to itself takes no time on links; the simulated and the computed time agree."""
    topology = limited(fattree(4), Limits.of_target("v1model"))
    job = parse_job("workers=4,ps=workers,seed=1,model=100K", topology)
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    cost = cost_of(plan, topology, plan.rate_mbps)
    least = job.model_bytes * 8 / (plan.rate_mbps * 1e6)
    assert least < cost.job_seconds() < 2 * least
    assert synchronisation_seconds(plan, topology, stored=True) >= 0
    assert synchronisation_seconds(replace(plan), fattree(4)) == pytest.approx(least, rel=1e-6)


def test_a_change_of_the_network_keeps_the_split_and_the_trees_that_serve():
    topology = fattree(4)
    job = parse_job("workers=8,ps=workers,seed=1", topology)
    plan = get_strategy("inart")(topology, job)
    gone = next(point for tree in plan.trees for point in tree.points if point.startswith("c"))
    after = topology.replace(remove_nodes=[gone])
    new = replan(plan, after)
    check_plan(new, after)
    assert new.split == pytest.approx(plan.split)
    before = [tree.assignments for tree in plan.trees]
    assert any(tree.assignments in before for tree in new.trees)


def test_strategies_that_do_not_know_hosts_of_both_roles_say_so():
    topology = leaf_spine(2, 1, 2)
    job = parse_job("workers=4,ps=workers", topology)
    for name in {*STRATEGIES} - {*STRATEGIES.below("fabric")} | {"atp", "atp-strict"}:
        with pytest.raises(REFUSALS, match="worker and parameter server at once"):
            get_strategy(name)(topology, job)


def test_jobs_with_shared_hosts_are_refused_with_the_reason():
    with pytest.raises(JobError, match="worker 'a' is given twice"):
        Job("j", ("a", "a"), ("b",), 1)
    with pytest.raises(JobError, match="nothing to send"):
        Job("j", ("a",), ("a", "b"), 1)
    topology = rack(3)
    nodes = {n: dict(topology.graph.nodes[n]) for n in topology.nodes}
    links = [(u, v, topology.graph.edges[u, v]) for u, v in topology.links]
    links += [("a", "b", {"bandwidth_mbps": 1.0}), ("b", "a", {"bandwidth_mbps": 1.0})]
    with pytest.raises(JobError, match="it must hang on switches, it is linked with: b, "):
        get_strategy("inart")(Topology(nodes, links), Job("j", tuple("abc"), ("a",), 1))
