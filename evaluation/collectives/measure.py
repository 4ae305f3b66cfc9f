"""One number of workers at one rate: a network with softswitch in its middle and one with a bridge, and on each what
runs there, in turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from evaluation.collectives.cases import Case, data
from evaluation.hosts.measure import Setting
from evaluation.hosts.network import StarNetwork, inside
from evaluation.hosts.star import Star
from evaluation.hosts.switch import Switch
from ps_server.server import Server
from worker_agent.engine import Engine

SMALL, MORE = 1 << 16, 4
"""Tensors of at most so many bytes are measured so many times as often: their time varies more, and takes less."""
WARM = 2


@dataclass(frozen=True)
class Result:
    """Seconds are medians. bound_seconds: the bytes as they travel over the bandwidth."""

    op: str
    dtype: str
    bits: int
    bytes: int
    workers: int
    mbps: float
    seconds: float
    gloo_seconds: float | None
    bound_seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Gloo:
    """Ranks of gloo on a network of their own, one a worker; a bridge in the kernel between them."""

    def __init__(self, job: Star, mbps: float) -> None:
        self._stack = ExitStack()
        names = [agent.node for agent in job.workers]
        addresses = [agent.address for agent in job.workers]
        self._ranks = []
        with self._stack as stack:
            network = stack.enter_context(StarNetwork("inart-g", names, addresses, mbps))
            stack.enter_context(network.bridged())
            quiet = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}  # it warns that the hosts have no names
            for config in job.workers:
                command = ["ip", "netns", "exec", network.hosts[config.node], sys.executable]
                command += ["-m", "evaluation.collectives.gloo", str(config.index), str(len(names)), addresses[0]]
                rank = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet, bufsize=1
                )
                stack.callback(rank.wait, 60)
                stack.callback(rank.kill)
                self._ranks.append(rank)
            self._stack = stack.pop_all()

    def seconds(self, case: Case) -> float:
        """Of one operation, at rank 0. Raises RuntimeError."""
        line = json.dumps({"op": case.op, "dtype": case.dtype, "elements": case.elements})
        try:
            for rank in self._ranks:
                assert rank.stdin is not None
                rank.stdin.write(line + "\n")
                rank.stdin.flush()
            assert self._ranks[0].stdout is not None
            return float(json.loads(self._ranks[0].stdout.readline()))
        except (BrokenPipeError, ValueError):
            raise RuntimeError("gloo failed; its own message is above") from None

    def close(self) -> None:
        self._stack.close()


class Bench:
    """Both networks, for cases of one number of workers and one rate."""

    def __init__(self, workers: int, mbps: float, values: int = 256, *, gloo: bool = True) -> None:
        self._values = values
        self._seed = 0
        self._engines: list[Engine] = []
        self._gloo: Gloo | None = None
        self._stack = ExitStack()
        job = Setting(workers, mbps, 0, values).job()
        agents = job.workers + job.servers
        with self._stack as stack:
            if gloo:
                self._gloo = Gloo(job, mbps)
                stack.callback(self._gloo.close)
            names, addresses = [agent.node for agent in agents], [agent.address for agent in agents]
            network = stack.enter_context(StarNetwork("inart-c", names, addresses, mbps))
            switch = stack.enter_context(Switch(network.middle, network.ports(), values))
            switch.install(job.rules)
            for config in job.workers:
                with inside(network.hosts[config.node]):
                    self._engines.append(stack.enter_context(Engine(config, "data0")))
            with inside(network.hosts[job.servers[0].node]):
                stack.enter_context(Server(job.servers[0], "data0"))
            self._stack = stack.pop_all()

    def measure(self, case: Case, repeat: int) -> Result:
        """Ours and gloo's in turns. Raises AssertionError when results differ among workers."""
        times = repeat * (MORE if case.nbytes <= SMALL else 1)
        own: list[float] = []
        other: list[float] = []
        warm = WARM if case.nbytes <= SMALL else 1
        for _ in range(times + warm):
            own.append(self._once(case))
            if self._gloo is not None:
                other.append(self._gloo.seconds(case))
        return Result(
            case.op,
            case.dtype,
            case.bits,
            case.nbytes,
            case.workers,
            case.mbps,
            statistics.median(own[warm:]),
            statistics.median(other[warm:]) if other else None,
            case.bound_seconds(self._values),
        )

    def _once(self, case: Case) -> float:
        self._seed += 1
        tensors = [data(case, worker, self._seed) for worker in range(case.workers)]
        op = case.operation(self._seed)
        start = time.monotonic()
        works = [
            engine.allreduce_async(tensor, op, dtype=None if case.is_raw else case.dtype)
            for engine, tensor in zip(self._engines, tensors, strict=True)
        ]
        for work in works:
            work.wait()
        seconds = time.monotonic() - start
        if case.op != "reduce_scatter" and any((tensor != tensors[0]).any() for tensor in tensors):
            raise AssertionError(f"the workers' results differ: {case}")
        return seconds

    def close(self) -> None:
        """Removes all of it."""
        self._stack.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def measure(cases: Iterable[Case], repeat: int, *, values: int = 256, gloo: bool = True) -> Iterator[Result]:
    """One after the other; cases of one network together."""
    bench: Bench | None = None
    place: tuple[int, float] | None = None
    try:
        for case in cases:
            if bench is None or place != (case.workers, case.mbps):
                if bench is not None:
                    bench.close()
                place = case.workers, case.mbps
                bench = Bench(case.workers, case.mbps, values, gloo=gloo)
            yield bench.measure(case, repeat)
    finally:
        if bench is not None:
            bench.close()
