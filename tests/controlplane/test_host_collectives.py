"""The rates that hosts reach without switches that aggregate, and bounds that no all-reduce of any kind can beat."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from controlplane.cli.plan.command import main
from controlplane.planner.adding_hosts import workers_add
from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import fattree, parse_topology
from controlplane.planner.job import Job, place_job
from controlplane.planner.plan.host_collectives import best_host_trees, host_rows
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.fabric.bounds import all_reduce_bound
from controlplane.planner.topology import Topology
from tests.controlplane.instances import instances, random_plan
from tests.support.examples import examples


@pytest.mark.parametrize(
    ("spec", "workers", "ring", "trees"),
    [
        ("fattree:k=6", 50, 20 * 50 / 98, 20 * 50 / 98),  # B W / (2 (W - 1)): the hosts' own links are the bottleneck.
        ("fattree:k=8,oversubscription=4", 120, 20 * 120 / 238, 20 * 120 / 238),
        # The racks' links are the bottleneck: each of R racks is crossed once at best.
        ("fattree:k=6,oversubscription=8", 54 - 1, None, 7.5 * 18 / 34),
    ],
)
def test_known_rates(spec, workers, ring, trees):
    topology = parse_topology(spec)
    job = place_job(topology, workers, 1, seed=1)
    rates = {row.strategy: row.rate_mbps for row in host_rows(topology, job)}
    assert rates["host-trees"] == pytest.approx(trees, rel=1e-4)
    if ring is not None:
        assert rates["host-ring"] == pytest.approx(ring)
    assert all(rate <= rates["host-trees"] * (1 + 1e-4) for rate in rates.values())


def test_the_best_trees_where_some_links_are_far_faster_than_others():
    """A thin link between two switches, and links of servers that are 10,000 times as fast."""
    topology = parse_topology("dumbbell:left=2,right=2,bandwidth=10000000,trunk=500,ingress=10000000")
    rates = {row.strategy: row.rate_mbps for row in host_rows(topology, place_job(topology, 3, 1, seed=1))}
    assert rates["host-trees"] == pytest.approx(500.0, rel=1e-4)
    slow = topology.replace(nodes={server: {"ingress_mbps": 20.0} for server in topology.servers})
    rates = {row.strategy: row.rate_mbps for row in host_rows(slow, place_job(slow, 3, 1, seed=1))}
    assert rates["host-trees"] == pytest.approx(20.0, rel=1e-3)  # as everyone sends everyone else a third


def by_flows(topology: Topology, job: Job) -> float:
    """Return the rate of the best trees of hosts, computed independently of the planner. One linear program has a flow
    to and from each worker (max-flow equals min-cut) instead of cuts.
    """
    nodes = [*topology.switches, *job.workers]
    links = [(u, v) for u, v in topology.links if u in nodes and v in nodes]
    many, workers = len(links), len(job.workers)
    # After these come c, and for each of b and c and each worker a flow with its part of each root.
    f, x, b = 0, 1, 1 + workers
    c = b + many
    flows = c + many
    size = many + workers
    columns = flows + 2 * workers * size
    less: list[tuple[dict[int, float], float]] = []
    same: list[dict[int, float]] = [{f: -1.0, **{x + i: 1.0 for i in range(workers)}}]
    for e, (u, v) in enumerate(links):
        less.append(({b + e: 1.0, c + e: 1.0}, topology.residual_bandwidth_mbps(u, v)))
    for side in (b, c):
        for node in topology.switches:
            same.append({side + e: 1.0 if v == node else -1.0 for e, (u, v) in enumerate(links) if node in (u, v)})
    for k, (side, back) in enumerate(((b, False), (c, True))):
        for w, goal in enumerate(job.workers):
            first = flows + (k * workers + w) * size
            less += [({first + e: 1.0, side + e: -1.0}, 0.0) for e in range(many)]
            less += [({first + many + i: 1.0, x + i: -1.0}, 0.0) for i in range(workers)]
            for node in nodes:
                row = {first + e: (1.0 if (u if back else v) == node else -1.0) for e, (u, v) in enumerate(links)
                       if node in (u, v)}  # fmt: skip
                if node in job.workers:
                    row[first + many + job.workers.index(node)] = 1.0
                if node == goal:
                    row[f] = -1.0
                same.append(row)

    def matrix(rows: list[dict[int, float]]) -> np.ndarray:
        found = np.zeros((len(rows), columns))
        for i, row in enumerate(rows):
            for column, value in row.items():
                found[i, column] = value
        return found

    cost = np.zeros(columns)
    cost[f] = -1.0
    solved = linprog(cost, matrix([row for row, _ in less]), [limit for _, limit in less], matrix(same),
                     np.zeros(len(same)))  # fmt: skip
    assert solved.status == 0
    return -solved.fun


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(max_switches=4, max_workers=5))
def test_the_best_trees_of_hosts_agree_with_max_flow(instance):
    topology, job = instance
    if len(job.workers) < 2:
        return
    free = topology.replace(nodes={server: {"ingress_mbps": None} for server in topology.servers})
    assert best_host_trees(free, job) == pytest.approx(by_flows(free, job), rel=1e-3, abs=1e-6)
    assert best_host_trees(topology, job) <= best_host_trees(free, job) * (1 + 1e-3)


@pytest.mark.parametrize("intake", [4.0, 8.0, None])
def test_what_a_host_takes_in_counts_for_rows_of_hosts_as_for_plans(intake):
    """Every input of a sum counts, a host's own gradients, too. The rows had 10 Mbit/s whatever the hosts take in."""
    nodes = {"s": {"kind": "switch", "aggregation_mbps": 0.0}}
    nodes |= {host: {"kind": "server", "ingress_mbps": intake} for host in "ab"}
    links = [(u, v, {"bandwidth_mbps": 10.0}) for host in "ab" for u, v in ((host, "s"), ("s", host))]
    topology, job = Topology(nodes, links), Job("j", ("a", "b"), ("a", "b"), 1000)
    rate = 10.0 if intake is None else intake
    assert get_strategy("inart")(topology, job).rate_mbps == pytest.approx(rate)
    rows = {row.strategy: row for row in host_rows(topology, job)}
    assert {name: row.rate_mbps for name, row in rows.items()} == pytest.approx(dict.fromkeys(rows, rate))
    assert rows["host-ring"].bottleneck == ("a->s" if intake is None else "a")
    assert all_reduce_bound(topology, job).mbps == pytest.approx(rate)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(max_switches=4, max_workers=5), st.lists(st.sampled_from([2.0, 9.0, 40.0, None]), min_size=8))
