"""Measures how much one site carries on one core: `python -m evaluation.wan through`.

Three agents run in processes of their own, over loopback: the middle one adds the sums from below to its own values,
sends the sum up, and the result down. Its incoming and outgoing traffic, divided by its CPU seconds, is what it carries
per second on one core, however busy the machine is. `--tls` has each of these connections encrypted. With `--gloo`
three processes do the same number of rounds by gloo's all-reduce in a ring (PyTorch), beside each of ours.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.cli.certificates import Wanted, make
from controlplane.common.rpc.tls import credentials
from controlplane.planner.plan.task import WINDOW_CHUNKS, Edge, SumTree, Task
from controlplane.planner.strategies.wan.policy import Rounds
from evaluation import commands
from overlay.__main__ import amount
from overlay.net.agent import Agent
from overlay.net.coordinator import Coordinator
from overlay.net.tls import Security
from topologies.ports import free_port

NODES = ("leaf", "site", "root")
SECONDS = 300.0
GBIT = 32e-9
"""A float32 value in Gbit."""


class Line(Rounds):
    def __init__(self, chunk_values: int, window: int) -> None:
        super().__init__(NODES)
        self.chunk_values, self.window = chunk_values, window

    def task(self, number: int, values: int, now: float) -> Task:
        up = (Edge("leaf", "site"), Edge("site", "root"))
        down = tuple(Edge(edge.receiver, edge.sender) for edge in up)
        tree = SumTree("root", 0, values, up, down, NODES, NODES)
        return Task(number, values, (tree,), chunk_values=self.chunk_values, window=self.window)


@dataclass(frozen=True)
class Load:
    """A measurement's load.

    Attributes:
        values: values of a round.
        secrets: the folder of certificates; None for plaintext.
    """

    values: int
    rounds: int
    secrets: Path | None = None

    def security(self, folder: str) -> Security | None:
        return None if self.secrets is None else Security.of(credentials(self.secrets / folder))


def timed(rounds: int, once: Callable[[], object]) -> list[tuple[float, float]]:
    """Return the CPU seconds (of all of this process's threads) and wall seconds of each round. One more round before
    them opens connections, and does not count.
    """
    once()
    found = []
    for _ in range(rounds):
        cpu, wall = time.process_time(), time.monotonic()
        once()
        found.append((time.process_time() - cpu, time.monotonic() - wall))
    return found


def agent(address: tuple[str, int], node: str, load: Load, out: Any) -> None:
    one = Agent(
        address, node, listen=("127.0.0.1", 0), security=load.security(f"nodes/{node}"),
    )  # fmt: skip
    one.wait_joined()
    tensor = np.ones(load.values, np.float32)
    out.put((node, timed(load.rounds, functools.partial(one.synchronise, tensor, SECONDS))))
    one.leave()


def gloo_rank(rank: int, port: int, load: Load, out: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=len(NODES))
    tensor = torch.ones(load.values)
    out.put((rank, timed(load.rounds, lambda: dist.all_reduce(tensor))))
    dist.destroy_process_group()


def _together(target: Callable[..., None], starts: Sequence[tuple[Any, ...]]) -> dict[Any, list[tuple[float, float]]]:
    """Run the target in a process for each start, all at once. Return the rounds' times by the name that each process
    gives.
    """
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    processes = [context.Process(target=target, args=(*start, out)) for start in starts]
    for process in processes:
        process.start()
    found = dict(out.get(timeout=SECONDS) for _ in processes)
    for process in processes:
        process.join()
    return found


def measure(load: Load, chunk: int, window: int) -> dict[str, Any]:
    """Return the incoming Gbit per CPU second and per second, and the Gbit in and out per CPU second."""
    with Coordinator(Line(chunk, window), security=load.security("controller")) as coordinator:
        found = _together(agent, [(coordinator.address, node, load) for node in NODES])
    cpu, wall = (statistics.median(column) for column in zip(*found["site"], strict=True))
    gbit = 2 * load.values * GBIT  # sums come from below, and results from above
    return {
        "values": load.values, "chunk": chunk, "tls": load.secrets is not None,
        "in_gbit_per_cpu_s": gbit / cpu, "in_and_out_gbit_per_cpu_s": 2 * gbit / cpu, "in_gbit_per_s": gbit / wall,
        **{f"{node}_cpu_s": statistics.median(c for c, _ in rows) for node, rows in found.items()},
    }  # fmt: skip


def measure_gloo(load: Load) -> dict[str, Any]:
    """Return the columns of `measure` for a process of gloo's ring, into which 2 (n - 1) / n of the values come."""
    port = free_port()
    found = _together(gloo_rank, [(rank, port, load) for rank in range(len(NODES))])
    cpu, wall = (statistics.median(column) for column in zip(*(row for rows in found.values() for row in rows),
                                                             strict=True))  # fmt: skip
    gbit = 2 * (len(NODES) - 1) / len(NODES) * load.values * GBIT
    return {
        "values": load.values, "chunk": "gloo", "tls": False, "in_gbit_per_cpu_s": gbit / cpu,
        "in_and_out_gbit_per_cpu_s": 2 * gbit / cpu, "in_gbit_per_s": gbit / wall,
    }  # fmt: skip


def main(argv: Sequence[str]) -> int:
    parser = commands.parser("wan through", __doc__)
    parser.add_argument("--values", type=amount, default=8_000_000, help="float32 values of a round (default 8M)")
    parser.add_argument("--rounds", type=int, default=5, help="synchronisations (default: %(default)s)")
    parser.add_argument("--chunk", type=amount, nargs="+", default=[65_536], help="values of a chunk (65536)")
    parser.add_argument("--tls", action="store_true", help="encrypt all connections")
    parser.add_argument("--gloo", action="store_true", help="measure gloo's ring beside each")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as secrets:
        if arguments.tls:
            make(Path(secrets), Wanted(nodes=NODES))
        load = Load(arguments.values, arguments.rounds, Path(secrets) if arguments.tls else None)
        for chunk in arguments.chunk:
            rows.append(measure(load, chunk, WINDOW_CHUNKS))
            rows += [measure_gloo(load)] if arguments.gloo else []
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
