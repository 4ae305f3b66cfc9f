"""What fewer bits do to real gradients: the comparison's ways to a mean, and what it prints."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from evaluation.precision.__main__ import main  # noqa: E402  # it imports torch
from evaluation.precision.schemes import (  # noqa: E402
    InWords,
    PowerSGD,
    Rotated,
    as_bfloat16,
    compressed_to_float16,
    exact,
    ring_in_bfloat16,
    schemes,
)


def gradients(workers: int) -> list[np.ndarray]:
    return [
        as_bfloat16(np.random.default_rng(worker).standard_normal(5000).astype(np.float32)) for worker in range(workers)
    ]


def test_two_in_a_word_are_more_exact_than_a_ring_that_adds_in_bfloat16() -> None:
    """At eight workers: near the one rounding to bfloat16 that nobody can avoid."""
    given = gradients(8)
    right = exact(given)
    size = np.sqrt(np.mean(right**2))
    off = {
        name: np.sqrt(np.mean((way(given) - right) ** 2)) / size
        for name, way in (
            ("ring", ring_in_bfloat16),
            ("words", InWords("bfloat16", None, 8)),
            ("once", lambda g: as_bfloat16(exact(g))),
        )
    }
    assert off["words"] < 1.15 * off["once"] < 0.7 * off["ring"]


def test_with_feedback_the_means_of_many_steps_add_up() -> None:
    given = gradients(4)
    means = {feedback: InWords("float32", 8, 4, feedback=feedback) for feedback in (True, False)}
    off = {
        feedback: np.sqrt(np.mean((sum(way(given) for _ in range(20)) - 20 * exact(given)) ** 2))
        for feedback, way in means.items()
    }
    assert 2 * off[True] < off[False]


def test_a_rotation_spreads_one_large_value_over_its_block() -> None:
    """So that the others keep bits that its exponent would have cost them; an exact way gives the same mean."""
    given = gradients(4)
    given[0][100] = 300.0
    right = exact(given)
    assert np.allclose(Rotated(exact)(given), right, atol=1e-4)
    others = np.arange(1020) != 100
    off = {
        turned: np.sqrt(np.mean((way(given) - right)[:1020][others] ** 2))
        for turned, way in ((False, InWords("float32", 8, 4)), (True, Rotated(InWords("float32", 8, 4))))
    }
    assert 3 * off[True] < off[False]


def test_power_sgd_is_exact_where_the_rank_suffices_and_catches_up_where_not() -> None:
    shapes = [(20, 30), (7,)]
    low = [
        np.concatenate([np.outer(np.arange(20) + w, np.arange(30)).reshape(-1), np.ones(7)]).astype(np.float32)
        for w in range(3)
    ]
    assert PowerSGD(shapes, 4, after=0)(low) == pytest.approx(exact(low), rel=1e-4, abs=1e-3)
    given = [np.random.default_rng(w).standard_normal(607).astype(np.float32) for w in range(3)]
    off = {
        feedback: np.abs(sum(way(given) for _ in range(40)) / 40 - exact(given)).mean()
        for feedback in (True, False)
        for way in [PowerSGD(shapes, 4, feedback=feedback, after=0)]
    }
    assert off[True] < off[False] / 3


def test_compression_to_float16_is_what_torch_does() -> None:
    given = [np.array([1.0, 70000.0, 1e-9], np.float32)] * 2
    assert compressed_to_float16(given).tolist() == [1.0, np.inf, 0.0]


def test_a_row_for_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--task", "digits", "--workers", "2", "--steps", "2", "--every", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["way"] for row in rows] == list(schemes(2))
    assert all(np.isfinite(row["loss"]) for row in rows)
    assert all((row["rms"] is None) == ("feedback" in row["way"] or row["way"] == "float32") for row in rows)
