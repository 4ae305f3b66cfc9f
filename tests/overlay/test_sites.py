"""Training across sites (docs/sites.md): real processes, real sockets with certificates, real PyTorch training."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from controlplane.cli.certificates import Wanted, make
from controlplane.common.rpc.tls import credentials
from overlay.core.site_network import SiteNetwork
from overlay.net.tls import Security
from overlay.sites.command import SiteSettings, make_coordinator
from overlay.sites.fragments import divided, tensors_of
from tests.overlay.site_training import flat, inner_step, make_model, train_all
from tests.support.forked import forks_with

SECONDS = 120.0
PROCESSES = forks_with("tests.overlay.site_training")
SITES = 3
EVERY, ROUNDS = 4, 4


@contextmanager
def coordinating(sites: int, security: Security | None = None, **options: Any):
    """Start a coordinator; returns (coordinator, its log)."""
    lines: list[str] = []
    options = {"probe_seconds": 0.05, **options}
    with make_coordinator(
        "127.0.0.1", 0, SiteSettings(sites, **options), SiteNetwork(256), security=security, log=lines.append
    ) as coordinator:
        yield coordinator, lines


# --- the papers' algorithms in one process ---


def blocks(sizes: list[int]) -> Iterator[slice]:
    """Yield the places of the blocks of tensors of these sizes: each has at most 512 values of one tensor."""
    first = 0
    for size in sizes:
        for begin in range(first, first + size, 512):
            yield slice(begin, min(begin + 512, first + size))
        first += size


def quantised_mean(gradients: list[np.ndarray], lefts: list[np.ndarray], bits: int, sizes: list[int]) -> np.ndarray:
    """Quantise independently of overlay/sites/native: a scale per block, and the sum of integers that each site rounds
    by itself.
    """
    count = len(gradients)
    levels = np.float32(2 ** (bits + int(np.ceil(np.log2(count))) - 1) - 2 - int(np.ceil(count / 2)))
    given = [gradient + left for gradient, left in zip(gradients, lefts, strict=True)]
    mean = np.empty_like(given[0])
    for part in blocks(sizes):
        quantum = np.float32(max(np.abs(each[part]).max() for each in given)) / levels
        total = np.zeros(mean[part].size, np.int64)
        for each, left in zip(given, lefts, strict=True):
            fraction = np.float32(1 / count)
            whole = np.rint(fraction * each[part] / quantum) if quantum else np.zeros_like(each[part])
            left[part] = each[part] - whole * quantum / fraction
            total += whole.astype(np.int64)
        mean[part] = total.astype(np.float32) * quantum
    return mean


class Reference:
    """Streaming DiLoCo of all sites in one process, with PyTorch's SGD as the outer optimiser (Nesterov)."""

    def __init__(self, *, fragments: int, delay: int, mixing: float, rate: float, momentum: float, bits: int) -> None:
        self.models = [make_model(0) for _ in range(SITES)]
        self.inner = [torch.optim.SGD(model.parameters(), lr=0.05) for model in self.models]
        self.parts = []
        for model in self.models:
            parts = divided(tensors_of(model).averaged, fragments)
            self.parts.append(
                [[[e.tensor for e in part if e.trained is own] for own in (True, False)] for part in parts]
            )
        self.delay, self.mixing, self.bits = delay, mixing, bits
        self.outer, self.optimisers, self.lefts = [], [], []
        for parameters, buffers in self.parts[0]:
            weights = torch.nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
            means = torch.cat([b.reshape(-1) for b in buffers]) if buffers else torch.empty(0)
            self.outer.append((weights, means))
            nesterov = momentum > 0
            self.optimisers.append(torch.optim.SGD([weights], lr=rate, momentum=momentum, nesterov=nesterov))
            self.lefts.append([np.zeros(weights.numel() + means.numel(), np.float32) for _ in range(SITES)])

    def train(self, rounds: int, every: int) -> list[np.ndarray]:
        done = sent = step = 0
        waiting: list[tuple[int, int, np.ndarray]] = []
        while done < rounds:
            for site in range(SITES):
                inner_step(self.models[site], self.inner[site], site, step)
            step += 1
            if step % (every // len(self.outer)) == 0:
                index = sent % len(self.outer)
                waiting.append((step + self.delay, index, self.mean(index)))
                sent += 1
            while waiting and waiting[0][0] <= step:
                self.apply(*waiting.pop(0)[1:])
                done += 1
        for _, index, mean in waiting:
            self.apply(index, mean)
        return [flat(model) for model in self.models]

    def own(self, site: int, index: int) -> list[torch.Tensor]:
        return [*self.parts[site][index][0], *self.parts[site][index][1]]

    def mean(self, index: int) -> np.ndarray:
        outer = torch.cat([tensor.detach() for tensor in self.outer[index]]).numpy()
        gradients = [
            outer - torch.cat([tensor.detach().reshape(-1) for tensor in self.own(site, index)]).numpy()
            for site in range(SITES)
        ]
        if self.bits == 32:
            total: np.ndarray = np.sum(np.stack(gradients), axis=0, dtype=np.float64)
            return (total / SITES).astype(np.float32)
        return quantised_mean(gradients, self.lefts[index], self.bits, [each.numel() for each in self.own(0, index)])

    def apply(self, index: int, mean: np.ndarray) -> None:
        weights, means = self.outer[index]
        weights.grad = torch.from_numpy(mean[: weights.numel()].copy())
        self.optimisers[index].step()
        means -= torch.from_numpy(mean[weights.numel() :])
        outer = torch.cat([weights.detach(), means])
        with torch.no_grad():
            for site in range(SITES):
                first = 0
                for tensor in self.own(site, index):
                    new = outer[first : first + tensor.numel()].view_as(tensor)
                    tensor.copy_(self.mixing * tensor + (1 - self.mixing) * new)
                    first += tensor.numel()


SCENARIOS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "local": ("local", {"every": EVERY}, {"rate": 1.0, "momentum": 0.0, "bits": 32}),
    "diloco": ("diloco", {"every": EVERY, "bits": 32}, {"rate": 0.7, "momentum": 0.9, "bits": 32}),
    "diloco8": ("diloco", {"every": EVERY}, {"rate": 0.7, "momentum": 0.9, "bits": 8}),
    "streaming4": (
        "streaming", {"every": EVERY, "fragments": 2, "delay": 1, "mixing": 0.5},
        {"rate": 0.4, "momentum": 0.9, "bits": 4, "fragments": 2, "delay": 1, "mixing": 0.5},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Any]:
    """Run every scenario in three processes with certificates; returns (where the models are, the sites' outputs, the
    log).
    """
    where = tmp_path_factory.mktemp("sites")
    make(where, Wanted(nodes=tuple(f"site{k}" for k in range(SITES))))
    found: dict[str, Any] = {"where": where, "logs": {}}
    orders: list[list[dict[str, Any]]] = [[] for _ in range(SITES)]
    with ExitStack() as stack:
        for name, (kind, options, _) in SCENARIOS.items():
            security = Security.of(credentials(where / "controller"))
            probe = 0.05 if name == "local" else 0.0
            coordinator, found["logs"][name] = stack.enter_context(coordinating(SITES, security, probe_seconds=probe))
            for site in range(SITES):
                order = {"site": site, "coordinator": f"127.0.0.1:{coordinator.address[1]}", "kind": kind,
                         "options": options, "rounds": ROUNDS, "credentials": str(where / "nodes" / f"site{site}"),
                         "out": str(where / f"{name}-{site}.npz")}  # fmt: skip
                orders[site].append(order)
        pool = stack.enter_context(ProcessPoolExecutor(SITES, PROCESSES))
        said = [running.result(SECONDS) for running in [pool.submit(train_all, each) for each in orders]]
    found["said"] = {name: [said[site][k] for site in range(SITES)] for k, name in enumerate(SCENARIOS)}
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_sites_train_as_the_paper_has_it(trained, name):
    *_, options = SCENARIOS[name]
    wanted = Reference(**{"fragments": 1, "delay": 0, "mixing": 0.0, **options}).train(ROUNDS, EVERY)
    ours = [np.load(trained["where"] / f"{name}-{site}.npz") for site in range(SITES)]
    for site in range(SITES):
        # Sums in another order (float32) and SGD's fused multiplications differ in the last bits.
        np.testing.assert_allclose(ours[site]["model"], wanted[site], rtol=2e-5, atol=2e-6)
        assert np.array_equal(ours[site]["shared"], ours[0]["shared"]), "all sites hold the same bits"
    assert not np.allclose(wanted[0], flat(make_model(0)), atol=1e-3), "they have learned something"


def test_models_that_began_apart_are_the_first_sites_and_everybody_takes_part(trained):
    assert any("with the state of" in line for line in trained["logs"]["local"])
    for name, (_, options, _) in SCENARIOS.items():
        for said in trained["said"][name]:
            assert said["began"] == 0 and all(len(round_) == 1 + SITES for round_ in said["participants"])
            assert len(said["participants"]) >= ROUNDS // options.get("fragments", 1)
