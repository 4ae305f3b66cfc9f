"""Trains as one rank, in its emulated host."""

from __future__ import annotations

import os
import random
import time
import warnings
from typing import Any

from topologies.zygote import Channel

JOIN_SECONDS = 120.0


def train(
    _: Channel, *, environment: dict[str, str], options: dict[str, Any], slowed: bool, deadline: bool
) -> dict[str, Any]:
    """Train the digits' convolution net for a number of steps. Return losses, accuracy, seconds and the deadline's
    counts.

    With `slowed`, in each step a random rank sleeps with probability `options["slow"]`, for 0.5 to 2 times the time
    that each rank computes in a step (a sleep of `options["compute"]` seconds, as of an accelerator, and the real
    pass).
    """
    import numpy as np
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from examples.train_digits import digits, make_model
    from worker_agent import InArtState, inart_hook
    from worker_agent.torch.deadline import Deadline
    from worker_agent.torch.hook import FallbackWarning

    os.environ.update(environment)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options["seed"])
    data = digits()
    model = make_model(data, options["width"])
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.25)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", FallbackWarning)
        state = InArtState(timeout=JOIN_SECONDS)
    limit = Deadline(ddp, state, deviations=options["deviations"]) if deadline else None
    if limit is None:
        ddp.register_comm_hook(state, inart_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=options["rate"], momentum=0.9)
    order, chance = np.random.default_rng(options["seed"]), random.Random(options["seed"])
    dist.barrier()
    began = time.perf_counter()
    for _step in range(options["steps"]):
        chosen = order.choice(len(data.train_labels), (world, options["batch"]), replace=False)
        mine = torch.from_numpy(chosen[rank])
        who, happens, factor = chance.randrange(world), chance.random() < options["slow"], chance.uniform(0.5, 2.0)
        optimizer.zero_grad()
        if limit is None or not limit.overtaken():
            time.sleep(options["compute"] * (1 + (factor if slowed and happens and who == rank else 0.0)))
            torch.nn.functional.cross_entropy(ddp(data.train_images[mine]), data.train_labels[mine]).backward()
        optimizer.step()
    seconds = time.perf_counter() - began
    in_network = state.in_network and not state.falls
    dist.barrier()
    bits = sum((float(one.detach().double().abs().sum()) for one in model.parameters()), 0.0).hex()
    if limit is not None:
        limit.close()
    state.close()
    dist.destroy_process_group()
    return {
        "seconds": seconds, **judged(model, data), "bits": bits, "in_network": in_network,
        "said": [str(one.message) for one in said], "steps": (state.steps_in_network, state.steps_outside),
        "stood_in": limit.stood_in if limit else 0, "carried": limit.carried if limit else 0,
        "skipped": limit.skipped if limit else 0,
    }  # fmt: skip


def judged(model: Any, data: Any) -> dict[str, float]:
    """Return the loss on the data of the training and on other data, and the part of the latter that is recognised."""
    import torch
    from torch.nn.functional import cross_entropy

    with torch.no_grad():
        output = model(data.test_images)
        return {
            "accuracy": (output.argmax(dim=1) == data.test_labels).double().mean().item(),
            "test_loss": cross_entropy(output, data.test_labels).item(),
            "train_loss": cross_entropy(model(data.train_images), data.train_labels).item(),
        }
