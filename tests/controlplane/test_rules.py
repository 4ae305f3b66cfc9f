"""Rules against a packet-level walk: every gradient is added exactly once, and every result arrives exactly once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.common.agentconfig import RootFlow
from controlplane.planner import rules
from controlplane.planner.entries import Aggregate
from controlplane.planner.generators import fattree, testbed
from controlplane.planner.job import Job, parse_job, place_job
from controlplane.planner.plan import Plan, PlanError, Relay
from controlplane.planner.plan.limits import DoesNotFit, Limits
from controlplane.planner.plan.model import Tree
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.fabric.sharing import Demand, share
from p4src.protocol import PROTOCOL
from tests.controlplane.instances import Walk, instances, random_plan, shared_hosts
from tests.support.examples import examples

LIMITS = Limits(256, 2048, 8192, 2048, 4096)


def check_partial_sums(walk: Walk, tree: Tree, flows: dict[int, RootFlow], workers: tuple[str, ...]) -> None:
    """Check that incomplete sums of every aggregation point reach the root, with exactly the contributors in them."""
    number = {worker: index for index, worker in enumerate(workers)}
    seen = {}
    for v, entries in walk.entries.items():
        for action in entries.values():
            if isinstance(action, Aggregate):
                seen[v, action.slot_base] = action
    behind = dict.fromkeys(tree.points, 0)
    for a in tree.assignments:
        if a.point in behind:
            behind[a.point] += 1
    for (v, _), action in seen.items():
        if v not in behind or action.partial_label not in flows:
            continue  # This flow belongs to another tree.
        flow = flows[action.partial_label]
        arrived = walk.hop(v, walk.behind[v][action.port], action.partial_label, 1)
        assert arrived == [(tree.root, action.partial_label, 1)]
        assert flow.partial and action.everyone == (1 << len(flow.parts)) - 1
        direct = {number[a.worker] for a in tree.assignments if a.point == v}
        assert direct == {part[0] for part in flow.parts if len(part) == 1 and part[0] in direct}
        del behind[v]
    assert not behind, "every point's partial sums are known to the root"


def check_deployment(plan: Plan, topology: rules.Topology, deployment: rules.Deployment) -> None:
    job = plan.job
    walk = Walk(topology, deployment)
    for index, tree in enumerate(plan.trees):
        walk.sums.clear()
        config = next(t for t in deployment.agents[tree.root].root_trees if t.tree == index)
        flows = {flow.label: flow for flow in config.flows}
        at_root: list[int] = []
        before = dict(walk.crossed)
        for worker in job.workers:
            mine = next(t for t in deployment.agents[worker].worker_trees if t.tree == index)
            assert (mine.root, mine.share, mine.slots) == (tree.root, tree.share, config.slots)
            assert mine.port == config.port
            # An agent hands what it has for the root on its own host to that, and sends it nowhere (native/io.h).
            stays = [(tree.root, mine.up_label, 0)] if worker == tree.root else None
            for server, label, bitmap in stays or walk.send(worker, mine.up_label):
                assert server == tree.root
                flow = flows[label]
                assert not flow.partial or bitmap == (1 << len(flow.parts)) - 1
                at_root += flow.contributors
        assert sorted(at_root) == list(range(len(job.workers)))
        # The walk crosses exactly the links that the plan (and so the evaluator) counts.
        planned: dict[tuple[str, str], int] = {}
        for route in [a.route for a in tree.assignments] + [r.route for r in tree.relays]:
            for pair in pairwise(route):
                planned[pair] = planned.get(pair, 0) + 1
        assert {k: n - before.get(k, 0) for k, n in walk.crossed.items() if n > before.get(k, 0)} == planned
        check_partial_sums(walk, tree, flows, job.workers)
        others = [worker for worker in job.workers if worker != tree.root]
        reached = [server for server, _, _ in walk.send(tree.root, config.return_label)] if others else []
        assert sorted(reached) == sorted(others)
        for worker, label in zip(job.workers, config.answer_labels, strict=True):
            if worker != tree.root:
                assert [server for server, _, _ in walk.send(tree.root, label)] == [worker]
    for ruleset in deployment.rulesets.values():
        taken: set[int] = set()
        blocks = {(e.action.slot_base, e.action.slot_mask) for e in ruleset.labels if isinstance(e.action, Aggregate)}
        for base, mask in blocks:
            slots = set(range(base, base + mask + 1))
            assert not slots & taken and base + mask < LIMITS.slots
            taken |= slots


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(), st.integers(0, 10**6), st.integers(1, 1000))
def test_every_packet_is_added_once_and_every_result_arrives_once(instance, seed, first_label):
    topology, job = instance
    plan = random_plan(topology, job, seed)
    deployment = rules.build(plan, topology, LIMITS, job_id=3, epoch=7, beside=rules.Beside(first_label=first_label))
    check_deployment(plan, topology, deployment)
    labels = {e.label for r in deployment.rulesets.values() for e in r.labels}
    assert min(labels) >= first_label and max(labels) < deployment.next_label


SLURM_JOBS = (("h9", "h8"), ("h1", "h10", "h15", "h7"), ("h3", "h6", "h13", "h11"), ("h2", "h4", "h14", "h5"))
"""Hosts of jobs of which each once had a tree with a hundredth of the rate to which it never contributed itself."""


def test_jobs_that_share_and_whose_workers_are_their_parameter_servers_get_all_sums():
    """Their plans let switches add what a host has for its own parameter server, which agents never send over a link:
    such a tree had no result from its first epoch on, as its root lacked its own host's worker for ever.
    """
    topology, inart = fattree(4, 10.0), get_strategy("inart")
    jobs = [Job(f"job-{nodes[0]}", nodes, nodes, 80_000) for nodes in SLURM_JOBS]
    plans = share(topology, [Demand(job, (inart(topology, job),)) for job in jobs])
    for plan in plans:
        check_deployment(plan, topology, rules.build(plan, topology, LIMITS, job_id=3, epoch=7))
        assert plan.rate_mbps == pytest.approx(9.8, rel=1e-3), "that costs no rate"


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shared_hosts(), st.integers(0, 1000))
def test_a_host_s_own_gradients_reach_its_own_parameter_server(instance, seed):
    topology, job = instance
    plan = random_plan(topology, job, seed)
    check_deployment(plan, topology, rules.build(plan, topology, LIMITS, job_id=3, epoch=7))


def test_a_plan_that_sends_a_host_s_own_gradients_to_a_switch_is_refused():
    topology = fattree(4, 10.0)
    job = Job("j", ("h1", "h2"), ("h1",), 1000)
    plan = get_strategy("inart")(topology, job)
    (own, other), edges = plan.trees[0].assignments, plan.trees[0].return_edges
    away = Tree(
        "h1", 1.0,
        (own._replace(point="e1", route=("h1", "e1")), other._replace(point="e1", route=("h2", "e1"))),
        (Relay("e1", "h1", ("e1", "h1")),), edges,
    )  # fmt: skip
    with pytest.raises(PlanError, match=r"what worker h1 adds on its own host, the root's, is to go over h1 -> e1"):
        rules.build(replace(plan, trees=(away,)), topology, LIMITS, job_id=3, epoch=7)


def test_trees_share_the_ports_of_their_job_and_jobs_have_ports_of_their_own():
    topology = fattree(4)
    plan = get_strategy("inart")(topology, parse_job("workers=8,ps=2,seed=1", topology))

    def ports(job_id: int) -> list[int]:
        agents = rules.build(plan, topology, LIMITS, job_id=job_id, epoch=1).agents
        return [tree.port for tree in agents[plan.job.workers[0]].worker_trees]

    assert len(plan.trees) > PROTOCOL.ports_per_job, "the ports come round"
    for job_id in (0, 1, 255):
        first = PROTOCOL.ports[0] + PROTOCOL.ports_per_job * job_id
        lanes = range(first, first + PROTOCOL.ports_per_job)
        assert ports(job_id) == [lanes[index % len(lanes)] for index in range(len(plan.trees))]
        assert set(lanes) <= set(PROTOCOL.ports)
    assert ports(256) == ports(0)


def test_a_tree_has_a_lane_for_each_10_gbit_as_far_as_its_slots_go() -> None:
    """Both ends of a tree have the same number, since chunks' numbers on the wire depend on it."""
    for mbps, slots, lanes in ((40_000.0, 1 << 14, 4), (9_000.0, 1 << 14, 1), (1e6, 1 << 14, 16), (40_000.0, 64, 2)):
        quick = fattree(4, mbps, aggregation_mbps=None, ingress_mbps=None)
        plan = get_strategy("inart")(quick, place_job(quick, 4, 1, seed=0))
        agents = rules.build(plan, quick, replace(LIMITS, slots=slots), job_id=1, epoch=1).agents.values()
        assert {tree.lanes for config in agents for tree in (*config.worker_trees, *config.root_trees)} == {lanes}


