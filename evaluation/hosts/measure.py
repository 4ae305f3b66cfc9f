"""Measures one setting: an all-reduce through softswitch, its CPU costs, and gloo on the same links."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluation.collectives.cases import Case
from evaluation.collectives.ranks import gloo_ranks
from evaluation.hosts.network import StarNetwork, inside
from evaluation.hosts.star import Star, TreeShape, star
from evaluation.hosts.switch import Switch
from p4src.protocol import data_values, frame_bytes
from ps_server.server import Server
from worker_agent.engine import Engine
from worker_agent.fixedpoint import FLOAT32_BITS
from worker_agent.io_options import IoOptions

Array = NDArray[np.float32]
WINDOW_SECONDS = 0.004  # seconds of packets that may be under way, as rules.build allows for
LEAST_WINDOW, MOST_WINDOW = 512, 2048  # slots
BUSY = 0.85  # share of a thread's or of all cores' time from which on it counts as the bottleneck,
MET = 1.1  # unless the time was within this factor of size / bandwidth


@dataclass(frozen=True)
class Setting:
    """Settings of a measurement.

    Attributes:
        size: bytes of float32.
        io: I/O of the agents.
        gloo: whether gloo is measured as well.
        trees: number of trees of equal shares.
        lanes: ports of each tree; the threads share all of them.
        gathers: a worker's own values in a gather do not come back to it, and with two servers or more gathers run
            beside reductions.
        servers: number of parameter servers, each of a tree or more.
    """

    workers: int
    mbps: float
    size: int
    values: int = 256
    repeat: int = 3
    io: IoOptions = field(default_factory=IoOptions)
    gloo: bool = True
    trees: int = 1
    gathers: bool = False
    servers: int = 1
    lanes: int = 1

    @property
    def bound_seconds(self) -> float:
        """Seconds of size / bandwidth, in wire bytes."""
        return 8 * frame_bytes(self.values) * -(-self.size // (4 * data_values(self.values))) / (self.mbps * 1e6)

    def job(self) -> Star:
        """Return a job with as many chunks under way, in all trees together, as a round trip at this rate may need."""
        window = self.mbps * 1e6 / 8 / frame_bytes(self.values) * WINDOW_SECONDS
        slots = min(MOST_WINDOW, max(LEAST_WINDOW, 1 << math.ceil(math.log2(window))))
        trees, beside = max(self.trees, self.servers), self.gathers and self.servers > 1
        slots = max(64, slots >> math.ceil(math.log2(trees))) << beside
        made = star(
            self.workers,
            self.servers,
            trees=[TreeShape(tree % self.servers, 1 / trees, aggregated=True) for tree in range(trees)],
            rate_mbps=self.mbps,
            values_per_packet=self.values,
            slots=slots,
            gathers=self.gathers,
        )
        return (made.beside() if beside else made).in_lanes(self.lanes)


@dataclass(frozen=True)
class Result:
    """The result of a measurement; seconds are medians.

    Fields named *_cpu_us_per_packet are of the cheapest repetition, since other load only adds to it: CPU time by
    packets sent and answered (workers), received (root, the parameter server) and handled (switch).

    Attributes:
        cpu_idle: idle fraction of the machine's CPU time.
        packets_per_message: packets in a super-frame of the workers.
        gave_out: if the bound was not met, what was busy nearly all of the time: "cores" (all of them), or the
            thread of the "switch", the "root" or a "worker"; empty where nothing was.
    """

    workers: int
    mbps: float
    bytes: int
    bound_seconds: float
    network_seconds: float
    gloo_seconds: float | None
    worker_cpu_us_per_packet: float
    root_cpu_us_per_packet: float
    switch_cpu_us_per_packet: float
    values_per_packet: int
    cpu_idle: float
    threads: int
    packets_per_message: float
    resent: int
    kernel_drops: int
    gave_out: str


class Meter:
    """CPU time and packets of all participants since it was made."""

    def __init__(self, engines: list[Engine], server: Server, switch: Switch) -> None:
        self.engines, self.server, self.switch = engines, server, switch
        self.threads = engines[0].stats().io.threads
        self.began = time.monotonic()
        self.started = self._read()

    def _read(self) -> tuple[list[float], ...]:
        workers = [engine.stats() for engine in self.engines]
        root = self.server.stats()
        machine = [float(ticks) for ticks in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return (
            [worker.cpu_seconds for worker in workers],
            [float(worker.packets_sent) for worker in workers],
            [root.cpu_seconds, float(root.packets_received), float(root.packets_sent)],
            [self.switch.cpu_seconds()],
            machine,
        )

    def read(self) -> tuple[float, float, float, float, dict[str, float]]:
        """Return microseconds per packet of worker, root and switch; the idle fraction; and busy fractions by
        participant.
        """
        now, seconds = self._read(), time.monotonic() - self.began
        cpu, sent, root, switch, machine = (
            [after - before for after, before in zip(a, b, strict=True)] for a, b in zip(now, self.started, strict=True)
        )
        return (
            1e6 * sum(cpu) / sum(sent),
            1e6 * root[0] / root[1],
            1e6 * switch[0] / (sum(sent) + root[2]),
            machine[3] / sum(machine),
            {
                "cores": 1 - machine[3] / sum(machine),
                "switch": switch[0] / seconds,
                "root": root[0] / seconds / self.threads,
                "worker": max(cpu) / seconds / self.threads,
            },
        )


@contextmanager
def agents_of(job: Star, network: StarNetwork, io: IoOptions) -> Iterator[tuple[list[Engine], Server]]:
    """Open the engines of all workers and of the first parameter server, each in its own namespace."""
    with ExitStack() as stack:
        engines = []
        for config in job.workers:
            with inside(network.hosts[config.node]):
                engines.append(stack.enter_context(Engine(config, "data0", io=io)))
        with inside(network.hosts[job.servers[0].node]):
            server = stack.enter_context(Server(job.servers[0], "data0", io=io))
        yield engines, server


def measure(setting: Setting) -> Result:
    """Run the measurement in namespaces that are made and removed. Raise AssertionError if workers' results differ."""
    job = setting.job()
    agents = job.workers + job.servers
    names, addresses = [agent.node for agent in agents], [agent.address for agent in agents]
    with StarNetwork("inart-e", names, addresses, setting.mbps) as network:
        with ExitStack() as stack:
            switch = stack.enter_context(Switch(network.middle, network.ports(), setting.values))
            switch.install(job.rules)
            engines, server = stack.enter_context(agents_of(job, network, setting.io))
            seconds, costs = [], []
            for repetition in range(setting.repeat):
                tensors = tensors_of(len(engines), setting.size, repetition)
                meter = Meter(engines, server, switch)
                seconds.append(allreduce(engines, tensors))
                costs.append(meter.read())
                check(tensors)
            stats = [engine.stats() for engine in engines]
        gloo = gloo_seconds(network, job, setting.size, setting.repeat) if setting.gloo else []
    return Result(
        workers=setting.workers,
        mbps=setting.mbps,
        bytes=setting.size,
        bound_seconds=setting.bound_seconds,
        network_seconds=statistics.median(seconds),
        gloo_seconds=statistics.median(gloo) if gloo else None,
        worker_cpu_us_per_packet=min(cost[0] for cost in costs),
        root_cpu_us_per_packet=min(cost[1] for cost in costs),
        switch_cpu_us_per_packet=min(cost[2] for cost in costs),
        values_per_packet=setting.values,
        cpu_idle=statistics.median(cost[3] for cost in costs),
        threads=stats[0].io.threads,
        packets_per_message=sum(s.packets_sent for s in stats) / sum(s.io.messages_sent for s in stats),
        resent=sum(s.resent for s in stats),
        kernel_drops=sum(s.kernel_drops for s in stats),
        gave_out=_gave_out(setting, seconds, [cost[4] for cost in costs]),
    )


