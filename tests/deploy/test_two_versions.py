"""Two versions of a plan on the switches at once, in a migration, that are rerouted around a failure together."""

from __future__ import annotations

import pytest

from controlplane.planner.generators import fattree
from controlplane.planner.job import Job
from controlplane.planner.rules import Taken
from controlplane.planner.strategies import get_strategy
from controlplane.service.next_plan import Frame
from controlplane.service.room import build_beside, deployment_of, part, union
from controlplane.service.versions import Version, reroute_versions, rulesets
from controlplane.targets.base import empty

NETWORK = fattree(4, 10.0)
JOB = Job("one", ("h1", "h5", "h9", "h13", "h2", "h6"), ("h10", "h14"), 80_000)


@pytest.fixture(scope="module")
def installed(kind) -> list[Version]:
    """Return two versions, the second beside the first."""
    plans = [get_strategy(name)(NETWORK, JOB) for name in ("inart", "atp")]
    first = deployment_of(plans[0], NETWORK, kind, 1)
    second = build_beside(plans[1], NETWORK, kind.limits, first, job_id=1)
    return [Version(plan, made) for plan, made in zip(plans, (first, second), strict=True)]


@pytest.mark.parametrize("gone", [name for name in NETWORK.switches if not name.startswith("e")])
def test_each_has_groups_of_its_own_on_the_ways_around(kind, installed, gone):
    """A group that both took under one number would send one version's results where only the other's belong."""
    there = rulesets(installed)
    taken = {v: Taken.by(union(empty(v), [there[v]])) for v in NETWORK.switches}
    around = reroute_versions(Frame(JOB, kind.limits), installed, NETWORK.replace(remove_nodes=[gone]), taken, {})
    assert around.trees
    for switch, rules in rulesets(version for version in around.versions if version is not None).items():
        numbers = [group.group for group in part(rules).groups]
        assert len(numbers) == len(set(numbers)), f"{switch} has one number for two groups"
