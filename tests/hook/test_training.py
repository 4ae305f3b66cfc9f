"""DDP with the hook: trainers use the agent processes of two namespaces, whose gradients a switch sums."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.test_same_bits import Case, Way, inputs_of, result_of
from tests.hook.conftest import Network
from tests.hook.processes import Rank, survive_turn
from tests.support.examples import nightly
from tests.support.waiting import wait_until
from worker_agent.collectives import MEAN


def run_ranks(scenario: str, folder: Path, per_rank: list[dict], **arguments) -> list[dict]:
    store = str(folder / "store")
    started = [Rank(scenario, rank=rank, store=store, **arguments, **own) for rank, own in enumerate(per_rank)]
    return [rank.result() for rank in started]


def start_agents(network: Network) -> list[dict]:
    """The agents of both workers as processes, and the address where each rank finds its own."""
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
    assert network.switch.verdicts()["completed"] > 0


@pytest.mark.namespaces
@pytest.mark.parametrize(
    ("dtype", "bits", "tolerance"), [nightly("float32", 16, 1e-3), ("float32", 8, 2e-2), ("bfloat16", 8, 4e-2)]
)
def test_training_in_few_bits_keeps_the_residuals(network, tmp_path, dtype, bits, tolerance):
    network.run_server()
    results = run_ranks("train", tmp_path, start_agents(network), dtype=dtype, bits=bits)
    for result in results:
        assert result["in_network"]
        assert result["losses"] == pytest.approx(result["expected"], rel=tolerance)
        assert sorted(result["left"]) == [f"{layer}.{what}" for layer in (0, 2, 4) for what in ("bias", "weight")]
        assert all(left > 0 for left in result["left"].values())
        assert result["reductions"] > 8, "several buckets a step, each with chances of its own"
    assert results[0]["digest"] == results[1]["digest"]
    assert results[0]["left"] != results[1]["left"], "each rank has lost something else"


@pytest.mark.namespaces
def test_ranks_with_different_tensors_have_an_error_and_can_go_on(network, tmp_path):
    """Done again over gloo, the rank with the smaller tensor would be ended, without an exception of Python's."""
    network.run_server()
    for result in run_ranks("unlike", tmp_path, start_agents(network)):
        small, large = result["errors"]
        assert "the ranks' operations differ: rank 0: sum of 1000 float32; rank 1: sum of 2000 float32" in small
        assert "rank 0: sum of 100000 float32; rank 1: sum of 200000 float32" in large
        assert result["total"] == [2.0] * 1000


@pytest.mark.namespaces
def test_one_rank_without_agent_makes_all_fall_back(network, tmp_path):
    network.run_server()
    where = start_agents(network)
    where[1] = {"agent": f"unix:{tmp_path}/nobody.sock"}
    results = run_ranks("train", tmp_path, where, timeout=60.0)
    for result in results:
        assert not result["in_network"]
        assert result["losses"] == result["expected"]
        assert not result["left"]
        assert len(result["warnings"]) == 1
        assert "rank 1: no agent at" in result["warnings"][0]
        assert "torch.distributed's all-reduce is, until it is back" in result["warnings"][0]


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
def test_death_in_the_middle_without_fallback_is_an_error_that_names_the_dead(network, tmp_path):
    server = network.run_server()
    where = start_agents(network)
    store = str(tmp_path / "store")
    started = [Rank("lose", rank=rank, store=store, **own) for rank, own in enumerate(where)]
    assert [rank.receive() for rank in started] == ["trained", "trained"]
    # `ip netns exec` has replaced itself by Python: this ends the server and nothing else.
    server.kill()
    for rank in started:
        assert "AbortedError: s0 is gone (its connection ended)" in rank.result()["error"]


@pytest.mark.namespaces
def test_training_outlives_the_parameter_server_and_returns_to_the_network(network, tmp_path):
    server = network.run_server()
    store = str(tmp_path / "store")
    started = [Rank("survive", rank=rank, store=store, **own) for rank, own in enumerate(start_agents(network))]
    survive_turn(started, in_network=True)
    server.kill()
    survive_turn(started, in_network=False)
    before = network.switch.verdicts()["completed"]
    network.run_server()
    survive_turn(started, in_network=True)
    assert network.switch.verdicts()["completed"] > before
    for rank in started:
        rank.connection.send(None)
    results = [rank.result() for rank in started]
    assert results[0]["steps"] == results[1]["steps"], "all ranks leave and return at the same steps"
    assert results[0]["steps"][2] >= 1
    assert any("s0 is gone" in text for text in results[0]["warnings"])


