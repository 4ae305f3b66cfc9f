"""Plans whose all-gathers are faster than their all-reduces: labels that lead to all hosts but one, and the load of
links then.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.planner import rules
from controlplane.planner.evaluate import evaluate
from controlplane.planner.gathers import gather_loads, gather_speed, loads_beside
from controlplane.planner.generators import fattree
from controlplane.planner.job import Job, JobError, parse_job, place_job
from controlplane.planner.plan import Plan, PlanError
from controlplane.planner.plan.limits import Limits, limited
from controlplane.planner.plan.replan import replan
from controlplane.planner.strategies import get_strategy
from controlplane.service.residual import with_loads
from tests.controlplane.instances import Walk, instances, random_plan
from tests.support.examples import examples

LIMITS = Limits(256, 2048, 8192, 2048, 4096)
FAST = fattree(4, 25, aggregation_mbps=None, ingress_mbps=None)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(), st.integers(0, 10**6))
def test_a_chunk_reaches_all_but_its_owner_over_the_links_that_are_counted(instance, seed):
    topology, job = instance
    plan = replace(random_plan(topology, job, seed), gather_speed=1.1)
    deployment = rules.build(plan, topology, LIMITS, job_id=3, epoch=7)
    plain = rules.build(plan, topology, LIMITS, job_id=3, epoch=7, gathers=False)
    walk = Walk(topology, deployment)
    counted, roots = gather_loads(plan)
    sent: dict[tuple[str, str], float] = {}
    for index, tree in enumerate(plan.trees):
        config = next(t for t in deployment.agents[tree.root].root_trees if t.tree == index)
        if len(job.workers) == 1:
            assert not config.others_labels
            continue
        for owner, label in zip(job.workers, config.others_labels, strict=True):
            before = dict(walk.crossed)
            reached = [server for server, _, _ in walk.send(tree.root, label)]
            assert sorted(reached) == sorted(set(job.workers) - {owner})
            for pair, count in walk.crossed.items():
                sent[pair] = sent.get(pair, 0.0) + tree.share / len(job.workers) * (count - before.get(pair, 0))
        for number, worker in enumerate(job.workers):
            mine = next(t for t in deployment.agents[worker].worker_trees if t.tree == index)
            others = [label for i, label in enumerate(config.others_labels) if i != number]
            assert (mine.others_labels, mine.gather_speed) == (tuple(others), 1.1)
        for pair in tree.return_edges:
            sent.setdefault(pair, 0.0)
    down = {pair for tree in plan.trees for pair in tree.return_edges}
    ups, _ = gather_loads(plan, results_on_links=False)
    for pair in down if len(job.workers) > 1 else ():
        assert counted[pair] - ups.get(pair, 0.0) == pytest.approx(sent[pair])
    assert sum(roots.values()) == pytest.approx(1)
    for switch, ruleset in plain.rulesets.items():
        assert set(ruleset.labels) <= set(deployment.rulesets[switch].labels), "the other labels stay what they are"


@pytest.mark.parametrize(("workers", "seed"), [(4, 0), (4, 3), (8, 0)])
def test_workers_links_bind_an_all_gather(workers, seed):
    job = place_job(FAST, workers, 2, seed=seed)
    plain, fast = (get_strategy("inart")(FAST, replace(job, gathers=gathers)) for gathers in (False, True))
    assert (plain.gather_speed, fast.rate_mbps) == (1, pytest.approx(plain.rate_mbps))
    assert fast.gather_speed == pytest.approx(workers / (workers - 1))
    links, _ = gather_loads(fast)
    for pair, load in links.items():
        assert load * fast.gather_speed * fast.rate_mbps <= FAST.bandwidth_mbps(*pair) * (1 + 1e-6)
    assert Plan.from_json(fast.to_json()) == fast
    assert replan(fast, FAST).gather_speed == pytest.approx(fast.gather_speed)
    left = with_loads(FAST, [fast])
    assert all(left.residual_bandwidth_mbps(*pair) >= 0 for pair in links)
    nic = FAST.access_switch(job.workers[0]), job.workers[0]
    assert left.residual_bandwidth_mbps(*nic) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("workers", [3, 4, 8])
def test_gathers_are_as_fast_where_the_workers_are_the_parameter_servers(workers):
    """One of them alone would send all chunks over its one link; several share them, and all-reduces lose nothing."""
    job = place_job(FAST, workers, None, seed=1)
    assert job.both_roles == set(job.workers)
    plain, fast = (get_strategy("inart")(FAST, replace(job, gathers=gathers)) for gathers in (False, True))
    assert fast.rate_mbps == pytest.approx(plain.rate_mbps)
    assert fast.gather_speed == pytest.approx(workers / (workers - 1))
    assert not fast.gathers_beside, "both roles have one link"
    links, _ = gather_loads(fast)
    for pair, load in links.items():
        assert load * fast.gather_speed * fast.rate_mbps <= FAST.bandwidth_mbps(*pair) * (1 + 1e-6)


def test_two_workers_of_which_one_is_the_parameter_server_have_rules():
    """What is for all but the other worker would lead to the parameter server's own host alone, over no link."""
    job = replace(place_job(FAST, 2, None, seed=1), gathers=True)
    plan = get_strategy("inart")(FAST, job)
    assert plan.gather_speed == 1
    rules.build(plan, FAST, LIMITS, job_id=1, epoch=1)