def test_hosts_that_take_in_only_so_much_and_add_are_planned_at_least_as_fast_as_they_are_alone(instance, intakes):
    topology, job = instance
    if len(job.workers) < 2:
        return
    limited = {server: {"ingress_mbps": mbps} for server, mbps in zip(topology.servers, intakes, strict=False)}
    topology = topology.replace(nodes=limited)
    network, everywhere = workers_add(topology, job)
    rate = get_strategy("inart")(network, everywhere).rate_mbps
    for row in host_rows(topology, job):
        assert row.rate_mbps <= all_reduce_bound(topology, job).mbps * (1 + 1e-6)
        assert row.rate_mbps <= rate * (1 + 1e-3)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(instances(), st.integers(0, 10**6))
def test_nothing_beats_the_bound_of_any_kind(instance, seed):
    topology, job = instance
    limit = all_reduce_bound(topology, job).mbps * (1 + 1e-6)
    assert evaluate(random_plan(topology, job, seed), topology).rate_mbps <= limit
    rows = host_rows(topology, job)
    assert all(row.rate_mbps <= limit for row in rows)
    best = [row.rate_mbps for row in rows if row.strategy == "host-trees"]
    assert all(row.rate_mbps <= rate * (1 + 1e-3) for rate in best for row in rows)


def test_compare_lists_the_rates_of_hosts_and_reports_when_they_are_faster(capsys):
    words = ["--topology", "fattree:k=6", "--job", "workers=50,ps=4,seed=1,model=1M"]
    chosen = ["--strategy", "inart,host-ring,reduce-scatter+all-gather,host-trees"]
    assert main([*words, *chosen, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["strategy"]: row for row in found["strategies"]}
    for name, rate in (("inart", 9.538), ("host-ring", 10.204), ("host-trees", 10.204)):
        assert rows[name]["rate_mbps"] == pytest.approx(rate, rel=1e-3)
        assert rows[name]["seconds"] == pytest.approx(8 / rate, rel=1e-3)
        assert rows[name]["bound_mbps"] >= rate * 0.999 and rows[name]["bound"]
    assert found["all_reduce_bound_mbps"] >= 14.19
    assert main([*words, *chosen]) == 0
    assert "is faster than all plans for these parameter servers" in capsys.readouterr().out
    assert main(words) == 0
    assert "without switches that add, is faster: 10.2041 Mbit/s" in capsys.readouterr().out


def test_hosts_of_a_higher_rate_are_not_recommended_where_their_messages_take_longer(capsys):
    """At k = 6 with 50 workers hosts have 10.2 Mbit/s and the plan 9.5; of 20 KB their 98 messages take longer."""
    words = ["--topology", "fattree:k=6", "--target", "v1model", "--job"]
    chosen = ["--strategy", "inart,host-ring"]
    assert main([*words, "workers=50,ps=4,seed=1,model=20K"]) == 0
    assert "without switches that add" not in capsys.readouterr().out
    assert main([*words, "workers=50,ps=4,seed=1,model=20K", *chosen]) == 0
    assert "host-ring, without switches that add, has a higher rate, 10.2041 Mbit/s, and takes longer at this size" in (
        capsys.readouterr().out
    )


def test_compare_does_not_recommend_hosts_where_switches_are_faster(capsys):
    assert main(["--topology", "fattree:k=4,aggregation=100", "--job", "workers=8,ps=8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "faster" not in found and found["rate_mbps"] > 12
    assert found["rate_mbps"] <= found["all_reduce_bound_mbps"]


def test_the_bound_of_any_kind_holds_where_results_do_not_count_on_links(capsys):
    words = ["--topology", "testbed:switch=60,server=40,link=60", "--job", "workers=3,ps=workers", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rate_mbps"] == pytest.approx(90)
    assert found["rate_mbps"] <= found["all_reduce_bound_mbps"] * (1 + 1e-6)


def test_one_worker_and_workers_that_cannot_reach_each_other():
    topology = fattree(4)
    assert host_rows(topology, place_job(topology, 1, 1)) == []
    job = Job("j", ("a", "b"), ("c",), 1000)
    nodes = {"s": {"kind": "switch"}, "t": {"kind": "switch"}, **{n: {"kind": "server"} for n in "abc"}}
    ends = [("a", "s"), ("b", "t"), ("c", "t")]
    links = [(u, v, {"bandwidth_mbps": 10.0}) for pair in ends for u, v in (pair, pair[::-1])]
    assert host_rows(Topology(nodes, links), job) == []