@pytest.mark.parametrize("name", ["inart", "inart-strict", "inart-paper", "lbmm", "atp", "atp-strict", "equal"])
@pytest.mark.parametrize("where", ["testbed", "fattree"])
def test_strategies_plans_deploy(name, where):
    topology = testbed() if where == "testbed" else fattree(4)
    job = parse_job("workers=6,ps=2,seed=1", topology)
    plan = get_strategy(name)(topology, job)
    check_deployment(plan, topology, rules.build(plan, topology, LIMITS, job_id=1, epoch=1))


def test_slots_shrink_before_the_plan_is_refused():
    topology = testbed()
    job = parse_job("", topology)
    plan = get_strategy("atp-strict")(topology, job)
    full = rules.build(plan, topology, LIMITS, job_id=1, epoch=1)
    assert {t.slots for t in full.agents["W1"].worker_trees} == {64}
    small = rules.build(plan, topology, Limits(256, 48, 8192, 2048, 4096), job_id=1, epoch=1)
    assert sorted(t.slots for t in small.agents["W1"].worker_trees) == [16, 32]
    with pytest.raises(DoesNotFit) as refused:
        rules.build(plan, topology, Limits(256, 31, 8192, 2048, 4096), job_id=1, epoch=1)
    assert (refused.value.switch, refused.value.needed, refused.value.available) == ("V1", 32, 31)