def _gave_out(setting: Setting, seconds: list[float], busy: list[dict[str, float]]) -> str:
    if statistics.median(seconds) <= MET * setting.bound_seconds:
        return ""
    return next((who for who in busy[0] if statistics.median(shares[who] for shares in busy) >= BUSY), "")


def tensors_of(workers: int, size: int, repetition: int) -> list[Array]:
    """Return one tensor of `size` bytes per worker."""
    return [
        np.random.default_rng([repetition, worker]).standard_normal(size // 4, dtype=np.float32)
        for worker in range(workers)
    ]


def allreduce(engines: list[Engine], tensors: list[Array]) -> float:
    """Return the seconds from the first submission to the last completion."""
    start = time.monotonic()
    works = [engine.allreduce_async(tensor) for engine, tensor in zip(engines, tensors, strict=True)]
    for work in works:
        work.wait()
    return time.monotonic() - start


def check(tensors: list[Array]) -> None:
    """Compare the workers' results after the measurement.

    Comparing takes one core for as long as the all-reduce does, and would distort the idle time if it came in between.
    """
    if any(tensor.tobytes() != tensors[0].tobytes() for tensor in tensors):
        raise AssertionError("the workers' results differ")


def gloo_seconds(network: StarNetwork, job: Star, size: int, repeat: int) -> list[float]:
    """Return the seconds of the same all-reduces by torch.distributed's gloo backend, through a bridge in the
    kernel.
    """
    case = asdict(Case("allreduce", "float32", FLOAT32_BITS, size, len(job.workers), 0.0))
    with network.bridged(), closing(gloo_ranks(network, job.workers)) as ranks:
        return [ranks.seconds({"cases": [case], "beside": (), "warm": 0}, same=False) for _ in range(repeat)]
