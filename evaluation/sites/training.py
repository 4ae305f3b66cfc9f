"""The process of an emulated site: it trains the example's GPT, by one of the systems, until it is told to end.

After each round (or every so many steps) it sends the common model's loss on text that no site trains on to the process
that measures, with the seconds since the beginning and the bytes that have left the host in them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from examples.train_gpt import GPT, text
from overlay.sites import DiLoCo, LocalSGD, StreamingDiLoCo, init
from topologies.zygote import Channel

TEST_SEQUENCES = 16
TEST_PART = 20  # one 20th of the text, at its end

OPTIMISERS: dict[str, Callable[..., StreamingDiLoCo]] = {
    "diloco": DiLoCo,
    "local": LocalSGD,
    "streaming": StreamingDiLoCo,
    "streaming-paced": partial(StreamingDiLoCo, delay=None),
}
GLOO_PORT = 29511


@dataclass(frozen=True)
class Lesson:
    """Settings of the training.

    Attributes:
        width, layers, heads, length: sizes of the model.
        batch: sequences of a site and step.
        rate: learning rate of AdamW.
        compute_s: least seconds of a step, as on a machine of the site's own.
        every: steps of a round, and between two losses of synchronous training.
        bits: bits of a value across sites.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    length: int = 64
    batch: int = 8
    rate: float = 2e-3
    compute_s: float = 0.1
    every: int = 20
    bits: int = 8
    seed: int = 0

    def model(self) -> GPT:
        """Return the model with which all sites begin."""
        torch.manual_seed(self.seed)
        return GPT(self.width, self.layers, self.heads, self.length)


class Data:
    """A site's own sequences, drawn at random, and sequences on which no site trains."""

    def __init__(self, lesson: Lesson, site: int) -> None:
        corpus = text()
        end = len(corpus) - len(corpus) // TEST_PART
        self._train, self._span, self._batch = corpus[:end], torch.arange(lesson.length + 1), lesson.batch
        self._draws = torch.Generator().manual_seed(1000 * lesson.seed + site)
        starts = torch.linspace(end, len(corpus) - lesson.length - 1, TEST_SEQUENCES).long()
        self._test = corpus[starts[:, None] + self._span]

    def batches(self) -> Iterator[torch.Tensor]:
        while True:
            starts = torch.randint(len(self._train) - len(self._span), (self._batch,), generator=self._draws)
            yield self._train[starts[:, None] + self._span]

    @torch.no_grad()
    def test_loss(self, model: nn.Module) -> float:
        return float(loss_of(model, self._test))


def loss_of(model: nn.Module, sequences: torch.Tensor) -> torch.Tensor:
    logits = model(sequences[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())


def bytes_left(interface: str) -> int:
    """Return the bytes that have left this host over an interface, in frames. Raise RuntimeError when it has no such
    interface.
    """
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[8])
    raise RuntimeError(f"there is no interface {interface}")


class Clock:
    """A site's points: seconds and bytes since it was told to begin."""

    def __init__(self, channel: Channel, interface: str) -> None:
        self._channel, self._interface = channel, interface
        channel.send("ready")
        channel.receive()
        self._began, self._bytes, self._waited = time.monotonic(), bytes_left(interface), 0.0

    def waited(self, seconds: float) -> None:
        """Take note that training has waited for the network for so many seconds."""
        self._waited += seconds

    def say(self, step: int, loss: float) -> None:
        self._channel.send({"step": step, "at_s": time.monotonic() - self._began, "loss": loss,
                            "bytes": bytes_left(self._interface) - self._bytes, "waited_s": self._waited})  # fmt: skip


def train_step(model: nn.Module, inner: torch.optim.Optimizer, sequences: torch.Tensor, compute_s: float) -> None:
    """Do a step of training; the pause that stands for the rest of compute_s comes before gradients are exchanged."""
    began = time.monotonic()
    loss = loss_of(model, sequences)
    inner.zero_grad()
    time.sleep(max(0.0, compute_s - (time.monotonic() - began)))
    loss.backward()
    inner.step()


def by_sites(
    channel: Channel, *, how: str, coordinator: str, node: str, address: str, interface: str, site: int,
    lesson: dict[str, Any],
) -> None:  # fmt: skip
    """Train by LocalSGD, DiLoCo or Streaming DiLoCo over `inart.sites`, until the process is ended."""
    torch.set_num_threads(1)
    given = Lesson(**lesson)
    data, model = Data(given, site), given.model()
    group = init(coordinator, node, listen=f"{address}:0")
    outer = OPTIMISERS[how](model, group, every=given.every, bits=given.bits)
    inner = torch.optim.AdamW(model.parameters(), lr=given.rate)
    clock = Clock(channel, interface)
    for step, sequences in enumerate(data.batches(), 1):
        train_step(model, inner, sequences, given.compute_s)
        before = time.monotonic()
        changed = outer.step(samples=len(sequences))
        clock.waited(time.monotonic() - before)
        if changed:
            clock.say(step, data.test_loss(model))


def by_gloo(channel: Channel, *, first: str, interface: str, site: int, sites: int, lesson: dict[str, Any]) -> None:
    """Train synchronously, by PyTorch's DistributedDataParallel over gloo in float32, until the process is ended."""
    torch.set_num_threads(1)
    given = Lesson(**lesson)
    data, model = Data(given, site), given.model()
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group("gloo", init_method=f"tcp://{first}:{GLOO_PORT}", rank=site, world_size=sites)
    distributed = DistributedDataParallel(model)
    inner = torch.optim.AdamW(model.parameters(), lr=given.rate)
    clock = Clock(channel, interface)
    for step, sequences in enumerate(data.batches(), 1):
        train_step(distributed, inner, sequences, given.compute_s)
        if step % max(1, given.every // 4) == 0:
            clock.say(step, data.test_loss(model))
