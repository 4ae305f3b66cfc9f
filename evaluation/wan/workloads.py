"""Models, bandwidths and compute times that several evaluations use."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MODELS = {"ResNet50": 92 * 8.0, "ResNet152": 240 * 8.0, "AlexNet": 256 * 8.0, "VGG-Net": 552 * 8.0}
"""Gradients in Mbit, as in APSP (paper, Table III)."""

DATA = Path(__file__).resolve().parents[2] / "topologies" / "data"


@dataclass(frozen=True)
class Runtime:
    """Time of one training step in ms: a beta distribution on [least, most] with this mean and deviation.

    The numbers are the ones reported for these models by Li et al. (PPoPP 2020). Their samples are not published; a
    beta distribution has a bounded range and is determined by these four numbers.
    """

    least: float
    most: float
    mean: float
    deviation: float

    def _draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        width = self.most - self.least
        m, v = (self.mean - self.least) / width, (self.deviation / width) ** 2
        total = m * (1 - m) / v - 1
        return rng.beta(m * total, (1 - m) * total, count)

    def between(self, rng: np.random.Generator, count: int, low_s: float, high_s: float) -> NDArray[np.float64]:
        """Return draws in seconds, with the range [least, most] scaled to [low, high]."""
        return low_s + (high_s - low_s) * self._draw(rng, count)

    def with_mean(self, rng: np.random.Generator, count: int, mean_s: float) -> NDArray[np.float64]:
        """Return draws in seconds, scaled to this mean."""
        return (self.least + (self.most - self.least) * self._draw(rng, count)) * mean_s / self.mean


RUNTIMES = {
    "lstm": Runtime(201, 3410, 1235, 706),  # UCF101: T1
    "transformer": Runtime(179, 3482, 475, 144),  # WMT16: T2
    "resnet50": Runtime(399, 1892, 454, 116),  # ImageNet in a cloud
}


@cache
def aws_samples(source: str) -> NDArray[np.float64]:
    """Return Mbit/s between AWS regions: "dtfm" (45 pairs of 10 regions) or "intercloud" (small machines, 17 regions),
    as published.
    """
    if source == "dtfm":
        pairs = json.loads((DATA / "aws_dtfm.json").read_text())["pairs"]
        return np.array([p["bandwidth_mbps"] for p in pairs.values()])
    with (DATA / "aws_intercloud_202202.csv").open() as file:
        return np.array([float(row["mbps"]) for row in csv.DictReader(file)])


def bandwidths(network: str, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return an (n, n) matrix in Mbit/s, each direction drawn on its own.

    N1 is drawn from measurements between Amazon EC2 regions (`dtfm`; N1i is drawn from `intercloud`). N2 is k * 25 with
    k in 1 .. 10 from N(5, 1), rounded.
    """
    if network in ("N1", "N1i"):
        matrix = rng.choice(aws_samples("dtfm" if network == "N1" else "intercloud"), (n, n))
    elif network == "N2":
        matrix = 25.0 * np.clip(np.rint(rng.normal(5, 1, (n, n))), 1, 10)
    else:
        raise ValueError(f"unknown network {network!r}; known: N1, N1i, N2")
    np.fill_diagonal(matrix, np.inf)
    return matrix
