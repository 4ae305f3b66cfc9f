"""Training that does not wait for stragglers: whose gradients are in which mean, with which weight."""

from __future__ import annotations

import pytest

from tests.hook.overtaken import LAYERS, STEPS
from tests.hook.processes import Rank
from tests.hook.test_training import start_agents

FIRST = 2
"""Steps in which all are waited for."""


def members(gradient: list[float], ranks: int) -> dict[tuple[int, int], float]:
    """By rank and step, the weight with which its gradient is in a mean."""
    return {divmod(at, STEPS): value for at, value in enumerate(gradient) if value} if ranks else {}


def check_exact(results: list[dict]) -> None:
    """All ranks have the same means; in each, all gradients have the same weight, and together 1; none is in two."""
    ranks = len(results)
    assert all(result["found"] == results[0]["found"] for result in results), "all ranks have the same bits"
    for layer in range(LAYERS):
        seen: list[tuple[int, int]] = []
        for step in range(STEPS):
            mean = members(results[0]["found"][step][layer], ranks)
            assert mean, "a mean of nobody"
            assert all(value == pytest.approx(1 / len(mean), rel=1e-6) for value in mean.values())
            assert all(own <= step for _, own in mean)
            seen += mean
        assert len(seen) == len(set(seen)), "a gradient is in two means"


def hold_back(tmp_path, held: int, tells: list[int], ranks: int, **arguments) -> list[dict]:
    """Rank 1 stops before step `held` until the others have ended the steps `tells`."""
    store = str(tmp_path / "store")
    where = arguments.pop("where", [{}] * ranks)
    started = [
        Rank(
            "overtaken", rank=rank, world=ranks, store=store, **arguments, **where[rank],
            **({"held": held} if rank == 1 else {"tells": tells}),
        )
        for rank in range(ranks)
    ]  # fmt: skip
    assert started[1].receive() == "waits"
    for rank in started[:1] + started[2:]:
        assert [rank.receive() for _ in tells] == tells
    started[1].connection.send(None)
    return [rank.result() for rank in started]


def outside() -> dict:
    return {"controller": "127.0.0.1:1", "timeout": 0.5}


def test_the_others_go_on_and_the_late_rank_catches_up(tmp_path):
    results = hold_back(tmp_path, 3, [3, 4, 5], 3, **outside())
    check_exact(results)
    late = results[1]
    assert late["skipped"][:3] == [3, 4, 5], "steps that had ended without it"
    assert late["stood_in"] >= 3
    for step in (3, 4, 5):
        assert members(results[0]["found"][step][0], 3) == pytest.approx({(0, step): 0.5, (2, step): 0.5})


def test_a_late_gradient_is_carried_to_a_later_mean(tmp_path):
    results = hold_back(tmp_path, 3, [3], 3, skips=False, **outside())
    check_exact(results)
    assert results[1]["carried"] > 0
    means = [members(results[0]["found"][step][0], 3) for step in range(STEPS)]
    came = [step for step, mean in enumerate(means) if (1, 3) in mean]
    assert came and came[0] > 3, "it is in a mean, but not of its own step"


def test_a_rank_is_waited_for_when_it_is_most_behind(tmp_path):
    """The slow rank is let go when the others are in the last step that they may end without it; all steps end."""
    results = hold_back(tmp_path, 3, [3, 4], 2, most_behind=2, **outside())
    check_exact(results)
    assert results[1]["skipped"][:2] == [3, 4]
    assert 5 not in results[1]["skipped"]


@pytest.mark.namespaces
def test_in_the_network(network, tmp_path):
    network.run_server()
    results = hold_back(tmp_path, 3, [3, 4], 2, timeout=30.0, where=start_agents(network))
    check_exact(results)
    assert all(result["in_network"] for result in results), [(result["steps"], result["said"]) for result in results]
    assert results[1]["skipped"][:2] == [3, 4]
    assert network.switch.verdicts()["completed"] > 0
