"""Measures what the check of every sum costs end to end: all-reduces by engines with it and without it, in turns.

    python -m evaluation.hosts.check_cost [--bytes 50M] [--mbps 1000] [--values 256] [--workers 4] [--turns 20]

All turns are in one process and one network (that of `python -m evaluation.hosts`), on the same arrays, with the
engines as they are and with engines compiled without the check (native/unchecked.h): two processes differ by more than
the check costs, because each has other pages of the machine's memory. In a turn either kind is opened anew and does a
few all-reduces, of which the cheapest counts, since other load only adds to it. Printed are medians over the turns, of
the CPU time a packet of workers and root, and of the differences between the two of each turn. A packet has the check
word in both, which is the cost in bytes. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from controlplane.common.command_line import value
from controlplane.common.inputs import parse_bytes
from evaluation.hosts.measure import Array, Meter, Setting, agents_of, allreduce, check, tensors_of
from evaluation.hosts.network import StarNetwork
from evaluation.hosts.switch import Switch
from p4src.protocol import frame_bytes
from worker_agent.native_engine import NATIVE

UNCHECKED = Path(__file__).resolve().parent / "native" / "unchecked.h"
FLAGS = "INART_CFLAGS"
LIMIT_CPU, LIMIT_BYTES = 0.03, 0.01
"""Of a worker's CPU time a packet, and of the bytes: more is too much."""


@dataclass(frozen=True)
class Costs:
    """CPU time a packet, in µs."""

    worker: float
    root: float


@dataclass(frozen=True)
class Cost:
    """Medians over the turns. worker, root: µs of CPU a packet, without the check and with it. worker_part, root_part:
    of the turns' differences, over what it is without. spread: half of the distance between the quartiles of the
    workers'. byte_part: of a frame. turns: how many."""

    worker: tuple[float, float]
    root: tuple[float, float]
    worker_part: float
    root_part: float
    spread: float
    byte_part: float
    turns: int


@contextmanager
def compiled(*, checked: bool) -> Iterator[None]:
    """Have engines that are opened meanwhile compiled with the check, or without it."""
    before = os.environ.get(FLAGS)
    if not checked:
        os.environ[FLAGS] = f"{before or ''} -include {UNCHECKED} -I{NATIVE}"
    try:
        yield
    finally:
        os.environ.pop(FLAGS, None)
        if before is not None:
            os.environ[FLAGS] = before


class Bench:
    """A network with a switch in which engines of either kind are measured, one after the other."""

    def __init__(self, setting: Setting, network: StarNetwork, switch: Switch) -> None:
        self.setting, self.network, self.switch = setting, network, switch
        self._given = tensors_of(setting.workers, setting.size, 0)
        self._tensors: list[Array] = [np.empty_like(tensor) for tensor in self._given]
        self._epoch = 0

    def costs(self, *, checked: bool) -> Costs:
        """Open the engines and return what the cheapest of a few all-reduces takes."""
        self._epoch += 1
        job = self.setting.job(self._epoch)
        self.switch.install(job.rules)
        found = []
        with compiled(checked=checked), agents_of(job, self.network, self.setting.io) as (engines, server):
            for _ in range(self.setting.repeat):
                for tensor, given in zip(self._tensors, self._given, strict=True):
                    np.copyto(tensor, given)
                meter = Meter(engines, server, self.switch)
                allreduce(engines, self._tensors)
                found.append(meter.read())
                check(self._tensors)
        return Costs(min(cost[0] for cost in found), min(cost[1] for cost in found))


def cost(turns: list[tuple[Costs, Costs]], values: int) -> Cost:
    """Return what turns (without the check, with it) come to."""

    def both(name: str) -> tuple[list[float], list[float]]:
        return [getattr(without, name) for without, _ in turns], [getattr(checked, name) for _, checked in turns]

    def parts(name: str) -> list[float]:
        return [(b - a) / a for a, b in zip(*both(name), strict=True)]

    def medians(name: str) -> tuple[float, float]:
        without, checked = both(name)
        return statistics.median(without), statistics.median(checked)

    worker = parts("worker")
    quartiles = statistics.quantiles(worker, n=4) if len(worker) > 1 else [0.0, 0.0, 0.0]
    return Cost(
        worker=medians("worker"), root=medians("root"), worker_part=statistics.median(worker),
        root_part=statistics.median(parts("root")), spread=(quartiles[2] - quartiles[0]) / 2,
        byte_part=4 / frame_bytes(values), turns=len(turns),
    )  # fmt: skip


def measured(setting: Setting, turns: int) -> list[tuple[Costs, Costs]]:
    """Return so many turns (without the check, with it), in namespaces that are made and removed."""
    agents = (job := setting.job()).workers + job.servers
    names, addresses = [agent.node for agent in agents], [agent.address for agent in agents]
    found = []
    with (
        StarNetwork("inart-c", names, addresses, setting.mbps) as network,
        Switch(network.middle, network.ports(), setting.values) as switch,
    ):
        bench = Bench(setting, network, switch)
        for number in range(turns):
            order = (False, True) if number % 2 else (True, False)  # what comes first has no advantage
            turn = {checked: bench.costs(checked=checked) for checked in order}
            found.append((turn[False], turn[True]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.hosts.check_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bytes", type=value(parse_bytes), default=50_000_000, help="size of the tensor (50M)")
    parser.add_argument("--mbps", type=float, default=1000.0, help="of each link (%(default)s)")
    parser.add_argument("--values", type=int, default=256, help="in a packet: 64 or 256 (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="all-reduces of each turn (%(default)s)")
    parser.add_argument("--turns", type=int, default=20, help="of both (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one object")
    arguments = parser.parse_args()
    setting = Setting(arguments.workers, arguments.mbps, arguments.bytes, arguments.values, arguments.repeat)
    found = cost(measured(setting, arguments.turns), arguments.values)
    if arguments.json:
        print(json.dumps(asdict(found), indent=1))
    else:
        for name, (without, checked), part in (
            ("worker", found.worker, found.worker_part),
            ("root", found.root, found.root_part),
        ):
            print(f"{name:7} {without:.3f} µs of CPU a packet without the check, {checked:.3f} with it: {part:+.1%}")
        print(f"medians of {found.turns} turns; the workers' quartiles are {found.spread:.1%} around theirs")
        print(f"bytes   {found.byte_part:.2%} of a frame")
    return 0 if found.worker_part <= LIMIT_CPU and found.byte_part <= LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