@pytest.mark.parametrize(
    ("limits", "resource"),
    [
        (Limits(256, 2048, 10, 2048, 4096), "label table entries"),
        (Limits(256, 2048, 8192, 7, 4096), "IPv4 routes"),
        (Limits(256, 2048, 8192, 2048, 0), "multicast groups"),
    ],
)
def test_a_resource_that_does_not_suffice_is_named(limits, resource):
    topology = testbed()
    plan = get_strategy("lbmm")(topology, parse_job("", topology))
    with pytest.raises(DoesNotFit, match=rf"switch V1: the plan needs .* {resource}, available are"):
        rules.build(plan, topology, limits, job_id=1, epoch=1)


def test_more_flows_at_a_point_than_its_bitmaps_have_bits_are_refused():
    topology = fattree(8)
    job = place_job(topology, 65, 1)
    plan = get_strategy("equal")(topology, job)
    with pytest.raises(DoesNotFit, match=r"needs 65 flows added at one point .*, available are 64"):
        rules.build(plan, topology, replace(Limits.of_target(), label_table_size=10**6), job_id=1, epoch=1)


def test_a_job_of_more_workers_than_the_wire_format_has_is_refused():
    topology = fattree(16)
    job = place_job(topology, 1023, 1)
    plan = get_strategy("lbmm")(topology, job)
    limits = replace(Limits.of_target(), label_table_size=10**6, max_workers=1022)
    with pytest.raises(DoesNotFit, match="needs 1023 workers of one job, available are 1022"):
        rules.build(plan, topology, limits, job_id=1, epoch=1)


@settings(max_examples=examples(30), deadline=None)
@given(instances())
def test_ip_routes_lead_everybody_to_everybody(instance):
    topology, _ = instance
    routes = rules.routes(topology)
    for target in topology.servers:
        for source in topology.servers:
            node, hops = topology.access_switch(source), 0
            while node != target:
                entry = next(r for r in routes[node] if r.address == topology.address(target))
                assert (entry.prefix_length, entry.mac) == (32, topology.mac(target))
                node = next(n for n in topology.neighbours(node) if topology.port(node, n) == entry.port)
                hops += 1
                assert hops <= len(topology.switches)


def test_ip_routes_use_all_cores_of_a_fattree():
    topology = fattree(4)
    routes = rules.routes(topology)
    for pod in range(4):
        for i in (1, 2):
            aggregation = f"a{2 * pod + i}"
            ports = {r.port for r in routes[aggregation]}
            assert {topology.port(aggregation, c) for c in topology.neighbours(aggregation) if c[0] == "c"} <= ports
