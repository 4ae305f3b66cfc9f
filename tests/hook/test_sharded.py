"""Fully sharded training between nodes and its collectives through the network, compared with gloo in the same run."""

from __future__ import annotations

import pytest

from tests.hook.sharded import STEPS
from tests.hook.test_nodes import run_nodes, start_nodes
from tests.hook.test_training import run_ranks, start_agents
from tests.support.examples import nightly

# Each test takes 20 s of CPU and more; this limit allows for a tenth of two cores.
pytestmark = pytest.mark.timeout(400)


@pytest.mark.namespaces
def test_fully_sharded_between_nodes_equals_gloo(network, tmp_path):
    """Rank 0 is the job's second worker here; parts are nevertheless ordered by rank."""
    network.run_server()
    results = run_ranks("sharded", tmp_path, list(reversed(start_agents(network))))
    for result in results:
        assert result["wrong"] == []
        assert result["through"] == 3 + 6 + 2, "all of them went through the network"
        assert result["losses"]["inart"] == pytest.approx(result["losses"]["gloo"], rel=1e-5)
        assert result["losses"]["ahead"] == result["losses"]["inart"], "the same bits, whatever runs beside it"
        assert result["steps"] >= 2 * STEPS * 3, "its gathers and scatters, too"
    assert len({result["digests"]["inart"] for result in results}) == 1


@pytest.mark.namespaces
def test_sums_in_few_bits_over_the_backend_and_from_fsdp(network, tmp_path):
    """A step of 8 bits among 2 workers is 2^-6 of the power of two above the largest value, which is at most 8 here."""
    network.run_server()
    for result in run_ranks("few_bits", tmp_path, start_agents(network), bits=8):
        assert 1e-3 < result["largest"]["sum"] < 2 * 8 / 64
        assert 1e-3 < result["largest"]["mean"] < 8 / 64
        assert 1e-3 < result["left"] < 8 / 64
        assert result["lost"] < 1e-5, "what two steps have not brought is still there"


@pytest.mark.namespaces
@pytest.mark.parametrize("ranks", [nightly(1), 2])
def test_collectives_of_parts_survive_the_parameter_server(network, tmp_path, ranks):
    server = network.run_server()
    started = start_nodes("sharded_survive", network, tmp_path, ranks)
    for wanted in (True, False, True):
        for rank in started:
            rank.connection.send(wanted)
        if not wanted:
            server.kill()
            server.wait()
        for rank in started:
            turn = rank.receive()
            assert turn == {"in_network": wanted, "wrong": []}
        if not wanted:
            network.run_server()
    for rank in started:
        rank.connection.send(None)
    assert all(rank.result()["falls"] >= 1 for rank in started)


@pytest.mark.namespaces
def test_fully_sharded_over_several_ranks_a_node_equals_gloo(network, tmp_path):
    results = run_nodes("sharded", network, tmp_path, 2)
    for result in results:
        assert result["wrong"] == []
        assert result["through"] == 3 + 6 + 4, "all of them went through the network"
        assert result["losses"]["inart"] == pytest.approx(result["losses"]["gloo"], rel=1e-5)
        assert result["steps"] >= STEPS * 3, "its gathers and scatters, too"
    assert len({result["digests"]["inart"] for result in results}) == 1