def chained_means(operations: int) -> list[list[float]]:
    """What the scenario "few" must find."""
    found, value = [], np.float32(0)
    for number in range(operations):
        parts = [(value * np.float32(0.75) + np.float32((rank + 1) * number)) / np.float32(2) for rank in range(2)]
        value = parts[0] + parts[1]
        found.append([float(value)] * 5)
    return found


@pytest.mark.parametrize(
    "failing",
    [
        pytest.param([[], []], id="none"),
        pytest.param([[0], []], id="the first, one rank"),
        pytest.param([[], [3]], id="the other has its result and goes on"),
        pytest.param([[2], [2]], id="both"),
        pytest.param([[5], [4]], id="one after the other"),
        pytest.param([[], [70]], id="after an agreement"),
        pytest.param([[], [79]], id="the last"),
    ],
)
def test_a_small_operation_that_fails_anywhere_is_right_everywhere(tmp_path, failing):
    """Results are handed out before the ranks agree, on many at once: and nobody sees another's failure."""
    results = run_ranks("few", tmp_path, [{"failing": own} for own in failing], operations=80)
    for result in results:
        assert result["found"] == chained_means(80)
        assert len(result["warnings"]) == (failing != [[], []])
    if failing == [[], []]:
        assert all(result["agreements"] == 1 for result in results), (
            "of 64; and of those that are left, at the end, none"
        )


@pytest.mark.parametrize(
    "failing",
    [
        pytest.param([[], []], id="none"),
        pytest.param([[0], []], id="a reduce-scatter, one rank"),
        pytest.param([[], [3]], id="an all-gather, one rank"),
        pytest.param([[4], [4]], id="both ranks"),
        pytest.param([[8], [7]], id="one after the other"),
        pytest.param([[], [18]], id="after an agreement"),
    ],
)
def test_parts_that_fail_anywhere_are_right_everywhere(tmp_path, failing):
    """Ranks have their parts of reduce-scatters and all-gathers before all agree that they do. Who lacks a part gets
    it, and what the others have meanwhile made of theirs stays.
    """
    results = run_ranks("in parts", tmp_path, [{"failing": own} for own in failing], operations=10)
    expected, values = [], np.zeros((2, 20_000), np.float32)
    for number in range(10):
        given = [values * np.float32(0.75) + (rank + 1) * number + np.array([[0], [1]]) for rank in range(2)]
        values = ((given[0] + given[1]) / 2).astype(np.float32)
        expected.append(values[:, ::19_999].tolist())
    for result in results:
        assert np.allclose(result["found"], expected)
        assert len(result["warnings"]) == (failing != [[], []])
    assert results[0]["found"] == results[1]["found"]


def test_what_falls_back_is_done_as_in_the_network_where_that_is_asked_for(tmp_path):
    for name in ("alike", "other"):
        (tmp_path / name).mkdir()
    failing = [{"failing": []}, {"failing": [3]}]
    results = run_ranks("few", tmp_path / "alike", failing, operations=6, reproducible=True)
    assert results[0]["found"] == results[1]["found"]
    assert np.allclose(results[0]["found"], chained_means(6))
    assert all(result["as_in_network"] >= 1 for result in results)
    results = run_ranks("few", tmp_path / "other", failing, operations=6)
    assert all(result["as_in_network"] == 0 for result in results)


def test_who_has_its_result_and_does_nothing_helps_who_has_none(tmp_path):
    """Rank 0 has the result of operation 3, on which rank 1 has failed, and asks for nothing more meanwhile."""
    store = str(tmp_path / "store")
    failing = [{"failing": []}, {"failing": [3]}]
    started = [Rank("few", rank=rank, store=store, operations=6, idle=3, **own) for rank, own in enumerate(failing)]
    for rank in started:
        assert rank.receive() == "idle", "it has the result of operation 3"
    for rank in started:
        rank.connection.send("go on")
    results = [rank.result() for rank in started]
    assert all(result["found"] == chained_means(6) for result in results)


