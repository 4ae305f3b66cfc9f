"""Scenarios of ranks that leave a process group, abort it, or only take their time, while another waits for them."""

from __future__ import annotations

import os
import queue
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from worker_agent import AbortedError, InArtState
from worker_agent.torch import hook, presence
from worker_agent.torch.backend import BackendOptions, InArtProcessGroup


def _world() -> InArtProcessGroup:
    group: Any = dist.group.WORLD
    return group


def _again(rank: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """Both ranks make another group, and reduce through the network."""
    options = BackendOptions(agent=arguments["agent"], timeout=60.0)
    store = f"file://{arguments['store']}-again"
    dist.init_process_group("cpu:inart", init_method=store, rank=rank, world_size=2, pg_options=options)
    tensor = torch.full((5000,), float(rank + 1))
    dist.all_reduce(tensor)
    network = _world().network
    return {"sum": tensor[-1].item(), "in_network": network is not None and network.in_network}


def gone(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Rank 1 leaves the group, or rank 0 aborts it ("how"), while rank 0 waits for rank 1 in an all-reduce."""
    values = arguments["values"]
    tensor = torch.ones(values)
    dist.all_reduce(tensor)
    assert tensor[0].item() == 2
    error = ""
    if rank == 0:
        work = dist.all_reduce(torch.ones(values), async_op=True)
        connection.send("waits")
        if arguments["how"] == "aborts":
            _world().abort()
        try:
            work.wait()
        except AbortedError as failure:
            error = str(failure)
        assert work.is_completed()
        try:
            dist.all_reduce(torch.ones(values))
        except AbortedError as failure:
            error += f"; after it: {failure}"
        connection.send("ended")
    elif arguments["how"] == "leaves":
        connection.recv()  # It leaves while rank 0 waits, and its process lives on.
        dist.destroy_process_group()
    connection.recv()
    if dist.is_initialized():
        dist.destroy_process_group()
    return {"error": error, **_again(rank, arguments)}


def silent(rank: int, arguments: dict[str, Any], connection: Connection) -> dict[str, Any]:
    """Rank 1 begins an all-reduce only when rank 0 has looked ten times whether somebody is gone."""
    looks: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()
    look = presence.Presence.gone

    def noted(self: presence.Presence) -> tuple[str, bool]:
        looks.put(found := look(self))
        return found

    presence.Presence.gone = noted  # type: ignore[method-assign]
    presence.LOOK_SECONDS = hook.AGREED_PATIENCE_SECONDS = 0.05
    state = InArtState(agent=arguments["agent"], timeout=30.0)
    if rank == 1:
        connection.recv()
    future = state.allreduce(torch.ones(5000), "sum")
    found = [looks.get(timeout=60) for _ in range(10)] if rank == 0 else []
    if rank == 0:
        connection.send("looked")
    result = {"sum": future.wait()[0].item(), "found": found, "in_network": state.in_network, "pid": os.getpid()}
    state.close()
    return result


SCENARIOS = {"gone": gone, "silent": silent}
BACKEND_SCENARIOS = {"gone"}
