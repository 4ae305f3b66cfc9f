"""Measures one number of workers at one rate, on a network with softswitch in its middle and on one with a bridge, in
turns.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from types import TracebackType

from evaluation.collectives.cases import Case
from evaluation.collectives.ranks import Ranks, command, gloo_ranks
from evaluation.hosts.measure import Setting
from evaluation.hosts.network import StarNetwork, inside
from evaluation.hosts.switch import Switch
from ps_server.server import Server

MOST_IN_A_ROW, BYTES_IN_A_ROW = 25, 4_000_000
"""Most operations, and most bytes, that are measured in a row, one after the other, as in nccl-tests: the time of an
operation is that of all of them over their number.
"""
WARM = 1
WARM_BYTES = 1_000_000
"""Bytes of the operations (at most MOST_IN_A_ROW) that run right before the measured ones and are not measured: a
shaped link that was idle lets 256 KB through at once, which no link of that rate does.
"""


@dataclass(frozen=True)
class Result:
    """The result of a case. Seconds are medians.

    Attributes:
        bound_seconds: the bytes as they travel, over the bandwidth.
        gloo_cpu_seconds, gloo_switches: CPU seconds and context switches of all ranks of gloo together; None without
            gloo.
    """

    op: str
    dtype: str
    bits: int
    bytes: int
    workers: int
    mbps: float
    seconds: float
    gloo_seconds: float | None
    bound_seconds: float
    gloo_cpu_seconds: float | None = None
    gloo_switches: float | None = None


class Bench:
    """Both networks, for cases of one number of workers and one rate, with a process for each rank: ours around a
    switch, gloo's around a bridge in the kernel.
    """

    def __init__(
        self, workers: int, mbps: float, values: int = 256, *, gloo: bool = True, gathers: bool = False
    ) -> None:
        self._values = values
        self._seed = 0
        self._gloo: Ranks | None = None
        self._used: list[tuple[float, int]] = []
        self._stack = ExitStack()
        job = Setting(workers, mbps, 0, values, gathers=gathers, servers=2 if gathers else 1).job()
        agents = job.workers + job.servers
        with self._stack as stack:
            names, addresses = [agent.node for agent in agents], [agent.address for agent in agents]
            network = stack.enter_context(StarNetwork("inart-c", names, addresses, mbps))
            switch = stack.enter_context(Switch(network.middle, network.ports(), values))
            switch.install(job.rules)
            for server in job.servers:
                with inside(network.hosts[server.node]):
                    stack.enter_context(Server(server, "data0"))
            own = [command(network, one.node, "own", json.dumps(one.to_json())) for one in job.workers]
            self._own = Ranks("an engine", own)
            stack.callback(self._own.close)
            if gloo:
                hosts = [agent.node for agent in job.workers]
                addresses = [agent.address for agent in job.workers]
                other = stack.enter_context(StarNetwork("inart-g", hosts, addresses, mbps))
                stack.enter_context(other.bridged())
                self._gloo = gloo_ranks(other, job.workers)
                stack.callback(self._gloo.close)
            self._stack = stack.pop_all()

    def measure(self, case: Case, repeat: int) -> Result:
        """Measure a case by ours and by gloo in turns. Raise AssertionError when results differ among workers."""
        in_a_row = max(1, min(MOST_IN_A_ROW, BYTES_IN_A_ROW // case.nbytes))
        warm = min(MOST_IN_A_ROW, -(-WARM_BYTES // case.nbytes))
        own, other = self.seconds([case.at_most(WARM_BYTES)] * warm + [case] * in_a_row, repeat, warm=warm)
        each = warm + in_a_row  # Both are counted over the operations before the measured ones, too.
        cpu, switches = (statistics.median(one) / each for one in zip(*self._used, strict=True)) if other else (0, 0)
        return Result(
            case.op,
            case.dtype,
            case.bits,
            case.nbytes,
            case.workers,
            case.mbps,
            own / in_a_row,
            None if other is None else other / in_a_row,
            case.bound_seconds(self._values),
            cpu if other else None,
            switches if other else None,
        )

    def seconds(
        self, cases: Sequence[Case], repeat: int, beside: Sequence[Sequence[int]] = (), *, warm: int = 0
    ) -> tuple[float, float | None]:
        """Run all cases one after the other, by ours and by gloo in turns. Return the medians of their seconds, without
        the first `warm` cases. Raise AssertionError when results differ among workers.

        Args:
            cases: the cases.
            repeat: how often all of them are run.
            beside: for each case after the first `warm`, the places of those before it that may still be under way when
                it begins; empty where each waits for the one before it.
            warm: number of cases at the beginning that are not measured.
        """
        own: list[float] = []
        other: list[float] = []
        self._used = []
        same = all(case.op != "reduce_scatter" for case in cases)
        for _ in range(repeat + WARM):
            self._seed += 1
            task = {"cases": [asdict(case) for case in cases], "seed": self._seed, "beside": beside, "warm": warm}
            own.append(self._own.seconds(task, same=same))
            if self._gloo is not None:
                other.append(self._gloo.seconds(task, same=False))
                self._used.append(self._gloo.used)
        return statistics.median(own[WARM:]), statistics.median(other[WARM:]) if other else None

    def close(self) -> None:
        """Remove the networks and their processes."""
        self._stack.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def measure(
    cases: Iterable[Case], repeat: int, *, values: int = 256, gloo: bool = True, gathers: bool = False
) -> Iterator[Result]:
    """Yield the result of each case, those of one network together. With `gathers`, the jobs say that they gather."""
    bench: Bench | None = None
    place: tuple[int, float] | None = None
    try:
        for case in cases:
            if bench is None or place != (case.workers, case.mbps):
                if bench is not None:
                    bench.close()
                place = case.workers, case.mbps
                bench = Bench(case.workers, case.mbps, values, gloo=gloo, gathers=gathers)
            yield bench.measure(case, repeat)
    finally:
        if bench is not None:
            bench.close()
