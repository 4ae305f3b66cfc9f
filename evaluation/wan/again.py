"""Simulates the tasks of a real run again, each begun when it began in the run, whatever became of earlier tasks.

Where groups form as their members become ready, a simulation by itself soon has other groups than the measurement, so
that comparing the two would compare the luck of both. This module compares the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from controlplane.planner.plan.task import Task
from controlplane.planner.strategies.wan.policy import Event, Order, Policy
from controlplane.planner.topology import Topology
from overlay.core.tcp import Connections
from overlay.sim.network import TcpSettings
from overlay.sim.simulation import Simulation

NEVER = 1e9


class Recorded:
    """A policy wrapped so that `orders` has its orders, and when it gave them."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.nodes = policy, policy.nodes
        self.orders: list[tuple[float, Order]] = []

    def handle(self, event: Event, now: float) -> Sequence[Order]:
        orders = self.policy.handle(event, now)
        self.orders += [(now, order) for order in orders]
        return orders

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)


class _Told:
    """A policy that decides nothing."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes

    def handle(self, event: Event, now: float) -> Sequence[Order]:
        return ()


def seconds_again(
    orders: Sequence[tuple[float, Order]],
    nodes: tuple[str, ...],
    topology: Topology,
    values: int,
    *,
    loss: float = 0.0,
    window_bytes: float = math.inf,
    until: float,
    weather: Callable[[Simulation], None] = lambda run: None,
) -> dict[int, float]:
    """Return the simulated seconds of each task, by its number.

    Args:
        orders: the orders, with seconds since the beginning.
        nodes, topology, values: the agents, the network and the number of values.
        loss: part of the packets that links lose.
        window_bytes: window of TCP's receivers.
        until: tasks that have not ended at this second are left out.
        weather: sets the changes of links.
    """
    found: dict[int, float] = {}

    def finished(task: Task, seconds: float) -> None:
        found[task.number] = seconds

    run = Simulation(
        _Told(nodes), topology, values, compute=lambda node: NEVER, finished=finished,
        tcp=TcpSettings(Connections(), loss, window_bytes=window_bytes),
    )  # fmt: skip
    for at, order in orders:
        run.sim.at(max(0.0, at), partial(run.carry_out, [order]))
    weather(run)
    run.run(10**9, seconds=until)
    return found