def test_over_torch_distributed_the_bits_are_those_of_the_network_where_that_is_asked_for(tmp_path):
    """Beside the agents' own engines; rank 0 is worker 1."""
    cases = [
        Case(1, 2, 700),
        Case(2, 2, 5),
        Case(3, 2, 2000, "bfloat16", op=MEAN),
        Case(4, 2, 900, bits=8, values=256),
        Case(5, 2, 3000, "float16", bits=32, op=MEAN),
    ]
    inputs = [inputs_of(case.seed, case.workers, case.elements, case.dtype) for case in cases]
    inputs[0][1][3] = np.inf
    ops = [case.op.encoded(case.bits, case.seed) for case in cases]
    told = [
        (([workers[1].tobytes(), workers[0].tobytes()], case.dtype, str(op)), case.values)
        for case, workers, op in zip(cases, inputs, ops, strict=True)
    ]
    store = str(tmp_path / "store")
    started = [Rank("alike", rank=rank, store=store, cases=told) for rank in range(2)]
    found = [rank.receive() for rank in started]
    for number, case in enumerate(cases):
        expected = result_of(inputs[number], ops[number], case.dtype, Way(), case.values)
        assert [one[number] for one in found] == [expected] * 2, case


@pytest.mark.parametrize(
    ("failing", "falls"),
    [
        pytest.param([[], []], 0, id="none"),
        pytest.param([[0], []], 1, id="first operation, one rank"),
        pytest.param([[5], [5]], 1, id="both ranks"),
        pytest.param([[], [2, 3]], 1, id="two operations of a step"),
    ],
)
def test_step_that_fails_anywhere_is_done_again_everywhere(tmp_path, failing, falls):
    results = run_ranks("flaky", tmp_path, [{"failing": own} for own in failing], steps=6)
    for result in results:
        assert result["losses"] == pytest.approx(result["expected"], rel=1e-6)
        assert len(result["warnings"]) == result["steps"][2] == falls
        assert sum(result["steps"][:2]) == 6
    assert results[0]["steps"] == results[1]["steps"]
    if falls:
        assert "operation" in results[0]["warnings"][0]
        assert "rank" in results[0]["warnings"][0] or "ranks" in results[0]["warnings"][0]


def test_a_skipped_backward_pass_is_reported_at_the_first_step_that_it_displaces(tmp_path):
    for result in run_ranks("skipped", tmp_path, [{}, {}]):
        (warning,) = result["warnings"]
        assert warning.startswith("step 2: the ranks' numbers of forward passes differ: 3 on rank 0, 4 on rank 1.")


@pytest.mark.namespaces
def test_two_models_in_a_process_and_states_made_over_and_over(network, tmp_path):
    network.run_server()
    for result in run_ranks("models", tmp_path, start_agents(network)):
        for name in ("first", "second"):
            assert result["losses"][name] == pytest.approx(result["losses"]["expected"], rel=1e-6)
        assert result["steps"] == [(6, 0), (6, 0)]
        assert result["sums"] == [(True, 3.0)] * 12
        assert "cannot be pickled" in result["refused"]
        metrics = result["metrics"]
        assert metrics["steps_in_network"] == 6
        assert metrics["bytes_reduced"] > 6 * 4 * 90_000
        assert 0 < metrics["exposed_seconds"] <= metrics["communication_seconds"]
        assert all(isinstance(value, int | float) for value in metrics.values())


@pytest.mark.namespaces
def test_a_late_rank_is_reported_and_waited_for(network, tmp_path):
    network.run_server()
    store = str(tmp_path / "store")
    started = [Rank("late", rank=rank, store=store, **own) for rank, own in enumerate(start_agents(network))]
    assert started[0].receive() == "said"
    started[1].connection.send("go on")
    for rank in started:
        result = rank.result()
        assert (result["in_network"], result["falls"], result["sum"]) == (True, 0, 2.0)


@pytest.mark.namespaces
@pytest.mark.timeout(400)
def test_parameter_server_that_hangs_is_noticed_and_the_job_goes_on(network, tmp_path):
    server = network.run_server()
    store = str(tmp_path / "store")
    started = [Rank("survive", rank=rank, store=store, **own) for rank, own in enumerate(start_agents(network))]
    for wanted, change in ((True, signal.SIGSTOP), (False, signal.SIGCONT), (True, None)):
        survive_turn(started, in_network=wanted)
        if change is not None:
            server.send_signal(change)
    for rank in started:
        rank.connection.send(None)
    assert any("s0 is gone (no report for" in text for rank in started for text in rank.result()["warnings"])
