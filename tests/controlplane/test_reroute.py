"""A plan that is rerouted around a failure adds every gradient once, under the labels that its agents know."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from controlplane.planner import rules
from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import fattree
from controlplane.planner.job import Job, place_job
from controlplane.planner.plan.reroute import CannotReroute, intact, reroute
from controlplane.planner.plan.slots import aligned
from controlplane.planner.rules import Deployment, Places, Taken
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology, TopologyError
from controlplane.service.failures import dead_links, silent
from controlplane.service.hops import hops_of
from controlplane.service.residual import without
from controlplane.service.versions import as_told
from tests.controlplane.instances import instances, random_plan
from tests.controlplane.test_rules import LIMITS, check_deployment
from tests.support.examples import examples
from tests.support.rails import two_rails

TREE = fattree(4, 100.0)
JOB = place_job(TREE, 8, 2, seed=3)
PLAN = get_strategy("inart")(TREE, JOB)
RAILS = two_rails(5, 10.0)
RAILS_JOB = Job("rails", RAILS.servers[:3], RAILS.servers[3:], 1_000_000)


def around(plan, deployment: Deployment, state: Topology) -> tuple[Deployment, object]:
    """Reroute a plan as the controller does."""
    gaps = {v: Taken.by(of).gaps(LIMITS.slots) for v, of in deployment.rulesets.items()}
    slots = dict(deployment.slots)

    def take(switch: str, tree: int) -> bool:
        place = aligned(gaps[switch], deployment.sizes[tree])
        if place is not None:
            slots[switch, tree] = place
        return place is not None

    found = reroute(plan, state, take)
    for index, point, _ in found.moved:
        del slots[point, index]
    groups = {v: {group.ports: group.group for group in of.groups} for v, of in deployment.rulesets.items()}
    places = Places(deployment.sizes, slots, groups)
    made = rules.build(
        found.plan,
        state,
        LIMITS,
        job_id=3,
        epoch=7,
        beside=rules.Beside(first_label=deployment.first_label, places=places),
    )
    return made, found


def test_a_plan_whose_workers_are_parameter_servers_is_rerouted_around_a_switch():
    """As jobs of Slurm are: results do not come back to the host that has added them up."""
    job = Job("slurm-1", (JOB.workers[0], JOB.workers[-1], *JOB.workers[2:4]), JOB.workers[2:4], 1_000_000)
    plan = get_strategy("inart")(TREE, job)
    passed = {v for tree in plan.trees for edge in tree.return_edges for v in edge}
    inner = {TREE.access_switch(server) for server in TREE.servers}.symmetric_difference(TREE.switches)
    assert passed & inner, "results pass a switch that has no servers"
    for switch in sorted(passed & inner):
        state = without(TREE, [switch])
        found = reroute(plan, state, lambda switch, tree: True)
        found.plan.check(state)
        assert found.plan.job == job


CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=CHECKS)
@given(instances(), st.integers(0, 10**6), st.data())
def test_a_rerouted_plan_adds_every_gradient_once(instance, seed, data):
    topology, job = instance
    plan = random_plan(topology, job, seed)
    deployment = rules.build(plan, topology, LIMITS, job_id=3, epoch=7)
    between = [f"{u}-{v}" for u, v in topology.links if topology.kind(u) == topology.kind(v) == "switch"]
    gone = data.draw(st.sampled_from([*topology.switches, *between]))
    state = without(topology, [gone])
    try:
        made, found = around(plan, deployment, state)
    except CannotReroute:
        assume(False)
    check_deployment(found.plan, state, made)
    assert made.agents == deployment.agents, "no worker and no parameter server has to be told"
    for index, tree in enumerate(plan.trees):
        if index not in found.trees:
            assert intact(tree, state)
            assert found.plan.trees[index] == tree
            for point in tree.points:
                assert made.slots[point, index] == deployment.slots[point, index], "what holds sums stays where it is"


@pytest.mark.parametrize("switch", [v for v in TREE.switches if v[0] in "ca"])
def test_any_switch_of_a_fat_tree_that_no_server_hangs_on_can_fail(switch):
    deployment = rules.build(PLAN, TREE, LIMITS, job_id=3, epoch=7)
    state = without(TREE, [switch])
    made, found = around(PLAN, deployment, state)
    check_deployment(found.plan, state, made)
    assert made.agents == deployment.agents
    assert not any(switch in flow.route for tree in found.plan.trees for flow in tree.flows)
    used = {v for v, of in deployment.rulesets.items() if of.labels}
    assert bool(found.trees) == (switch in used)


@pytest.mark.parametrize("host", RAILS.servers)
@pytest.mark.parametrize("switch", RAILS.switches)
def test_a_host_with_two_links_can_lose_either_and_its_agent_is_told_over_which_each_tree_goes(host, switch):
    plan = get_strategy("inart")(RAILS, RAILS_JOB)
    deployment = rules.build(plan, RAILS, LIMITS, job_id=3, epoch=7)
    state = without(RAILS, [f"{host}-{switch}"])
    made, found = around(plan, deployment, state)
    assert bool(found.trees) == (not all(intact(tree, state) for tree in plan.trees))
    check_deployment(found.plan, state, made)
    left = RAILS.switches.index("a2" if switch == "a1" else "a1")
    for node, config in deployment.agents.items():
        told = as_told(config, found.plan, found, state, 1.0)
        assert {tree.link for tree in told} <= ({1 + left} if node == host else {1, 2})
        links = {tree.up_label: tree.link for tree in made.agents[node].worker_trees}
        links |= {tree.return_label: tree.link for tree in made.agents[node].root_trees}
        assert {tree.label: tree.link - 1 for tree in told} == links, "as agents of a new plan would be told"


def test_a_failure_without_an_alternative_path_is_reported():
    edge = TREE.access_switch(JOB.workers[0])
    with pytest.raises(CannotReroute, match="is cut off"):
        reroute(PLAN, without(TREE, [edge]))
    for node in (JOB.workers[0], JOB.parameter_servers[0]):
        with pytest.raises(CannotReroute, match=f"{node} is cut off"):
            reroute(PLAN, without(TREE, [f"{node}-{TREE.access_switch(node)}"]))
    point = next(p for tree in PLAN.trees for p in tree.points if p[0] in "ca")
    with pytest.raises(CannotReroute, match=f"no switch has room to add instead of {point}"):
        reroute(PLAN, without(TREE, [point]), lambda switch, tree: False)
    with pytest.raises(TopologyError, match=r"no switch, link .* or parameter server 'c9'"):
        without(TREE, ["c9"])


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_a_link_that_drops_packets_is_found_by_the_counters_of_its_ends(data):
    deployment = rules.build(PLAN, TREE, LIMITS, job_id=3, epoch=7)
    hops = list(hops_of(PLAN, deployment, TREE))
    gone = data.draw(st.sampled_from(sorted({hop.link for hop in hops})))
    entries = {entry for hop in hops for entry in (*hop.into, hop.out)}
    have = {(v, e.ingress_port, e.label) for v, of in deployment.rulesets.items() for e in of.labels}
    assert entries <= have
    before = dict.fromkeys(entries, 100)
    # Everything continues to be resent; after the broken link nothing arrives.
    after = dict.fromkeys(entries, 103) | {hop.out: 100 for hop in hops if hop.link == gone}
    assert dead_links(hops, before, after) == {gone}
    assert dead_links(hops, before, before) == set(), "silence is no failure"
    assert dead_links(hops, before, dict.fromkeys(entries, 103)) == set()
    unknown = {entry: count for entry, count in after.items() if entry[0] != gone.split("-")[0]}
    assert dead_links(hops, before, unknown) == set(), "a switch that does not answer is another matter"


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_link_is_not_blamed_for_when_its_ends_were_read(data):
    """Packets pass while the counters are read: one end has been read already, the other has not."""
    deployment = rules.build(PLAN, TREE, LIMITS, job_id=3, epoch=7)
    hop = data.draw(st.sampled_from(list(hops_of(PLAN, deployment, TREE))))
    times = st.integers(0, 100)
    under_way = 5
    sent = data.draw(st.lists(times, max_size=8))
    ends = sorted(data.draw(st.lists(times, min_size=6, max_size=6)))
    looks = [*zip(ends[::2], ends[1::2], strict=True)]
    looks.append((looks[-1][1] + under_way, looks[-1][1] + 30))

    def read(look):
        begin, end = look
        when = {v: data.draw(st.integers(begin, end)) for v in hop.ends}
        gone_in = sum(at <= when[hop.ends[0]] for at in sent)
        come_out = sum(at + under_way <= when[hop.ends[1]] for at in sent)
        return dict.fromkeys(hop.into, gone_in) | {hop.out: come_out}

    before, since, between, after = map(read, looks)
    assert dead_links([hop], before, after, between, since) == set()


def test_packets_that_pass_in_the_middle_of_the_first_look_are_not_missed():
    """The near end was read before the packets came, the far end after they had passed; no packets follow."""
    deployment = rules.build(PLAN, TREE, LIMITS, job_id=3, epoch=7)
    hop = next(iter(hops_of(PLAN, deployment, TREE)))
    first = dict.fromkeys(hop.into, 100) | {hop.out: 109}
    later = dict.fromkeys((*hop.into, hop.out), 109)
    assert dead_links([hop], first, later, later) == {hop.link}, "one look alone does not tell"
    assert dead_links([hop], first, later, later, later) == set()


def test_switch_that_counts_anew_is_not_blamed():
    deployment = rules.build(PLAN, TREE, LIMITS, job_id=3, epoch=7)
    hop = next(iter(hops_of(PLAN, deployment, TREE)))
    before = dict.fromkeys((*hop.into, hop.out), 100)
    assert dead_links([hop], before, dict.fromkeys(hop.into, 103) | {hop.out: 0}) == set()


def test_an_aggregation_point_that_waits_for_a_missing_flow_is_not_blamed():
    deployment = rules.build(PLAN, TREE, LIMITS, job_id=3, epoch=7)
    hops = list(hops_of(PLAN, deployment, TREE))
    point = next(hop for hop in hops if len(hop.into) > 1)
    hops = [point]  # Nothing else uses the point's link.
    before = dict.fromkeys((*point.into, point.out), 0)
    late = dict.fromkeys(before, 9) | {point.out: 0, point.into[0]: 0}
    assert point.link not in dead_links(hops, before, late)
    resent = late | {point.into[0]: 9}
    assert point.link in dead_links(hops, before, resent), "a resend is sent on, whoever is missing"
    assert point.link not in dead_links(hops, before, resent, before), "what went in just now may be under way"


def test_single_packets_of_several_flows_show_that_a_link_is_dead():
    """Each flow repeats what it lacks ever more seldom: in a run of chaos it took 4.7 s until one of them had lost two,
    though thirteen had lost one each."""
    deployment = rules.build(PLAN, TREE, LIMITS, job_id=3, epoch=7)
    hops = list(hops_of(PLAN, deployment, TREE))
    single = [hop for hop in hops if len(hop.into) == 1]
    one, other = next((a, b) for a in single for b in single if a.link == b.link and a.out != b.out)
    before = {entry: 0 for hop in hops for entry in (*hop.into, hop.out)}
    lost = dict.fromkeys(one.into, 1)
    assert dead_links(hops, before, before | lost) == set(), "one packet may be under way"
    assert dead_links([*hops, *hops], before, before | lost) == set(), "nor if two plans have the flow"
    lost |= dict.fromkeys(other.into, 1)
    assert one.link in dead_links(hops, before, before | lost)
    assert one.link not in dead_links(hops, before, before | lost | {one.out: 1})
    points = [hop for hop in hops if len(hop.into) > 1]
    for link in {hop.link for hop in points}:
        ends = [hop for hop in points if hop.link == link]
        once = dict.fromkeys((entry for hop in ends for entry in hop.into), 1)
        assert dead_links(ends, before, before | once) == set(), "a point may wait for the rest of several chunks"


def test_a_switch_that_drops_all_packets_is_found_as_one_failure(switch: str = "c1"):
    deployment = rules.build(PLAN, TREE, LIMITS, job_id=3, epoch=7)
    hops = list(hops_of(PLAN, deployment, TREE))
    links = {hop.link for hop in hops if hop.out[0] == switch}
    assert len(links) > 1
    entries = {entry for hop in hops for entry in (*hop.into, hop.out)}
    before = dict.fromkeys(entries, 0)
    after = {entry: 0 if entry[0] == switch else 3 for entry in entries}
    gone = {hop.link for hop in hops if hop.link.startswith(f"{switch}-")}
    after |= {hop.out: 0 for hop in hops if hop.link in gone}
    assert silent(hops, before, after) == {switch}
    one = next(iter(sorted(links)))
    after = dict.fromkeys(entries, 3) | {hop.out: 0 for hop in hops if hop.link == one}
    assert silent(hops, before, after) == {one}, "the switch takes in what comes over other links"


def test_rerouted_plan_keeps_job_shares_and_number_of_trees():
    found = reroute(PLAN, without(TREE, ["c1"]))
    assert found.plan == replace(PLAN, trees=found.plan.trees)
    assert [tree.share for tree in found.plan.trees] == [tree.share for tree in PLAN.trees]
    assert [tree.root for tree in found.plan.trees] == [tree.root for tree in PLAN.trees]


@pytest.mark.parametrize("core", ["c1", "c2", "c3", "c4"])
def test_trees_rerouted_around_a_core_switch_are_spread_over_the_others(core):
    """Rerouted trees do not all use the same links: nearly none of the rate is lost, since none has to be."""
    topology = fattree(4, 20.0)
    plan = get_strategy("inart")(topology, place_job(topology, 8, 2, seed=0))
    state = without(topology, [core])
    found = reroute(plan, state)
    assert evaluate(found.plan, state).rate_mbps > 0.8 * plan.rate_mbps
    for index, (before, after) in enumerate(zip(plan.trees, found.plan.trees, strict=True)):
        assert (index in found.up) == (set(before.flows) != set(after.flows))
        assert (index in found.down) == (before.return_edges != after.return_edges)
        assert (before == after) == (index not in found.trees)
