"""The distributions that the evaluations draw from: compute times and bandwidths have the claimed range and moments."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.crew.figures import compute_times
from evaluation.wan.workloads import RUNTIMES, aws_samples, bandwidths


@pytest.mark.parametrize("name", sorted(RUNTIMES))
def test_compute_times_have_the_published_range_mean_and_deviation(name: str) -> None:
    runtime = RUNTIMES[name]
    scaled = runtime.between(np.random.default_rng(1), 100_000, 0.05, 0.2)
    assert scaled.min() >= 0.05 and scaled.max() <= 0.2
    drawn = runtime.least + (runtime.most - runtime.least) * (scaled - 0.05) / 0.15
    assert drawn.mean() == pytest.approx(runtime.mean, rel=0.02)
    assert drawn.std() == pytest.approx(runtime.deviation, rel=0.03)
    assert runtime.with_mean(np.random.default_rng(2), 100_000, 1.0).mean() == pytest.approx(1.0, rel=0.02)


def test_workers_draw_their_steps_independently_and_from_a_seed() -> None:
    def steps(seed: int) -> list[float]:
        draw = compute_times("T2", 3, np.random.default_rng(seed), factor=2.0)
        return [draw(worker) for worker in (0, 1, 2, 2, 1, 0)]

    assert steps(5) == steps(5) != steps(6)
    assert len(set(steps(5))) == 6 and all(0.1 <= step <= 0.4 for step in steps(5))


def test_bandwidths_are_measured_or_multiples_of_25_and_not_symmetric() -> None:
    for network in ("N1", "N1i", "N2"):
        matrix = bandwidths(network, 40, np.random.default_rng(1))
        off = matrix[~np.eye(40, dtype=bool)]
        assert np.isinf(np.diag(matrix)).all() and (matrix != matrix.T).any()
        if network == "N2":
            assert set(off) <= {25.0 * k for k in range(1, 11)}
            assert off.mean() == pytest.approx(125, rel=0.02) and off.std() == pytest.approx(26, rel=0.05)
        else:
            assert set(off) <= set(aws_samples("dtfm" if network == "N1" else "intercloud").tolist())
    with pytest.raises(ValueError, match="known: N1, N1i, N2"):
        bandwidths("N3", 4, np.random.default_rng(1))
