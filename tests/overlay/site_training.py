"""Runs one site of tests/overlay/test_sites.py, which trains or plays a part of a scenario."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from overlay.sites import init
from overlay.sites.optimisers import DiLoCo, LocalSGD, StreamingDiLoCo

KINDS = {"local": LocalSGD, "diloco": DiLoCo, "streaming": StreamingDiLoCo}


def make_model(seed: int) -> nn.Module:
    """A small model with a layer that has buffers."""
    torch.manual_seed(seed)
    first = [nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))


def batch(site: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * site + step)
    inputs = torch.randn(16, 12, generator=generator)
    return inputs, inputs[:, :3].abs().argmax(1)


def inner_step(model: nn.Module, optimizer: torch.optim.Optimizer, site: int, step: int) -> float:
    inputs, labels = batch(site, step)
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def flat(model: nn.Module) -> np.ndarray:
    """Return all parameters and floating-point buffers."""
    both = [*model.parameters(), *(each for each in model.buffers() if each.is_floating_point())]
    return torch.cat([tensor.detach().reshape(-1) for tensor in both]).numpy()


def train(order: dict[str, Any]) -> dict[str, Any]:
    """Train until `rounds` are done; sleeps `pause` seconds a step, and exits without cleanup at the step `die`."""
    site = int(order["site"])
    group = init(order["coordinator"], f"site{site}", listen="127.0.0.1:0", credentials=order.get("credentials"),
                 timeout=60.0, log=lambda line: print(line, file=sys.stderr, flush=True))  # fmt: skip
    assert group is not None
    model = make_model(order.get("seed", site))
    options = dict(order["options"])
    checkpoint = order.get("checkpoint")
    if checkpoint is not None and Path(checkpoint).exists():
        options["checkpoint"] = torch.load(checkpoint)
    outer = KINDS[order["kind"]](model, group, **options)
    began = outer.round
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, participants, step = [], [], 0
    while outer.round < order["rounds"]:
        losses.append(inner_step(model, inner, site, step))
        step += 1
        if outer.step(samples=order.get("samples", 16)):
            participants.append([outer.round, *outer.last.sites])
            if checkpoint is not None:
                torch.save(outer.state_dict(), checkpoint)
        if step == order.get("die"):
            os._exit(9)
        time.sleep(order.get("pause", 0.0))
    outer.state_dict()  # Rounds under way end.
    shared = np.concatenate([np.concatenate([part.outer, part.momentum]) for part in outer.fragments])
    np.savez(order["out"], model=flat(model), shared=shared)
    found = {"began": began, "round": outer.round, "losses": losses, "participants": participants,
             "bytes": group.bytes_sent()}  # fmt: skip
    outer.close()
    return found


def train_all(orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Train for each of the orders in turn, in a process of its own; returns what came of each."""
    torch.set_num_threads(1)
    return [train(order) for order in orders]


def train_rank(variables: dict[str, str]) -> np.ndarray:
    """Train as a process that torchrun or `inart site run` has started with these variables; returns the model."""
    os.environ.update(variables)
    torch.set_num_threads(1)
    if "RANK" in variables:
        dist.init_process_group("gloo")
    model = make_model(int(variables.get("RANK", 0)) + 5 * (variables["INART_SITE"] == "tokyo"))
    outer = StreamingDiLoCo(model, init(), every=4, fragments=2, delay=None, mixing=0.0, bits=8)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(16):
        inner_step(model, inner, len(variables["INART_SITE"]), step)  # DDP: equal steps at all processes of a site
        outer.step(samples=16)
    outer.synchronise()
    if "RANK" in variables:
        dist.barrier()
    outer.close()
    return flat(model)
