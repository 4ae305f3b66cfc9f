"""The settings of the papers' systems are made equal; and the reports of real training across sites."""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor

import networkx as nx
import numpy as np
import pytest
import torch

from controlplane.planner.strategies.wan.policy import Changed, FollowNetwork, Ready, Start
from controlplane.planner.wan_networks import netstorm_draw
from evaluation.wan.learning import Lesson, learn, shares
from evaluation.wan.through import Load
from evaluation.wan.through import measure as through
from evaluation.wan.train import changes, link_bytes, mean_accuracy, simulate
from examples.train_digits import digits
from overlay.core.systems import PAPERS, LinkQuality, make
from tests.overlay.test_agents import running
from tests.support.examples import nightly
from topologies.wan.networks import emulated, scaled

NAMES = tuple(dict.fromkeys(name for names in PAPERS.values() for name in names))
SLOW = ("selmcast-l3", "selmcast-bsp-l3")
"""Systems for `make nightly`: orpheus-l3 does the same here, and selmcast-l3 runs across an emulated network."""


@pytest.fixture(scope="module")
def network() -> tuple[nx.DiGraph, float]:
    return scaled(netstorm_draw(np.random.default_rng(1)), 200.0)


@pytest.mark.parametrize("name", [nightly(name) if name in SLOW else name for name in NAMES])
def test_every_system_trains_in_the_simulator_while_links_change(name: str, network) -> None:
    graph, factor = network
    settings = argparse.Namespace(seed=1, compute=0.3, loss=0.0, chunk=2048, redraw=3.0, seconds=8.0)
    policy = make(name, graph, 20_000, p=4, chunk=2048, seed=1, update=1.0)
    tasks = simulate(policy, emulated(graph, 5.0), 20_000, settings, changes(graph, factor, 1))
    rounds = [so_far for at, _, so_far in tasks if at <= settings.seconds]
    assert rounds == sorted(rounds) and rounds[-1] >= 2 and all(0 < s <= at for at, s, _ in tasks)


def test_our_plan_follows_the_network_and_keeps_to_it(network) -> None:
    graph, factor = network
    policy = make("wan", graph, 20_000, p=4, chunk=2048, seed=1)
    assert isinstance(policy, FollowNetwork)
    before = policy.plan
    for (u, v), mbps in changes(graph, factor, 1)(1).items():
        policy.handle(Changed(f"h{u}", f"h{v}", mbps), 0.0)
    orders = [o for node in policy.nodes for o in policy.handle(Ready(node, 20_000), 0.0)]
    assert isinstance(orders[0], Start) and policy.decisions == 2 and policy.plan.trees != before.trees
    assert policy.plan.rate_mbps == pytest.approx(policy.plan.proven_mbps, rel=2e-3)


def test_our_plan_accounts_for_packet_loss(network) -> None:
    graph, _ = network
    rates = [
        make("wan", graph, 20_000, p=4, chunk=2048, seed=1, links=LinkQuality(loss, delay_ms)).plan.rate_mbps
        for loss, delay_ms in ((0.0, 30.0), (0.01, 30.0), (0.01, 300.0))
    ]
    assert rates[0] > 1.02 * rates[1] > 1.02 * rates[2]


@pytest.mark.parametrize("alike", [True, False])
def test_every_image_goes_to_one_site(alike: bool) -> None:
    labels = digits().train_labels
    parts = shares(labels, 8, alike=alike, seed=1)
    assert torch.equal(torch.sort(torch.cat(parts)).values, torch.arange(len(labels)))
    kinds = [len(labels[part].unique()) for part in parts]
    assert min(kinds) == 10 if alike else max(kinds) <= 4


@pytest.mark.parametrize("name", ["wan", "selmcast"])
def test_sites_train_over_sockets(name: str, network) -> None:
    graph = network[0].subgraph([0, 1, 2]).copy()
    torch.set_num_threads(1)
    lesson = Lesson(width=4, steps=2, copies=name == "selmcast")
    policy = make(name, graph, 12_161, p=2, chunk=2048, seed=1)
    with running(policy) as (_, agents), ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda k: learn(agents[f"h{k}"], k, 3, lesson, rounds=3), range(3)))
    assert [[point.round for point in points] for points in found] == [[1, 2, 3]] * 3
    if name == "wan":  # All workers have the same model.
        assert len({points[-1].accuracy for points in found}) == 1


def test_curves_and_bytes_cover_all_sites() -> None:
    reports = [
        {"node": "h0", "bytes_sent": {"h1": 10}, "points": [{"at_s": 1.0, "accuracy": 0.2}]},
        {
            "node": "h1",
            "bytes_sent": {"h0": 5},
            "points": [{"at_s": 2.0, "accuracy": 0.4}, {"at_s": 3.0, "accuracy": 0.6}],
        },
    ]
    assert mean_accuracy(reports) == (
        (2.0, pytest.approx(0.3)),
        (3.0, pytest.approx(0.4)),
    )
    routes = {("h0", "h1"): ["h0", "dc0", "dc2", "dc1", "h1"], ("h1", "h0"): ["h1", "dc1", "dc0", "h0"]}
    assert link_bytes(reports, routes) == {"dc0->dc2": 10, "dc2->dc1": 10, "dc1->dc0": 5}


def test_a_sites_traffic_is_counted_over_its_cpu_seconds():
    row = through(Load(20_000, rounds=1), 4096, 4)
    assert row["in_and_out_gbit_per_cpu_s"] == pytest.approx(2 * row["in_gbit_per_cpu_s"])
    assert row["in_gbit_per_cpu_s"] > 0 and row["leaf_cpu_s"] > 0
