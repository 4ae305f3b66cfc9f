"""Measures what one site carries on one core: `python -m evaluation.wan through`.

Three agents run in processes of their own, over loopback: the middle one adds what comes from below to its own values,
sends the sum up, and the result down. Its incoming and outgoing traffic is divided by its CPU seconds, which gives what
it carries per second on one core, however busy the machine is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from controlplane.planner.plan.task import WINDOW_CHUNKS, Edge, SumTree, Task
from controlplane.planner.strategies.wan.policy import Rounds
from overlay.__main__ import amount
from overlay.core.tcp import Connections
from overlay.net.agent import Agent
from overlay.net.coordinator import Coordinator

NODES = ("leaf", "site", "root")
SECONDS = 300.0


class Line(Rounds):
    def __init__(self, chunk_values: int, window: int) -> None:
        super().__init__(NODES)
        self.chunk_values, self.window = chunk_values, window

    def task(self, number: int, values: int, now: float) -> Task:
        up = (Edge("leaf", "site"), Edge("site", "root"))
        down = tuple(Edge(edge.receiver, edge.sender) for edge in up)
        tree = SumTree("root", 0, values, up, down, NODES, NODES)
        return Task(number, values, (tree,), chunk_values=self.chunk_values, window=self.window)


def agent(address: tuple[str, int], node: str, sizes: tuple[int, int], connections: int, out: Any) -> None:
    """Measure CPU and wall seconds of each round, of all of this process's threads."""
    values, rounds = sizes
    one = Agent(address, node, listen=("127.0.0.1", 0), connections=Connections(connections))
    one.wait_joined()
    tensor = np.ones(values, np.float32)
    one.synchronise(tensor, SECONDS)  # connections, memory
    found = []
    for _ in range(rounds):
        cpu, wall = time.process_time(), time.monotonic()
        one.synchronise(tensor, SECONDS)
        found.append((time.process_time() - cpu, time.monotonic() - wall))
    out.put((node, found))
    one.leave()


def measure(values: int, rounds: int, chunk: int, window: int, connections: int) -> dict[str, float]:
    """Return the incoming Gbit per CPU second and per second, and the Gbit in and out per CPU second."""
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    with Coordinator(Line(chunk, window)) as coordinator:
        address = coordinator.address
        processes = [
            context.Process(target=agent, args=(address, node, (values, rounds), connections, out)) for node in NODES
        ]
        for process in processes:
            process.start()
        found = dict(out.get(timeout=SECONDS) for _ in NODES)
        for process in processes:
            process.join()
    cpu, wall = (statistics.median(column) for column in zip(*found["site"], strict=True))
    gbit = 2 * values * 32e-9  # sums from below, results from above
    return {
        "values": values, "chunk": chunk, "connections": connections, "in_gbit_per_cpu_s": gbit / cpu,
        "in_and_out_gbit_per_cpu_s": 2 * gbit / cpu, "in_gbit_per_s": gbit / wall,
        **{f"{node}_cpu_s": statistics.median(c for c, _ in rows) for node, rows in found.items()},
    }  # fmt: skip


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.wan through", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--values", type=amount, default=8_000_000, help="float32 values of a round (default 8M)")
    parser.add_argument("--rounds", type=int, default=5, help="synchronisations (default: %(default)s)")
    parser.add_argument("--chunk", type=amount, nargs="+", default=[65_536], help="values of a chunk (65536)")
    parser.add_argument(
        "--connections", type=int, default=1, help="TCP connections to each neighbour (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    rows = [
        measure(arguments.values, arguments.rounds, chunk, WINDOW_CHUNKS, arguments.connections)
        for chunk in arguments.chunk
    ]
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        print(f"{'chunk':>8} {'in, Gbit/CPU s':>15} {'in and out':>11} {'in, Gbit/s':>11}")
        for row in rows:
            print(
                f"{row['chunk']:>8} {row['in_gbit_per_cpu_s']:>15.2f} {row['in_and_out_gbit_per_cpu_s']:>11.2f} "
                f"{row['in_gbit_per_s']:>11.2f}"
            )
    return 0
