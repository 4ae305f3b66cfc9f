"""What a job could not have more of, and how much of that is its own: in `job list`, `status` and on the page."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.cli.controller import format_jobs
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.generators import fattree, leaf_spine
from controlplane.planner.job import Job
from controlplane.planner.plan import Plan
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology
from controlplane.service.shares import Loads, Used, bottleneck_words
from tests.support.examples import examples

TREE = fattree(4, 100.0)
HOSTS = TREE.servers
JOBS = (
    Job("one", HOSTS[:5], HOSTS[5:6], 10**6),
    Job("two", HOSTS[8:13], HOSTS[13:14], 10**6),
    Job("across", (HOSTS[6], HOSTS[14], HOSTS[0]), (HOSTS[7],), 10**6),
)


@cache
def plans() -> tuple[Plan, ...]:
    """Each for a network of its own."""
    return tuple(get_strategy("inart")(TREE, job, seed=0) for job in JOBS)


def full(topology: Topology, used: Used) -> dict[str, float]:
    """How full everything that is used is."""
    found = {f"{u}->{v}": load / topology.residual_bandwidth_mbps(u, v) for (u, v), load in used.links.items()}
    found |= {node: load / topology.residual_aggregation_mbps(node) for node, load in used.switches.items()}
    return found | {node: load / topology.residual_ingress_mbps(node) for node, load in used.roots.items()}


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=len(JOBS), max_size=len(JOBS)))
def test_the_bottleneck_is_what_is_fullest_and_shares_of_it_are_one_together(parts: list[float]) -> None:
    loads = [
        Loads.of(replace(plan, rate_mbps=plan.rate_mbps * part), TREE)
        for plan, part in zip(plans(), parts, strict=True)
    ]
    used = Used(TREE, loads)
    fullness = full(TREE, used)
    for own in loads:
        found = used.bottleneck(own)
        mine = {*own.switches, *own.roots, *("->".join(link) for link in own.links)}
        assert found["name"] in mine
        assert found["used"] == pytest.approx(max(fullness[name] for name in mine))
        total = 0.0
        for other in loads:
            kinds = {"link": other.links, "switch": other.switches, "parameter_server": other.roots}
            name = tuple(found["link"]) if found["link"] else found["name"]
            load, whole = kinds[found["kind"]].get(name, 0.0), found["used"] * capacity(found)
            total += load / whole
            if other is own:
                assert found["share"] == pytest.approx(load / whole)
        assert total == pytest.approx(1.0)


def test_server_that_is_also_a_worker_is_not_more_than_full() -> None:
    """The page said "200 % full": the server's own gradients were counted as if they came over its link."""
    job = Job("both", HOSTS[:4], HOSTS[:4], 10**6)
    network = fattree(4, 100.0, aggregation_mbps=None, ingress_mbps=None)
    loads = Loads.of(get_strategy("inart")(network, job, seed=0), network)
    assert Used(network, [loads]).bottleneck(loads)["used"] == pytest.approx(1)


def capacity(found: dict[str, object]) -> float:
    """What there is of a bottleneck, Mbit/s."""
    if found["link"]:
        return TREE.residual_bandwidth_mbps(*found["link"])  # type: ignore[misc]
    name = str(found["name"])
    return TREE.residual_aggregation_mbps(name) if found["kind"] == "switch" else TREE.residual_ingress_mbps(name)


def test_of_equals_that_is_said_which_is_shared() -> None:
    """Two jobs of one worker at a leaf, each with links of its own that are as full as the one that they share."""
    topology = leaf_spine(2, 1, 4, 10.0, uplink_mbps=20.0, aggregation_mbps=None, ingress_mbps=None)
    left, right = topology.servers[:4], topology.servers[4:]
    loads = []
    for number in range(2):
        plan = get_strategy("inart")(topology, Job(f"j{number}", (left[number],), (right[number],), 10**6), seed=0)
        assert plan.rate_mbps == pytest.approx(10.0)
        loads.append(Loads.of(plan, topology))
    used = Used(topology, loads)
    for own in loads:
        found = used.bottleneck(own)
        assert found["used"] == pytest.approx(1.0) and found["share"] == pytest.approx(0.5)
        assert bottleneck_words(found) == f"link {found['name']}, 100 % full, 50 % of that its own"
    alone = Used(topology, loads[:1])
    assert bottleneck_words(alone.bottleneck(loads[0])).endswith(" 100 % full")


def test_of_what_is_shared_that_is_said_of_which_the_job_has_most() -> None:
    """Of two full links, of which a job has a half and a tenth, the first is where rates are made equal."""
    few, half = [(u, v) for u, v in TREE.links if TREE.residual_bandwidth_mbps(u, v) == 100.0][:2]
    own = Loads({}, {few: 10.0, half: 50.0}, {}, {}, {})
    other = Loads({}, {few: 90.0, half: 50.0}, {}, {}, {})
    found = Used(TREE, [own, other]).bottleneck(own)
    assert (found["link"], found["share"]) == (list(half), 0.5)


def test_a_job_of_nothing_has_no_bottleneck() -> None:
    nothing = Loads({}, {}, {}, {}, {})
    assert bottleneck_words(Used(TREE, [nothing]).bottleneck(nothing)) == ""


def test_the_table_of_jobs_says_it() -> None:
    header, *rows = format_jobs(
        [pb.JobStatus(name="a", bottleneck="switch s1, 80 % full, 25 % of that its own"), pb.JobStatus(name="b")]
    )
    at = header.index("bottleneck")
    assert rows[0][at:].startswith("switch s1, 80 % full, 25 % of that its own") and rows[1][at:].startswith("-")
