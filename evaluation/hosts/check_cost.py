"""Measures what the check of every sum costs end to end: all-reduces with it and without it, in turns.

    python -m evaluation.hosts.check_cost [--bytes 12M] [--mbps 1000] [--values 256] [--workers 4] [--turns 200]

All turns are of the same engines in one process and one network (that of `python -m evaluation.hosts`), on the same
arrays and sockets: engines that are compiled so that their check can be switched off between two all-reduces
(native/switched.h). Engines that are opened anew, and all the more another process, differ by more than the check
costs, because each has other pages of the machine's memory. A turn is one all-reduce with the check and one without it,
a tenth of a second each, so that other load of the machine falls on both alike. Without it numbers are converted by the
same passes, less what the check does in them. The output has medians over the turns, of the CPU time a packet of
workers and root, and of the turns' differences, with the range that has the true median with 95 % confidence. A packet
has the check word in both, which is the cost in bytes. Needs root.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from controlplane.common import command_line
from controlplane.common.command_line import value
from controlplane.common.inputs import parse_bytes
from evaluation import commands, machine
from evaluation.hosts.measure import Array, Meter, Setting, agents_of, allreduce, check, tensors_of
from evaluation.hosts.network import StarNetwork
from evaluation.hosts.switch import Switch
from p4src.protocol import frame_bytes
from ps_server import server as ps_server
from ps_server.server import Server
from worker_agent import native_worker
from worker_agent.engine import Engine
from worker_agent.native_engine import NATIVE

SWITCHED = Path(__file__).resolve().parent / "native" / "switched.h"
FLAGS = "INART_CFLAGS"
LIMIT_CPU, LIMIT_BYTES = 0.03, 0.01
"""Limits, as fractions of a worker's CPU time a packet, and of the bytes, above which the check costs too much."""
WARM_UP = 4  # all-reduces before the first turn: pages, windows and rates are found in them
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Costs:
    """CPU time a packet, in µs, of one all-reduce."""

    worker: float
    root: float


@dataclass(frozen=True)
class Part:
    """Cost of the check in a participant's CPU time a packet.

    Attributes:
        without, checked: medians of the turns without the check and with it, in µs.
        part: median of the turns' differences, as a fraction of the time without the check.
        least, most: range that has the true median with 95 % confidence.
    """

    without: float
    checked: float
    part: float
    least: float
    most: float


@dataclass(frozen=True)
class Cost:
    """Cost of the check.

    Attributes:
        worker, root: its cost in their CPU time.
        byte_part: its part of a frame's bytes.
        turns: number of turns.
    """

    worker: Part
    root: Part
    byte_part: float
    turns: int


@contextmanager
def switchable() -> Iterator[list[ctypes.c_int]]:
    """Have engines that are opened meanwhile compiled so that their check can be switched off. Yield the switches (1 is
    off) of the workers' engines and of the root's.
    """
    before = os.environ.get(FLAGS)
    os.environ[FLAGS] = f"{before or ''} -include {SWITCHED} -I{NATIVE}"
    try:
        libraries = native_worker.library(), ps_server.library()
        yield [ctypes.c_int.in_dll(library, "inart_unchecked") for library in libraries]
    finally:
        os.environ.pop(FLAGS, None)
        if before is not None:
            os.environ[FLAGS] = before


class Bench:
    """A network with a switch and engines whose check is switched off and on between all-reduces."""

    def __init__(
        self, setting: Setting, engines: list[Engine], server: Server, switch: Switch, switches: list[ctypes.c_int]
    ) -> None:
        self._agents = engines, server, switch
        self._switches = switches
        self._given = tensors_of(setting.workers, setting.size, 0)
        self._tensors: list[Array] = [np.empty_like(tensor) for tensor in self._given]

    def costs(self, *, checked: bool) -> Costs:
        """Return the CPU time of one all-reduce."""
        for switch in self._switches:
            switch.value = not checked
        for tensor, given in zip(self._tensors, self._given, strict=True):
            np.copyto(tensor, given)
        meter = Meter(*self._agents)
        allreduce(self._agents[0], self._tensors)
        found = meter.read()
        check(self._tensors)
        return Costs(found[0], found[1])


def part(turns: list[tuple[float, float]]) -> Part:
    """Return the cost in turns (µs without the check, µs with it)."""
    differences = sorted((checked - without) / without for without, checked in turns)
    count = len(differences)
    # As many turns are above the true median as of a coin's throws are heads.
    beyond = max(0, math.floor(count / 2 - NORMAL_95 / 2 * math.sqrt(count)))
    return Part(
        statistics.median(without for without, _ in turns),
        statistics.median(checked for _, checked in turns),
        statistics.median(differences),
        differences[beyond],
        differences[count - 1 - beyond],
    )


def cost(turns: list[tuple[Costs, Costs]], values: int) -> Cost:
    """Return the cost in turns (without the check, with it)."""
    return Cost(
        part([(without.worker, checked.worker) for without, checked in turns]),
        part([(without.root, checked.root) for without, checked in turns]),
        4 / frame_bytes(values),
        len(turns),
    )


def measured(setting: Setting, turns: int) -> list[tuple[Costs, Costs]]:
    """Return so many turns (without the check, with it), in namespaces that are made and removed."""
    job = setting.job()
    agents = job.workers + job.servers
    names, addresses = [agent.node for agent in agents], [agent.address for agent in agents]
    found = []
    with (
        StarNetwork("inart-c", names, addresses, setting.mbps) as network,
        Switch(network.middle, network.ports(), setting.values) as switch,
        switchable() as switches,
    ):
        switch.install(job.rules)
        with agents_of(job, network, setting.io) as (engines, server):
            bench = Bench(setting, engines, server, switch, switches)
            for number in range(WARM_UP):
                bench.costs(checked=bool(number % 2))
            for number in range(turns):
                order = (False, True) if number % 2 else (True, False)  # what comes first has no advantage
                turn = {checked: bench.costs(checked=checked) for checked in order}
                found.append((turn[False], turn[True]))
    return found


def _line(name: str, found: Part) -> str:
    return (
        f"{name:7} {found.without:.3f} µs of CPU a packet without the check, {found.checked:.3f} with it: "
        f"{found.part:+.1%} ({found.least:+.1%} to {found.most:+.1%})"
    )


def main() -> int:
    parser = commands.parser("hosts.check_cost", __doc__)
    parser.add_argument("--bytes", type=value(parse_bytes), default=12_000_000, help="size of the tensor (12M)")
    parser.add_argument("--mbps", type=float, default=1000.0, help="of each link (%(default)s)")
    parser.add_argument("--values", type=int, default=256, help="in a packet: 64 or 256 (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--turns", type=int, default=200, help="of both (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one object")
    arguments = parser.parse_args()
    print(machine.description(), file=sys.stderr)
    setting = Setting(arguments.workers, arguments.mbps, arguments.bytes, arguments.values)
    found = cost(measured(setting, arguments.turns), arguments.values)
    if arguments.json:
        print(json.dumps(asdict(found), indent=1))
    else:
        print(_line("worker", found.worker))
        print(_line("root", found.root))
        print(f"medians of {found.turns} turns, and where they are with 95 % confidence")
        print(f"bytes   {found.byte_part:.2%} of a frame")
    return 0 if found.worker.part <= LIMIT_CPU and found.byte_part <= LIMIT_BYTES else 1


if __name__ == "__main__":
    command_line.end_in_order()
    sys.exit(main())
