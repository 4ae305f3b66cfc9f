"""The arithmetic of a stream of jobs, on networks where it can be computed by hand."""

from __future__ import annotations

import pytest

from controlplane.planner.generators import fattree
from controlplane.planner.job import Job
from controlplane.planner.shapes import Rates, dumbbell
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology
from evaluation.jobs.stream import Arrival, max_min, most_together, run, ways


def jobs() -> tuple[Topology, list[Arrival]]:
    """Return two jobs across a link of 10 Mbit/s that only their workers use; no switch on the way can aggregate."""
    topology = dumbbell(2, 2, Rates(100.0, aggregation_mbps=0.0, ingress_mbps=100.0), trunk_mbps=10.0)
    one, two = Job("one", ("h1",), ("h3",), 1000), Job("two", ("h2",), ("h4",), 1000)
    return topology, [Arrival(one, 0.0, 100.0), Arrival(two, 5.0, 100.0)]


def test_completion_times_of_two_jobs_that_share_a_link():
    topology, arrivals = jobs()
    made = ways(topology, arrivals, 2)
    # The first job runs alone for 5 s at 10 Mbit/s; then both run at 5 Mbit/s until the first one ends at 15 s.
    assert run(arrivals, made["shared"]) == pytest.approx([15.0, 15.0], rel=1e-3)
    assert run(arrivals, made["queue"]) == pytest.approx([10.0, 15.0], rel=1e-3)
    assert run(arrivals, made["static"]) == pytest.approx([20.0, 20.0], rel=1e-3)
    assert most_together(arrivals, [15.0, 15.0]) == 2


def test_max_min_of_fixed_plans_gives_every_job_at_least_an_equal_share():
    topology = fattree(4)
    servers = topology.servers
    atp = get_strategy("atp")
    plans = [
        atp(topology, Job("one", servers[:4], servers[4:5], 1000), seed=0),
        atp(topology, Job("two", servers[6:10], servers[5:6], 1000), seed=0),
    ]
    found = max_min(topology, plans)
    for plan, rate in zip(plans, found, strict=True):
        assert plan.rate_mbps / 2 * (1 - 1e-9) <= rate <= plan.rate_mbps * (1 + 1e-9)
