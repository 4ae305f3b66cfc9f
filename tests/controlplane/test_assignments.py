"""Workers' ways are stored once a rack, and nobody notices: they are the same sequence, and wrong ones are found."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.planner.generators import fattree
from controlplane.planner.job import place_job
from controlplane.planner.plan import Assignment, Assignments, Plan, PlanError
from controlplane.planner.strategies import get_strategy
from tests.controlplane.instances import instances, random_plan
from tests.support.examples import examples


@settings(max_examples=examples(40), deadline=None)
@given(instances(), st.integers(0, 10**6))
def test_they_are_the_sequence_that_was_given(instance, seed):
    topology, job = instance
    plan = random_plan(topology, job, seed)
    for tree in plan.trees:
        written_out = tuple(tree.assignments)
        again = Assignments.of(reversed(written_out))
        assert again == written_out[::-1] and written_out[::-1] == again and hash(again) == hash(written_out[::-1])
        assert Assignments.of(written_out) == tree.assignments == written_out
        assert [tree.assignments[i] for i in range(-1, len(written_out) - 1)] == [written_out[-1], *written_out[:-1]]
        assert tree.assignments[1:3] == written_out[1:3]
        assert pickle.loads(pickle.dumps(tree)) == tree == copy.deepcopy(tree)
        assert len(written_out) < 2 or again != tree.assignments
        assert tree.assignments != written_out[1:] and tree.assignments != "no sequence of these"
    assert Plan.from_json(plan.to_json()) == plan


def several_trees():
    topology = fattree(6)
    return topology, get_strategy("inart")(topology, place_job(topology, 50, 4, seed=1))


def test_workers_of_a_rack_share_their_way():
    topology, plan = several_trees()
    racks = {topology.access_switch(worker) for worker in plan.job.workers}
    assert len(plan.trees) > 40 and all(len(tree.assignments.ways) <= len(racks) for tree in plan.trees)
    assert all(len(tree.assignments) == 50 for tree in plan.trees)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda a, other: Assignment(a.worker, a.point, (a.worker, "c1", a.point)), "link h.* -> c1 does not exist"),
        (lambda a, other: Assignment(a.worker, a.point, (other.worker, *a.route[1:])), "must lead from"),
        (lambda a, other: Assignment(a.worker, a.point, a.route[:-1]), "must lead from"),
        (lambda a, other: Assignment(a.worker, a.point, ()), "must lead from"),
        (lambda a, other: Assignment(a.worker, a.point, (*a.route[:-1], a.route[-2], a.point)), "visits a node twice"),
        (lambda a, other: Assignment(a.worker, other.worker, (a.worker, other.worker)), "does not exist|no relay"),
        (lambda a, other: a._replace(worker=other.worker), "assigned exactly once"),
    ],
)
@pytest.mark.parametrize("place", [0, 30, 49])
def test_one_wrong_way_in_a_tree_is_found_where_all_others_were_right(wrong, message, place):
    """What was right in the trees before is not looked at again; this must not hide anything."""
    topology, plan = several_trees()
    plan.check(topology)
    listed = list(plan.trees[5].assignments)
    listed[place] = wrong(listed[place], listed[place - 20])
    trees = list(plan.trees)
    trees[5] = replace(trees[5], assignments=Assignments.of(listed))
    with pytest.raises(PlanError, match=f"tree 5 .*({message})"):
        replace(plan, trees=tuple(trees)).check(topology)
