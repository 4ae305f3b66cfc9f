"""Trains at a site: PyTorch on its part of the handwritten digits, with parameters that are averaged over the overlay.

A round is a few steps of SGD on the site's own images, then one synchronisation of all parameters. A site that gets
copies of others' models beside its own (SelMcast) takes the mean of all that have come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from evaluation.wan.workloads import RUNTIMES
from examples.train_digits import Data, digits, make_model
from overlay.core.errors import OverlayError, PeerLost
from overlay.net.agent import Agent, Done
from overlay.net.hook import average


@dataclass(frozen=True)
class Lesson:
    """The settings of the training.

    Attributes:
        width: width of the model (8 has 24 thousand parameters, 16 has 49 thousand).
        steps: steps of SGD in a round, on `batch` images at learning rate `rate` and momentum (of each site by
            itself).
        compute_s: mean time to which a round's computing is stretched (0 for none), spread like LSTM training (T1).
        alike: images are dealt to sites at random; else by label, two parts each.
        copies: others' models come beside one's own.
    """

    width: int = 16
    steps: int = 8
    batch: int = 32
    rate: float = 0.05
    momentum: float = 0.9
    compute_s: float = 0.0
    alike: bool = True
    copies: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Point:
    """A site's state after a round: seconds since the beginning and of the synchronisation, and accuracy on test
    images.
    """

    round: int
    at_s: float
    synchronised_s: float
    accuracy: float


@cache
def images() -> Data:
    """Return the images, which are read once, before the site says that it is ready."""
    return digits()


def parameters(lesson: Lesson) -> int:
    """Return the number of float32 values that a round synchronises."""
    return sum(parameter.numel() for parameter in make_model(images(), lesson.width).parameters())


def shares(labels: torch.Tensor, count: int, *, alike: bool, seed: int) -> list[torch.Tensor]:
    """Return the images of each site: dealt at random (`alike`), or sorted by label, cut into two parts per site, and
    dealt.
    """
    generator = torch.Generator().manual_seed(seed)
    if alike:
        return list(torch.randperm(len(labels), generator=generator).tensor_split(count))
    parts = torch.argsort(labels, stable=True).tensor_split(2 * count)
    order = torch.randperm(2 * count, generator=generator).tolist()
    return [torch.cat([parts[order[2 * k]], parts[order[2 * k + 1]]]) for k in range(count)]


def accuracy(model: nn.Module, data: Data) -> float:
    with torch.no_grad():
        return float((model(data.test_images).argmax(1) == data.test_labels).float().mean())


_making = threading.Lock()


def beginning(lesson: Lesson) -> nn.Module:
    """Return the model with which all sites begin.

    PyTorch's generator belongs to the process: where sites are threads of one process, others would draw from it in
    between, and the mean of models that began differently has learned nothing.
    """
    with _making:
        torch.manual_seed(lesson.seed)
        return make_model(images(), lesson.width)


def learn(
    agent: Agent,
    site: int,
    sites: int,
    lesson: Lesson,
    *,
    rounds: int,
    told: Callable[[Point], None] = lambda point: None,
    slowed: Callable[[Done], None] = lambda done: None,
) -> list[Point]:
    """Train for `rounds` rounds, or until the agent is closed. `told` is called with each point; `slowed` waits until a
    synchronisation may be over.
    """
    data = images()
    own = shares(data.train_labels, sites, alike=lesson.alike, seed=lesson.seed)[site]
    model = beginning(lesson)
    optimizer = torch.optim.SGD(model.parameters(), lr=lesson.rate, momentum=lesson.momentum)
    generator = torch.Generator().manual_seed(1000 * lesson.seed + site)
    times = np.random.default_rng([lesson.seed, site])
    points: list[Point] = []
    begin = time.monotonic()
    for round_ in range(rounds):
        computed = time.monotonic()
        for _ in range(lesson.steps):
            chosen = own[torch.randint(len(own), (lesson.batch,), generator=generator)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data.train_images[chosen]), data.train_labels[chosen]).backward()
            optimizer.step()
        if lesson.compute_s:
            wanted = float(RUNTIMES["lstm"].with_mean(times, 1, lesson.compute_s)[0])
            time.sleep(max(0.0, wanted - (time.monotonic() - computed)))
        started = time.monotonic()
        try:
            slowed(average(model, agent))
        except PeerLost:
            continue  # the model is as it was before
        except OverlayError:
            break  # the agent was closed
        if lesson.copies:
            _mix(model, agent)
        now = time.monotonic()
        points.append(Point(round_ + 1, now - begin, now - started, accuracy(model, data)))
        told(points[-1])
    return points


@torch.no_grad()
def _mix(model: nn.Module, agent: Agent) -> None:
    """Average this site's model and the newest copy of each other site's."""
    newest = {copy.sender: copy.values for copy in agent.copies()}
    if not newest:
        return
    total = np.stack(list(newest.values())).sum(axis=0)
    first = 0
    for parameter in model.parameters():
        part = torch.from_numpy(total[first : first + parameter.numel()]).view_as(parameter)
        parameter.add_(part).div_(1 + len(newest))
        first += parameter.numel()


def warm(lesson: Lesson) -> None:
    """Do a step without effect: the first one takes longest, and the first optimizer imports half of PyTorch."""
    data = images()
    model = make_model(data, lesson.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=lesson.rate, momentum=lesson.momentum)
    nn.functional.cross_entropy(model(data.train_images[: lesson.batch]), data.train_labels[: lesson.batch]).backward()
    optimizer.step()
    accuracy(model, data)


def in_host(
    channel: Any, *, coordinator: list[Any], node: str, address: str, site: int, sites: int, lesson: dict[str, Any]
) -> dict[str, Any]:
    """Run a site's process (topologies/zygote.py): train until told to end. Return its points, and the agent's
    counters.
    """
    torch.set_num_threads(1)
    host, port = coordinator
    agent = Agent((host, port), node, listen=(address, 0))
    agent.wait_joined()
    warm(Lesson(**lesson))
    channel.send("ready")
    channel.receive()

    def end() -> None:
        channel.receive()
        agent.close()

    threading.Thread(target=end, daemon=True).start()
    points = learn(agent, site, sites, Lesson(**lesson), rounds=1_000_000)
    return {"points": [asdict(point) for point in points], **agent.statistics()}
