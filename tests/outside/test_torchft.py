"""torchft's own tests of process groups pass over ours."""

from __future__ import annotations

import os

import pytest

from tests.outside import recipes, torchft, torchft_manager
from tests.outside.network import Nodes


@pytest.mark.namespaces
@pytest.mark.timeout(400)
def test_torchft_s_tests_of_all_reduce_and_barrier_pass_and_a_rank_that_goes_ends_them():
    if why := recipes.missing(*torchft.NEEDS):
        pytest.skip(why)
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    with Nodes(3) as nodes:
        found = torchft.run(["_allreduce", "_barrier"], nodes.agents)
        assert {one["outcome"] for one in found} == {"passed"}, found
        assert sum("resiliency" in one["name"] for one in found) >= 2
        assert nodes.added() > 0, "they went through the switch"


@pytest.mark.namespaces
@pytest.mark.timeout(400)
def test_under_its_manager_a_replica_dies_within_a_step_and_comes_back():
    if why := recipes.missing(*torchft_manager.NEEDS):
        pytest.skip(why)
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    found = torchft_manager.run()
    assert found["lost"]["counted"] is False, "the step in which it died"
    assert found["alone"]["step"] >= found["lost"]["step"] + torchft_manager.ALONE
    assert found["together"]["chunks"] > 0
    assert found["together again"]["chunks"] > 0, "back in the network"


@pytest.mark.namespaces
@pytest.mark.timeout(600)
@pytest.mark.parametrize("algorithm", ["local", "diloco"])
def test_its_local_sgd_and_diloco_train_as_over_gloo_and_a_replica_dies_and_comes_back(algorithm):
    if why := recipes.missing(*torchft_manager.NEEDS):
        pytest.skip(why)
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    found = torchft_manager.run(algorithm)
    assert found["lost"]["counted"] is False, "the round in which it died"
    assert found["alone"]["step"] >= found["lost"]["step"] + torchft_manager.ALONE
    assert found["together"]["chunks"] > 0
    assert found["together again"]["chunks"] > 0, "back in the network"
    assert torchft_manager.beside_gloo(algorithm) < torchft_manager.LARGEST
