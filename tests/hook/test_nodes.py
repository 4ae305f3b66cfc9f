"""Several ranks per node, the backend, and sharded models through the agents of two namespaces, compared with gloo."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.hook.conftest import Network
from tests.hook.processes import Rank, survive_turn
from tests.hook.sharded import STEPS
from tests.hook.test_training import run_ranks, start_agents
from tests.support.examples import nightly


def start_nodes(
    scenario: str, network: Network, folder: Path, ranks: int, *, launcher: bool = True, **arguments
) -> list[Rank]:
    """Start two nodes of this many ranks each, with the environment that torchrun (`launcher`) would give them."""
    store, started = str(folder / "store"), []
    for number, where in enumerate(start_agents(network)):
        for local in range(ranks):
            environment = {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": str(number)}
            environment = environment if launcher else {}
            rank = number * ranks + local
            started.append(
                Rank(scenario, rank=rank, store=store, world=2 * ranks, environment=environment, **where, **arguments)
            )
    return started


def run_nodes(scenario: str, network: Network, folder: Path, ranks: int, **arguments) -> list[dict]:
    """Start two nodes and a parameter server, and run them to the end."""
    network.run_server()
    return [rank.result() for rank in start_nodes(scenario, network, folder, ranks, **arguments)]


def test_a_nodes_mean_is_finite_if_only_the_sum_is_not() -> None:
    torch = pytest.importorskip("torch")
    sum_of = importlib.import_module("worker_agent.torch.passage").sum_of
    for dtype in (torch.float32, torch.bfloat16):
        rows = torch.tensor([[3e38, 1.0, 3e38], [3e38, 3.0, float("inf")]], dtype=dtype)
        assert sum_of(rows, 2).to(dtype).tolist() == [rows[0, 0].item(), 2.0, float("inf")]
        assert sum_of(rows, 1).tolist() == [float("inf"), 4.0, float("inf")]


@pytest.mark.namespaces
@pytest.mark.parametrize(
    ("ranks", "given", "tolerance"),
    [nightly(2, {}, 1e-6), (3, {"dtype": "bfloat16"}, 2e-2), (2, {"bits": 10}, 2e-2)],
)
def test_several_ranks_of_a_node_share_its_agent(network, tmp_path, ranks, given, tolerance):
    results = run_nodes("train", network, tmp_path, ranks, **given)
    for result in results:
        assert result["in_network"], result["warnings"]
        assert not result["left"], "the ranks of a node have added up before: nothing is any one's"
        assert result["losses"] == pytest.approx(result["expected"], rel=tolerance)
    assert len({result["digest"] for result in results}) == 1
    assert network.switch.verdicts()["completed"] > 0


@pytest.mark.namespaces
def test_ranks_of_a_node_are_counted_where_no_launcher_says_their_numbers(network, tmp_path):
    for rank, result in enumerate(run_nodes("counted", network, tmp_path, 2, launcher=False)):
        assert result["found"] == [(True, [2.0, 4.0][rank % 2]), (True, 6.0)]


@pytest.mark.namespaces
@pytest.mark.timeout(400)
def test_ranks_of_a_node_outlive_the_parameter_server_and_return_together(network, tmp_path):
    server = network.run_server()
    started = start_nodes("survive", network, tmp_path, 2)
    for wanted in (True, False, True):
        survive_turn(started, in_network=wanted)
        if wanted and server.poll() is None:
            server.kill()
            server.wait()
        elif not wanted:
            network.run_server()
    assert not any("w0 is gone" in line or "replaced" in line for line in network.log), "only the server went"
    for rank in started:
        rank.connection.send(None)
    results = [rank.result() for rank in started]
    assert len({tuple(result["steps"]) for result in results}) == 1, "all leave and return at the same steps"
    assert any("s0 is gone" in text for text in results[0]["warnings"])


@pytest.mark.namespaces
def test_without_fallback_all_ranks_of_a_node_have_the_error(network, tmp_path):
    server = network.run_server()
    started = start_nodes("lose", network, tmp_path, 2)
    assert [rank.receive() for rank in started] == ["trained"] * 4
    server.kill()
    for rank in started:
        assert "s0 is gone" in rank.result()["error"]


@pytest.mark.namespaces
@pytest.mark.parametrize("ranks", [1, nightly(2)])
def test_backend_through_the_network_equals_gloo(network, tmp_path, ranks):
    results = run_nodes("backend", network, tmp_path, ranks)
    for result in results:
        assert result["in_network"]
        assert result["wrong"] == []
        large = 3  # sum, bfloat16 and transposed
        few = 4  # small, few integers, largest and bits
        assert result["through"] == large + (few if ranks == 1 else 0)
        losses = result["losses"]
        assert losses["inart"] == pytest.approx(losses["gloo"], rel=1e-5)
        assert losses["inart zero"] == pytest.approx(losses["gloo zero"], rel=1e-5)
    assert len({result["inart digest"] for result in results}) == 1


@pytest.mark.namespaces
def test_collectives_on_several_tensors_go_through_the_network_and_others_are_counted(network, tmp_path):
    for result in run_nodes("lists", network, tmp_path, 1):
        assert result["inart"] == result["gloo"]
        assert result["in_network"] and result["before"] == 0
        assert result["outside"] == {"alltoall_base": 2}


@pytest.mark.namespaces
def test_the_hook_and_the_backend_of_one_process_use_one_agent(network, tmp_path):
    """The state fell back to gloo, as the agent was in use: by the backend of the same process."""
    network.run_server()
    environments = [{"environment": {"INART_AGENT": where["agent"]}} for where in start_agents(network)]
    for result in run_ranks("beside", tmp_path, environments):
        assert result["in_network"] == [True, True] and result["falls"] == 0
        assert min(result["steps"]) > 0 and result["sum"] == 2.0
        assert result["losses"]["hook"] == pytest.approx(result["losses"]["gloo"], rel=1e-5)


@pytest.mark.namespaces
def test_fsdp1_over_the_backend_equals_gloo_and_refuses_the_hook(network, tmp_path):
    for result in run_nodes("fsdp1", network, tmp_path, 1):
        for strategy in ("NO_SHARD", "FULL_SHARD"):
            losses = result["losses"]
            assert losses[f"inart {strategy}"] == pytest.approx(losses[f"gloo {strategy}"], rel=1e-5)
        assert result["steps"] > 0
        assert "What works: FSDP2" in result["refused"]


@pytest.mark.namespaces
@pytest.mark.timeout(600)  # Four processes run forward and backward many times and wait for each other at each layer.
def test_fsdp2_hook_and_native_hsdp_equal_gloo(network, tmp_path):
    results = run_nodes("hybrid", network, tmp_path, 2)
    for result in results:
        assert result["in_network"]
        assert result["steps"]["hook"] >= STEPS
        assert result["steps"]["native"] >= STEPS
        for name in ("hook", "native"):
            assert result["losses"][name] == pytest.approx(result["losses"]["gloo"], rel=1e-5)
            assert result["digests"][name] == results[0]["digests"][name]
        assert "mesh of two dimensions" in result["refused"]
