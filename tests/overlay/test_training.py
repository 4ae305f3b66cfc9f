"""PyTorch trains over the overlay as it does over gloo."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from controlplane.planner.plan.task import Sending
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.wan.crew.policy import Crew, CrewSettings
from controlplane.planner.strategies.wan.policy import FollowPlan
from controlplane.planner.wan_networks import netstorm_draw, overlay
from evaluation.wan.networks import whole_job
from overlay import Coordinator
from overlay.net.hook import average
from tests.overlay.test_agents import SECONDS, running
from tests.overlay.training import train
from tests.support.examples import nightly
from tests.support.forked import forks_with

PROCESSES = forks_with("tests.overlay.training")


@pytest.mark.parametrize("strategy", ["wan", nightly("netstorm")])
def test_ddp_with_the_hook_has_the_losses_of_gloo(strategy, tmp_path):
    graph = netstorm_draw(np.random.default_rng(1)).subgraph([0, 1, 2]).copy()
    topology, world = overlay(graph), len(graph)
    plan = get_strategy(strategy)(topology, whole_job(graph, 4000), seed=1)
    with Coordinator(FollowPlan(plan, topology, sending=Sending(paced=False, chunk_values=64))) as coordinator:
        outs = [tmp_path / f"{rank}.json" for rank in range(world)]
        ranks = [
            PROCESSES.Process(
                target=train, args=(rank, world, str(tmp_path / "store"), coordinator.address[1], str(out))
            )
            for rank, out in enumerate(outs)
        ]
        try:
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join(150)
            assert [rank.exitcode for rank in ranks] == [0] * world
        finally:
            for rank in ranks:
                rank.kill()
    found = [json.loads(out.read_text()) for out in outs]
    gloo, ours = found[0]
    np.testing.assert_allclose(ours, gloo, rtol=1e-5, atol=1e-5)
    assert ours[-2] < ours[0]
    assert all(other[1][-1] == ours[-1] for other in found), "the models are equal, bit by bit"


def test_models_are_averaged_in_groups():
    nodes = ("a", "b", "c", "d")
    bandwidth = np.full((4, 4), 100.0)
    np.fill_diagonal(bandwidth, np.inf)
    models = {node: nn.Linear(10, 3) for node in nodes}
    for k, node in enumerate(nodes):
        for parameter in models[node].parameters():
            nn.init.constant_(parameter, float(k))
    with (
        running(Crew(nodes, bandwidth, 2, settings=CrewSettings(chunk_values=8))) as (_, agents),
        ThreadPoolExecutor(4) as pool,
    ):
        dones = dict(zip(nodes, pool.map(lambda n: average(models[n], agents[n], SECONDS), nodes), strict=True))
    for node in nodes:
        wanted = np.mean([nodes.index(other) for other in dones[node].participants])
        assert len(dones[node].participants) == 2
        for parameter in models[node].parameters():
            assert torch.equal(parameter, torch.full_like(parameter, wanted))