def test_a_parameter_server_that_is_full_is_no_faster():
    job = replace(place_job(FAST, 8, 1, seed=3), gathers=True)
    plan = get_strategy("inart")(FAST, job)
    assert plan.gather_speed == pytest.approx(1)
    assert plan.rate_mbps == pytest.approx(get_strategy("inart")(FAST, replace(job, gathers=False)).rate_mbps)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances())
def test_a_job_that_gathers_loses_no_rate(instance):
    topology, job = instance
    plan = get_strategy("inart")(topology, replace(job, gathers=True))
    assert plan.rate_mbps >= get_strategy("inart")(topology, job).rate_mbps * (1 - 1e-5)
    assert 1 <= plan.gather_speed <= max(2, len(job.workers))
    assert plan.rate_mbps == pytest.approx(evaluate(plan, topology).rate_mbps)
    assert plan.gather_speed == pytest.approx(gather_speed(plan, topology))


def test_without_room_for_their_labels_gathers_are_as_before():
    job = replace(place_job(FAST, 8, 2, seed=0), gathers=True)
    plan = get_strategy("inart")(limited(FAST, LIMITS), job)
    full = rules.build(plan, FAST, LIMITS, job_id=1, epoch=1)
    plain = rules.build(plan, FAST, LIMITS, job_id=1, epoch=1, gathers=False)
    most = max(len(r.labels) for r in plain.rulesets.values())
    small = rules.build(plan, FAST, replace(LIMITS, label_table_size=most), job_id=1, epoch=1)
    assert max(len(r.labels) for r in full.rulesets.values()) > most
    for config in small.agents.values():
        assert not any(tree.others_labels for tree in (*config.worker_trees, *config.root_trees))
        assert all(tree.gather_speed == 1 for tree in config.worker_trees)


def test_gathers_is_read_from_job_specs_and_files():
    job = parse_job("workers=4,ps=2,gathers=1", FAST)
    assert job.gathers and Job.from_json(job.to_json()) == job
    with pytest.raises(JobError, match="gathers must be 0 or 1, got 'yes'"):
        parse_job("workers=4,gathers=yes", FAST)
    with pytest.raises(JobError, match="gathers must be true or false"):
        Job.from_json({**job.to_json(), "gathers": 1})
    with pytest.raises(PlanError, match="gather_speed must be a number of at least 1"):
        Plan.from_json({**get_strategy("lbmm")(FAST, job).to_json(), "gather_speed": 0.5})


@pytest.mark.parametrize(("workers", "seed"), [(4, 0), (4, 3), (8, 0)])
def test_a_gather_runs_beside_a_reduce_scatter_where_links_carry_both(workers, seed):
    job = replace(place_job(FAST, workers, 2, seed=seed), gathers=True)
    plan = get_strategy("inart")(FAST, job)
    assert plan.gathers_beside and Plan.from_json(plan.to_json()) == plan
    assert plan.rate_mbps == pytest.approx(get_strategy("inart")(FAST, replace(job, gathers=False)).rate_mbps)
    links, roots = loads_beside(plan)
    assert all(load * plan.rate_mbps <= FAST.bandwidth_mbps(*pair) * (1 + 1e-6) for pair, load in links.items())
    for worker in job.workers:  # what a gather sends is what a reduce-scatter has left of the link
        assert links[worker, FAST.access_switch(worker)] == pytest.approx(1)
    assert sum(roots.values()) >= 2 - 1 / workers - 1e-6, "a reduce-scatter at 1 - 1 / W of the rate, and a gather"
    assert replan(plan, FAST).gathers_beside
    for config in rules.build(plan, FAST, LIMITS, job_id=1, epoch=1).agents.values():
        assert all(tree.directions == 2 for tree in (*config.worker_trees, *config.root_trees))
    assert all(with_loads(FAST, [plan]).residual_bandwidth_mbps(*pair) >= 0 for pair in links)


def test_one_parameter_server_does_not_carry_both_at_once():
    plan = get_strategy("inart")(FAST, replace(place_job(FAST, 8, 1, seed=3), gathers=True))
    assert not plan.gathers_beside
    for config in rules.build(plan, FAST, LIMITS, job_id=1, epoch=1).agents.values():
        assert all(tree.directions == 1 for tree in (*config.worker_trees, *config.root_trees))


def test_a_tree_with_too_few_slots_for_two_windows_has_one():
    quick = fattree(4, 200.0, aggregation_mbps=None, ingress_mbps=None)
    plan = get_strategy("inart")(quick, replace(place_job(quick, 4, 2, seed=0), gathers=True))
    for slots, directions in ((4096, 2), (32, 1)):
        agents = rules.build(plan, quick, replace(LIMITS, slots=slots), job_id=1, epoch=1).agents.values()
        assert {tree.directions for config in agents for tree in config.worker_trees} == {directions}
