"""DDP with the hook: trainers use the agent processes of two namespaces, whose gradients a switch sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hook.conftest import Network, wait_until
from tests.hook.processes import Rank


def run_ranks(scenario: str, folder: Path, per_rank: list[dict], **arguments) -> list[dict]:
    store = str(folder / "store")
    started = [Rank(scenario, rank=rank, store=store, **arguments, **own) for rank, own in enumerate(per_rank)]
    return [rank.result() for rank in started]


def start_agents(network: Network) -> list[dict]:
    """The agents of both workers as processes; where each rank finds its own."""
    where = []
    for node in ("w0", "w1"):
        path = f"{network.folder}/{node}.sock"
        network.run(node, "worker_agent", "serve", "--controller", network.address, "--socket", path)
        where.append({"agent": f"unix:{path}"})
    wait_until(lambda: all(Path(one["agent"].removeprefix("unix:")).exists() for one in where), "the agents listen")
    return where


@pytest.mark.namespaces
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-2)])
def test_training_with_the_hook_equals_training_without(network, tmp_path, dtype, tolerance):
    network.run_server()
    results = run_ranks("train", tmp_path, start_agents(network), dtype=dtype)
    for result in results:
        assert result["in_network"]
        assert result["losses"] == pytest.approx(result["expected"], rel=tolerance)
        assert result["difference"] < 10 * tolerance
    # All ranks have the same bits.
    assert results[0]["digest"] == results[1]["digest"]
    assert network.hub.verdicts()["completed"] > 0


@pytest.mark.namespaces
def test_one_rank_without_agent_makes_all_fall_back(network, tmp_path):
    network.run_server()
    where = start_agents(network)
    where[1] = {"agent": f"unix:{tmp_path}/nobody.sock"}
    results = run_ranks("train", tmp_path, where, timeout=60.0)
    for result in results:
        assert not result["in_network"]
        assert result["losses"] == result["expected"]
        assert len(result["warnings"]) == 1
        assert "rank 1: no agent at" in result["warnings"][0]
        assert "torch.distributed's all-reduce is" in result["warnings"][0]


@pytest.mark.namespaces
def test_missing_parameter_server_is_named_in_the_warning(network, tmp_path):
    results = run_ranks("train", tmp_path, start_agents(network), timeout=4.0)
    for result in results:
        assert not result["in_network"]
        assert "s0" in result["warnings"][0]


def test_missing_controller_is_named_in_the_warning(tmp_path):
    results = run_ranks("train", tmp_path, [{}, {}], controller="127.0.0.1:1", timeout=0.5, steps=2)
    for result in results:
        assert not result["in_network"]
        assert result["losses"] == result["expected"]
        assert "all ranks: not ready after 0.5 s: controller at 127.0.0.1:1" in result["warnings"][0]


@pytest.mark.namespaces
def test_death_in_the_middle_is_an_error_that_names_the_dead(network, tmp_path):
    server = network.run_server()
    where = start_agents(network)
    store = str(tmp_path / "store")
    started = [Rank("lose", rank=rank, store=store, **own) for rank, own in enumerate(where)]
    assert [rank.receive() for rank in started] == ["trained", "trained"]
    # `ip netns exec` has replaced itself by Python: this ends the server and nothing else.
    server.kill()
    for rank in started:
        assert "AbortedError: s0 is gone (its connection ended)" in rank.result()["error"]
