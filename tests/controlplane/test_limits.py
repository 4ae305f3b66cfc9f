"""Plans under the limits of switches: every limit holds, the rules can be built, and no rate is lost without need."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.common.dealing import dealt
from controlplane.planner import rules
from controlplane.planner.entries import Aggregate
from controlplane.planner.generators import fattree, leaf_spine, testbed
from controlplane.planner.job import Job, JobError, parse_job, place_job
from controlplane.planner.plan import Plan
from controlplane.planner.plan.cost import cost_of, data_packets, packet_seconds, packets
from controlplane.planner.plan.follow import exponent_words
from controlplane.planner.plan.host_collectives import host_rows
from controlplane.planner.plan.limits import (
    MINIMUM_SLOTS,
    DoesNotFit,
    Limits,
    Needs,
    check_fits,
    copies,
    fan_in,
    label_entries,
    limited,
    switch_limits,
    unfit_for,
)
from controlplane.planner.plan.separated import separated
from controlplane.planner.routing import Network, Unreachable
from controlplane.planner.strategies import Infeasible, get_strategy
from controlplane.planner.strategies.common import finish
from controlplane.planner.strategies.deadline import SECOND
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.strategies.fabric.chains import chains
from controlplane.planner.strategies.fabric.folding import folded
from controlplane.planner.strategies.fabric.limited_trees import unlimited
from controlplane.planner.strategies.fabric.selection import Selection
from controlplane.planner.topology import Topology, TopologyError
from evaluation.inart import kinds
from evaluation.inart.checked import faults
from p4src.protocol import data_values, exponents_per_packet
from tests.controlplane.instances import instances, random_plan, shared_hosts
from tests.controlplane.test_same_plan import case
from tests.controlplane.test_strategies import check_plan
from tests.support.examples import examples, nightly

AMPLE = Limits(256, 1 << 20, 1 << 20, 1 << 20, 1 << 20)
REFUSALS = (Infeasible, DoesNotFit, Unreachable, TopologyError, JobError)


def with_attributes(topology: Topology, **attributes: int) -> Topology:
    return topology.replace(nodes=dict.fromkeys(topology.switches, attributes))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(), st.integers(0, 10**6))
def test_counted_resources_equal_those_of_the_rules(instance, seed):
    topology, job = instance
    plan = random_plan(topology, job, seed)
    deployment = rules.build(plan, topology, AMPLE, job_id=1, epoch=0)
    for v, ruleset in deployment.rulesets.items():
        assert sum(label_entries(tree)[v] for tree in plan.trees) == len(ruleset.labels)
        assert len({copies(tree)[v] for tree in plan.trees if v in copies(tree)}) == len(ruleset.groups)
        sums: dict[int, int] = {}
        for entry in ruleset.labels:
            if isinstance(entry.action, Aggregate):
                sums[entry.action.slot_base] = sums.get(entry.action.slot_base, 0) + 1
        assert sorted(sums.values()) == sorted(fan_in(tree)[v] for tree in plan.trees if v in tree.points)


@pytest.mark.parametrize("name", ["slots", "label_entries", "multicast_groups", "fan_in"])
def test_exactly_what_a_plan_needs_is_enough_and_one_less_is_not(name):
    topology = testbed()
    plan = get_strategy("atp")(topology, parse_job("", topology))  # both trees add at both switches
    needed = getattr(Needs.of(plan), name)
    v = max(needed, key=lambda v: needed[v])
    if name == "slots":
        assert needed[v] == MINIMUM_SLOTS * sum(v in tree.points for tree in plan.trees) > MINIMUM_SLOTS
    enough, short = (topology.replace(nodes={v: {name: needed[v] - less}}) for less in (0, 1))
    rules.build(plan, enough, AMPLE, job_id=1, epoch=0)
    for refuses in (check_fits, lambda *given: rules.build(*given, AMPLE, job_id=1, epoch=0)):
        with pytest.raises(DoesNotFit, match=f"switch {v}: the plan needs {needed[v]} .*are {needed[v] - 1}"):
            refuses(plan, short)


@st.composite
def limits(draw: st.DrawFn, topology: Topology) -> Topology:
    """Draw random limits for some of the switches."""
    nodes = {}
    for v in topology.switches:
        own = {}
        for name, values in (
            ("slots", [0, 15, 16, 32, 48, 2048]),
            ("label_entries", [0, 3, 8, 15, 30, 60, 500]),
            ("multicast_groups", [0, 1, 2, 100]),
            ("fan_in", [0, 1, 2, 3, 5]),
        ):
            if draw(st.integers(0, 2)) == 0:
                own[name] = draw(st.sampled_from(values))
        nodes[v] = own
    if draw(st.booleans()):
        for own in nodes.values():
            own["values_per_packet"] = 64
    return topology.replace(nodes=nodes)


@mock.patch("controlplane.planner.strategies.fabric.inart.EXACT_EFFORT", 1e7)  # optima are of no interest here
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), instances(max_switches=5, max_workers=6), st.booleans())
def test_every_plan_keeps_the_limits_or_is_refused(data, instance, frozen):
    free, job = instance
    topology = data.draw(limits(free))
    job = replace(job, max_trees=data.draw(st.sampled_from([None, 1, 2, 3, 5])), model_bytes=20_000)
    split = None
    if frozen:
        roots = job.parameter_servers
        split = {s: (i + 1) / sum(range(1, len(roots) + 1)) for i, s in enumerate(roots)}
    rates: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for name in ("inart", "inart-strict", "lbmm", "atp", "atp-strict", "equal"):
        try:
            plan = get_strategy(name)(topology, job, frozen_split=split)
        except REFUSALS as refusal:
            assert str(refusal)
            continue
        check_plan(plan, topology)
        check_fits(plan, topology)
        assert job.max_trees is None or len(plan.trees) <= job.max_trees
        if split is not None:
            assert plan.split == pytest.approx(split)
        rules.build(plan, topology, AMPLE, job_id=1, epoch=0)
        rates[name] = plan.rate_mbps
        cost = cost_of(plan, topology, plan.rate_mbps)
        seconds[name] = 0.0 if cost is None else cost.job_seconds()
    counted = switch_limits(topology).values_per_packet is not None
    for name in rates.keys() & {"lbmm", "atp", "atp-strict", "equal"}:
        if counted:
            assert seconds["inart"] <= seconds[name] * 1.011
        else:
            assert rates["inart"] >= rates[name] * (1 - 1e-9)


@cache
def fifty_workers() -> tuple[Topology, Job, Plan]:
    """A fat-tree whose switches have no limits, a job of 50 workers on it, and its plan."""
    topology = fattree(6)
    job = place_job(topology, 50, 4, seed=1)
    return topology, job, get_strategy("inart")(topology, job)


@pytest.mark.parametrize(("trees", "rate"), [(4, 7.2), (12, 8.5), (49, 9.5)])
def test_fewer_trees_cost_little(trees, rate):
    topology, job, _ = fifty_workers()
    job = replace(job, max_trees=trees)
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    assert len(plan.trees) <= trees
    assert plan.rate_mbps >= rate


@pytest.mark.parametrize(
    ("attributes", "trees", "rate"),
    [
        ({"label_entries": 300}, 16, 7.9),  # The 49 trees take up to 750 entries at a parameter server's access switch.
        ({"multicast_groups": 4}, 30, 8.5),
        ({"fan_in": 5}, 49, 7.9),  # With one level the rate is at most sum B / (W / 5) = 8.
        ({"slots": 16}, 49, 9.5),
    ],
)
def test_a_plan_is_made_to_fit(attributes, trees, rate):
    free, job, unlimited = fifty_workers()
    topology = with_attributes(free, **attributes)
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    rules.build(plan, topology, AMPLE, job_id=1, epoch=0)
    assert len(plan.trees) <= trees and plan.rate_mbps >= rate
    if "slots" not in attributes:
        with pytest.raises(DoesNotFit):
            rules.build(unlimited, topology, AMPLE, job_id=1, epoch=0)


def test_trees_avoid_a_switch_that_is_too_small():
    topology = fattree(4).replace(nodes={"c1": {"label_entries": 0}, "a1": {"label_entries": 2}})
    job = place_job(topology, 8, 2, seed=1)
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    deployment = rules.build(plan, topology, AMPLE, job_id=1, epoch=0)
    assert not deployment.rulesets["c1"].labels
    assert plan.rate_mbps >= 0.95 * get_strategy("inart")(fattree(4), job).rate_mbps


def test_a_resource_that_does_not_suffice_is_named():
    topology = with_attributes(testbed(), label_entries=10)
    job = parse_job("", topology)
    for name in ("inart", "inart-strict", "lbmm", "atp"):
        with pytest.raises(DoesNotFit, match=r"switch V\d: the plan needs \d+ label table entries, available are 10"):
            get_strategy(name)(topology, job)
    with pytest.raises(Infeasible, match="lbmm: the plan needs 2 trees, job 'job' allows 1"):
        get_strategy("lbmm")(testbed(), replace(job, max_trees=1))
    with pytest.raises(Infeasible, match="a tree for each of 2 parameter servers, job 'job' allows 1"):
        get_strategy("inart")(testbed(), replace(job, max_trees=1), frozen_split={"S1": 0.5, "S2": 0.5})


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(max_switches=6, max_workers=6), st.integers(0, 2**16), st.integers(2, 3))
def test_folding_makes_levels_and_changes_nothing_else(instance, seed, most):
    """Folding keeps the paths and limits the flows of every point. Every worker still reaches the root over the same
    links or fewer. No point has more flows than before or than its switch can tell apart, except where no flows share a
    path, or where the switch that they share is already a point (of other flows, which were folded before).
    """
    topology, job = instance
    plan = random_plan(topology, job, seed)
    able = set(topology.switches)
    for tree in plan.trees:
        made = folded(tree, dict.fromkeys(topology.switches, most), able)
        replace(plan, trees=(replace(made, share=1.0),)).check(topology)
        assert {pair for flow in made.flows for pair in pairwise(flow.route)} == {
            pair for flow in tree.flows for pair in pairwise(flow.route)
        }
        assert made.return_edges == tree.return_edges
        before = fan_in(tree)
        for point, flows in fan_in(made).items():
            if point in before:
                assert flows <= before[point]
                if flows > most:
                    last = [flow.route[-2] for flow in made.flows if flow.end == point]
                    assert all(last.count(v) < 2 or v in made.points or v not in able for v in last if v in able)
        assert folded(tree, {}, able) == tree


def test_more_workers_than_a_bitmap_has_bits():
    """With 72 workers no point has more than 64 flows, and the rate is nearly that of an unlimited bitmap."""
    topology = limited(leaf_spine(9, 2, 9), Limits.of_target())
    job = place_job(topology, 72, 2)
    plan = get_strategy("inart")(topology, job)
    assert max(max(fan_in(tree).values(), default=0) for tree in plan.trees) <= 64
    assert rules.build(plan, topology, Limits.of_target(), job_id=1, epoch=0)
    free = get_strategy("inart")(leaf_spine(9, 2, 9), job)
    assert plan.rate_mbps >= 0.95 * free.rate_mbps


def test_a_job_with_more_workers_than_there_may_be():
    topology = limited(fattree(8), replace(Limits.of_target(), max_workers=64))
    with pytest.raises(DoesNotFit, match="needs 65 workers of one job, available are 64"):
        get_strategy("inart")(topology, place_job(topology, 65, 2))


@pytest.mark.parametrize("model_bytes", [3_000, nightly(548_000), 97_000_000])
def test_small_models_get_fewer_trees(model_bytes):
    free, job, _ = fifty_workers()
    topology = limited(free, Limits.of_target())
    job = replace(job, model_bytes=model_bytes)
    plan, many, strict = (
        get_strategy(name)(where, job) for name, where in (("inart", topology), ("inart", free), ("inart-strict", free))
    )
    seconds = [packet_seconds(p, 256, p.rate_mbps) for p in (plan, many, strict)]
    assert seconds[0] <= min(seconds[1:]) * 1.01
    if model_bytes < 500_000:
        assert len(plan.trees) < len(many.trees) and seconds[0] < 0.8 * seconds[1]
    else:
        assert plan.rate_mbps > strict.rate_mbps


@pytest.mark.parametrize(("divisor", "model_bytes", "seconds"), [(4, 10_000, 0.0257), (8, 40_000, 0.0985)])
def test_small_models_where_links_bind(divisor, model_bytes, seconds):
    """Packing does not see the links; when trees were trimmed only until the plan fitted, these took 0.031 s and 0.105
    s.
    """
    topology = limited(fattree(4, oversubscription=divisor), Limits.of_target())
    job = replace(place_job(topology, 12, 2, seed=1), model_bytes=model_bytes)
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    assert packet_seconds(plan, 256, plan.rate_mbps) <= seconds


@settings(max_examples=examples(50), deadline=None)
@given(instances(), st.integers(0, 10**6), st.integers(1, 200_000))
def test_packets_are_dealt_as_the_agents_do(instance, seed, model_bytes):
    topology, job = instance
    plan = random_plan(topology, replace(job, model_bytes=model_bytes), seed)
    values = -(-model_bytes // 4)
    counts = dealt(-(-values // data_values(64)), [tree.share for tree in plan.trees])
    assert data_packets(plan, 64) == counts
    assert packets(plan, 64) == [n + -(-exponent_words(n) // exponents_per_packet(64)) if n else 0 for n in counts]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"slots": -1}, "'V1': slots must be a whole number of at least 0, got -1"),
        ({"fan_in": 2.5}, "'V1': fan_in must be a whole number"),
        ({"values_per_packet": 0}, "'V1': values_per_packet must be a whole number of at least 1"),
    ],
)
def test_a_wrong_limit_is_named(attributes, message):
    topology = testbed().replace(nodes={"V1": attributes})
    with pytest.raises(TopologyError, match=message):
        get_strategy("inart")(topology, parse_job("", topology))


def test_limits_that_contradict_themselves():
    mixed = testbed().replace(nodes={"V1": {"values_per_packet": 64}, "V2": {"values_per_packet": 256}})
    with pytest.raises(TopologyError, match="the same on all switches, got 64 and 256"):
        switch_limits(mixed)
    with pytest.raises(TopologyError, match="slots does not belong on a server"):
        switch_limits(testbed().replace(nodes={"W1": {"slots": 3}}))
    with pytest.raises(JobError, match="max_trees must be a whole number above 0, got 0"):
        Job("j", ("W1",), ("S1",), 1, 0)


def test_a_target_gives_its_limits_and_a_switch_keeps_smaller_ones():
    topology = limited(testbed().replace(nodes={"V1": {"slots": 100}}), Limits.of_target())
    found = switch_limits(topology)
    assert found.slots == {"V1": 100, "V2": 2048}
    assert found.values_per_packet == 256 and found.max_workers == {"V1": 1023, "V2": 1023}
    assert found.fan_in == {"V1": 64, "V2": 64}


def test_what_a_job_with_too_many_workers_needs_is_not_counted(monkeypatch):
    """With thousands of workers counting takes long, and what the answer will be is known before."""
    plan = get_strategy("lbmm")(testbed(), parse_job("", testbed()))
    monkeypatch.setattr("controlplane.planner.plan.limits.Needs.of", lambda *_: pytest.fail("counted"))
    small = replace(Limits.of_target(), max_workers=1)
    monkeypatch.setattr(Limits, "of_target", lambda *_: small)
    unfit = unfit_for(plan, testbed())
    assert unfit and all("workers of one job, available are 1" in why for why in unfit.values())


@pytest.mark.parametrize(
    ("seed", "way", "rate"),
    [
        (38, "workers", 40.0),  # few groups: it had 20.0, and hosts alone have 26.7
        (62, "own", 16.99),  # few groups: it had 9.16
        (62, "workers", 20.0),  # it had 12.46, and hosts alone have 12.5
        nightly(36, "workers", 13.8),  # few slots: it had 10.84, and hosts alone have 10.9
        nightly(15, "workers", 38.26),  # at most two trees
    ],
)
def test_few_trees_are_chosen_under_all_limits(seed, way, rate):
    instance = kinds.draw(seed)
    job = instance.job if way == "own" else replace(instance.job, parameter_servers=instance.job.workers)
    plan = get_strategy("inart")(instance.topology, job)
    check_plan(plan, instance.topology)
    check_fits(plan, instance.topology)
    assert plan.rate_mbps >= rate * (1 - 1e-3)
    assert plan.rate_mbps >= max(row.rate_mbps for row in host_rows(instance.topology, job)) or way == "own"


def test_a_network_of_few_groups_where_hosts_add():
    """The search for few slots once gave 2.77 Mbit/s, in one tree."""
    topology, job = case("slots60")
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    check_fits(plan, topology)
    assert plan.rate_mbps >= 3.89


@mock.patch("controlplane.planner.strategies.fabric.selection.ROUNDS", 2)
@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), shared_hosts(max_switches=4, max_workers=5), st.integers(1, 4))
def test_trees_that_are_chosen_are_trees_that_fit(data, instance, most):
    topology, job = instance
    parts = separated(data.draw(limits(topology)), job)
    assert parts is not None
    network = Network(parts.topology)
    trees = chains(network, parts.job)
    for tree in trees:
        Plan(parts.job, "a chain", 0.0, (tree,)).check(parts.topology)
    choice = Selection(network, parts.job, None)
    try:
        choice.offer([*trees, *get_strategy("lbmm")(unlimited(parts.topology), parts.job).trees])
    except REFUSALS:
        return
    if found := choice.best(most):
        plan = finish(parts.topology, parts.job, "chosen", found, None)  # raises if it does not fit
        plan.check(parts.topology)
        assert len(found) <= most and plan.rate_mbps <= cheap_bound(parts.topology, parts.job).mbps * (1 + 1e-6)


def test_the_choice_of_few_trees_and_plans_of_some_servers_alone_end_by_their_budgets():
    """They took over a minute of processor time for eleven workers that are servers, too."""
    instance = kinds.draw(4839)
    choices = []
    chosen = Selection._chosen

    def counted(selection: Selection, most: int) -> tuple[float, list[int]]:
        choices.append(most)
        return chosen(selection, most)

    with (
        mock.patch.object(Selection, "_chosen", counted),
        mock.patch("controlplane.planner.strategies.fabric.selection.WORK", SECOND),
        mock.patch("controlplane.planner.strategies.fabric.inart.SUBSETS_WORK", 0.5 * SECOND),
    ):
        plan = get_strategy("inart")(instance.topology, instance.job)
    assert len(choices) <= 2  # of all servers, and of the first set
    assert faults(instance.topology.to_json(), plan.to_json()) == []
