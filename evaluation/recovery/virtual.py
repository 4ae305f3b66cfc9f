"""The agents' own engines on a network in virtual time: any number of hosts in one process, and each run the same.

    with VirtualNetwork(topology, plan, values=64) as network:
        network.allreduce(elements=100_000)
        network.run(seconds=2)
        print(network.root_stats().completed)

The code in it is the code that runs in hosts (compiled with native/virtual_calls.h in front); links, switches and time
are native/network.c's. Virtual seconds are those of the network: how quick the machine is makes no difference.
"""

from __future__ import annotations

import ctypes
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy.typing as npt

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.native_build import ENGINES, load
from controlplane.planner.entries import Aggregate, Forward, RuleSet
from controlplane.planner.plan import Plan
from controlplane.planner.plan.limits import Limits
from controlplane.planner.rules import build
from controlplane.planner.topology import Topology
from evaluation.hosts.star import in_ways
from ps_server import server
from worker_agent import native_worker
from worker_agent.collectives import SUM, Collective
from worker_agent.engine import Shape
from worker_agent.io_options import IoConfig, NativeIoStats, PacketStats, Uplink
from worker_agent.operands import NATIVE_DTYPES

HERE = Path(__file__).resolve().parent / "native"
NS = 1_000_000_000
VERDICTS = ("absorbed", "completed", "flushed", "stale", "duplicate", "forwarded", "replicated", "unknown")
NOTHING, FORWARD, REPLICATE, AGGREGATE = range(4)
QUEUE_PACKETS = 512
"""Most packets that wait at a port, as in softswitch."""
TIMEOUT = 60.0
_MESSAGE = 512


@cache
def _network_library() -> ctypes.CDLL:
    lib = load(HERE / "network.c")
    pointer, word, long, real = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_double
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "network_make": (pointer, [long, word]),
        "network_node": (word, [pointer, word, word, word]),
        "network_link": (None, [pointer, word, word, word, word, real, real, word]),
        "network_narrow": (None, [pointer, word, word, real, word]),
        "network_entry": (None, [pointer, word, word, word, ctypes.c_uint8, word, word, word, word, word, long, long]),
        "network_group": (None, [pointer, word, word, word, pointer]),
        "network_beside": (None, [pointer, word, word]),
        "network_enter": (None, [pointer, word]),
        "network_engine": (None, [pointer, word, pointer, pointer]),
        "network_wake": (None, [pointer, word]),
        "network_faults": (None, [pointer, real, long]),
        "network_stop": (None, [pointer, word, long]),
        "network_now": (long, [pointer]),
        "network_run": (long, [pointer, long]),
        "network_verdicts": (None, [pointer, word, pointer]),
        "network_carried": (None, [pointer, word, word, pointer]),
        "network_rounds": (long, [pointer, word]),
        "network_free": (None, [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


OF_THE_KERNEL = {"io_udp.c"}
"""Files of an engine that virtual.c replaces."""
OPTIONS = (*ENGINES, "-include", str(HERE / "virtual_calls.h"))


def _sources(step: str, engine: Sequence[Path]) -> list[Path]:
    """Return the files of an engine in virtual time; `step` is the file that calls its rounds."""
    return [HERE / step, HERE / "virtual.c", *(path for path in engine if path.name not in OF_THE_KERNEL)]


@cache
def _worker_library() -> ctypes.CDLL:
    lib = native_worker.library(_sources("virtual_worker.c", native_worker.SOURCES), OPTIONS)
    lib.virtual_attach.argtypes = [ctypes.c_void_p]
    return lib


@cache
def _root_library() -> ctypes.CDLL:
    lib = server.library(_sources("virtual_root.c", server.SOURCES), (*OPTIONS, f"-I{server.SOURCES[0].parent}"))
    lib.virtual_attach.argtypes = [ctypes.c_void_p]
    return lib


@dataclass(frozen=True)
class RootStats:
    """Statistics of all trees together; see ps_server/native/root.h."""

    packets: int
    completed: int
    added: int
    refused: int
    duplicates: int
    results: int
    answers: int
    questions: int
    results_dropped: int
    check_failures: int


@dataclass(frozen=True)
class WorkerStats:
    """Statistics of all trees of all workers together; see worker_agent/native/worker/state.h.

    Attributes:
        operations_done: the least number of any worker.
    """

    chunks_sent: int
    resent_gap: int
    resent_timeout: int
    resent_recovery: int
    answers: int
    duplicates: int
    refused: int
    check_failures: int
    marked: int
    operations_done: int
    operations_failed: int
    wakeups: int


class VirtualNetwork:
    """The job of `plan` on its network; a context manager.

    Args:
        values: number of values in a packet.
        seed: seed of losses and lateness.
    """

    def __init__(
        self,
        topology: Topology,
        plan: Plan,
        *,
        values: int = 64,
        slots: int = 1 << 14,
        seed: int = 1,
        pace: float = 0.97,
        lanes: int = 1,
    ) -> None:
        """Build the network. Raise PlanError, DoesNotFit.

        Args:
            topology, plan: the network and the job's plan.
            values: values in a packet.
            slots: slots of each switch.
            seed: seed of losses and lateness.
            pace: share of the plan's rate that agents use, as a controller tells them.
            lanes: lanes of each tree.
        """
        limits = Limits(
            values_per_packet=values, slots=slots, label_table_size=1 << 20, route_table_size=1 << 20,
            multicast_groups=1 << 16,
        )  # fmt: skip
        self.plan, self.topology, self.values = plan, topology, values
        deployment = build(replace(plan, rate_mbps=plan.rate_mbps * pace), topology, limits, job_id=1, epoch=7)
        self._lib = _network_library()
        self._handle = self._lib.network_make(seed, values)
        self._keep: list[Any] = []
        self._workers: dict[str, int] = {}
        self._roots: dict[str, int] = {}
        self._uplinks: dict[str, Uplink] = {}
        self.configs = {name: in_ways(config, lanes=lanes) for name, config in deployment.agents.items()}
        self._nodes: dict[str, int] = {}
        self._beside: dict[str, int] = {}  # for each host of both roles, the node of its parameter server
        for name in (*topology.switches, *topology.servers):
            switch = name in topology.switches
            ports = max((topology.port(name, other) for other in topology.graph.successors(name)), default=0) + 1
            address = 0 if switch else int(ipaddress.IPv4Address(topology.address(name)))
            self._nodes[name] = self._lib.network_node(self._handle, ports, slots if switch else 0, address)
        for u, v in topology.links:
            self._link(u, v)
        for name, rules in deployment.rulesets.items():
            self._install(name, rules)
        for lib in (_worker_library(), _root_library()):
            lib.virtual_attach(self._handle)
        for name, config in self.configs.items():
            self._start(name, config)

    def _port(self, node: str, other: str) -> int:
        return self.topology.port(node, other) if node in self.topology.switches else 0

    def _link(self, u: str, v: str) -> None:
        mbps, delay = self.topology.bandwidth_mbps(u, v), self.topology.delay_ms(u, v)
        ends = self._nodes[u], self._port(u, v), self._nodes[v], self._port(v, u)
        self._lib.network_link(self._handle, *ends, mbps, delay, QUEUE_PACKETS)

    def _install(self, name: str, rules: RuleSet) -> None:
        node, lib = self._nodes[name], self._lib
        for group in rules.groups:
            ports = (ctypes.c_uint32 * len(group.ports))(*group.ports)
            lib.network_group(self._handle, node, group.group, len(ports), ports)
        for entry in rules.labels:
            at, action = (self._handle, node, entry.ingress_port, entry.label), entry.action
            if isinstance(action, Aggregate):
                labels = action.slot_base, action.slot_mask, action.next_label, action.partial_label
                lib.network_entry(*at, AGGREGATE, action.port, *labels, action.flow, action.everyone)
            elif isinstance(action, Forward):
                lib.network_entry(*at, FORWARD, action.port, 0, 0, 0, 0, 0, 0)
            else:
                lib.network_entry(*at, REPLICATE, action.group, 0, 0, 0, 0, 0, 0)

    def _start(self, name: str, config: AgentConfig) -> None:
        """Start the engines of one agent: a worker's, a parameter server's, or both on one host."""
        node = self._nodes[name]
        if name in config.workers:
            lib = _worker_library()
            made: tuple[Any, Any] = native_worker.native_config(config, 1, TIMEOUT)
            self._workers[name] = self._engine(node, config, lib, lib.inart_worker_create, made)
        if name in config.parameter_servers:
            if config.both_roles:
                beside = self._lib.network_node(self._handle, 1, 0, int(ipaddress.IPv4Address(config.address)))
                self._lib.network_beside(self._handle, node, beside)
                self._beside[name] = node = beside
            lib = _root_library()
            rooted = server.native_config(config, 1)
            self._roots[name] = self._engine(node, config, lib, lib.inart_root_create, rooted)

    def _engine(self, node: int, config: AgentConfig, lib: ctypes.CDLL, create: Any, made: tuple[Any, Any]) -> int:
        error = ctypes.create_string_buffer(_MESSAGE)
        address = int(ipaddress.IPv4Address(config.address))
        io = IoConfig(interface=b"virtual", address=address, receive_bytes=1 << 25, threads=1)
        if config.both_roles:  # the two engines share a link, as in a host's process
            io.uplink = ctypes.pointer(self._uplinks.setdefault(config.node, Uplink(0, 8e3 / config.link_mbps)))
        self._lib.network_enter(self._handle, node)
        engine = create(ctypes.byref(io), ctypes.byref(made[0]), error, len(error))
        if not engine:
            raise ValueError(f"{config.node}: {error.value.decode(errors='replace')}")
        self._keep += made
        self._lib.network_engine(self._handle, node, engine, ctypes.cast(lib.virtual_step, ctypes.c_void_p))
        self._lib.network_wake(self._handle, node)
        return int(engine)

    # ---- time and faults ----

    @property
    def now(self) -> float:
        return float(self._lib.network_now(self._handle)) / NS

    def run(self, seconds: float) -> int:
        """Let so many seconds go by. Return the number of events in them."""
        until = self._lib.network_now(self._handle) + int(seconds * NS)
        return int(self._lib.network_run(self._handle, until))

    def faults(self, loss: float = 0.0, late_seconds: float = 0.0) -> None:
        """Let all links lose this share of their packets from now on, and hosts be late each time, by up to
        `late_seconds`.
        """
        self._lib.network_faults(self._handle, loss, int(late_seconds * NS))

    def narrow(self, u: str, v: str, mbps: float | None = None, *, mark_packets: int) -> None:
        """Let the link from u to v carry this rate from now on (None for its own), and mark packets that find
        `mark_packets` packets waiting (0 for no marks).
        """
        rate = self.topology.bandwidth_mbps(u, v) if mbps is None else mbps
        self._lib.network_narrow(self._handle, self._nodes[u], self._port(u, v), rate, mark_packets)

    def stop(self, nodes: Iterable[str], seconds: float) -> None:
        """Let the agents of these hosts stand still for so many seconds."""
        until = self._lib.network_now(self._handle) + int(seconds * NS)
        for name in nodes:
            for node in {self._nodes[name], self._beside.get(name, self._nodes[name])}:
                self._lib.network_stop(self._handle, node, until)

    def submit(
        self,
        worker: str,
        values: npt.NDArray[Any],
        sums: npt.NDArray[Any],
        op: Collective = SUM,
        dtype: str = "float32",
    ) -> None:
        """Submit one worker's part of an operation on `values` (bfloat16 as its bits; a gather takes bytes, of the
        dtype "bytes"). The result is written to `sums`. Both stay the caller's, and may be shared by several workers.
        Raise ValueError.
        """
        shape = Shape.of(op, dtype, values.size, self.configs[worker])
        shape.encoding.seed = op.seed
        status, error = ctypes.c_int32(), ctypes.create_string_buffer(_MESSAGE)
        number = _worker_library().inart_worker_submit(
            self._workers[worker], values.ctypes.data, sums.ctypes.data, values.size, NATIVE_DTYPES[dtype],
            ctypes.byref(shape.encoding), int(op.mean), op.kind, op.source, shape.tag, len(shape.parts),
            shape.numbers, shape.parts, ctypes.byref(status), error, len(error),
        )  # fmt: skip
        if number < 0:
            raise ValueError(error.value.decode(errors="replace"))
        self._keep += [values, sums]
        self._lib.network_wake(self._handle, self._nodes[worker])

    # ---- counters ----

    def verdicts(self) -> dict[str, int]:
        """Return the verdicts of all switches."""
        counts = (ctypes.c_uint64 * len(VERDICTS))()
        total = dict.fromkeys(VERDICTS, 0)
        for name in self.topology.switches:
            self._lib.network_verdicts(self._handle, self._nodes[name], counts)
            for verdict, count in zip(VERDICTS, counts, strict=True):
                total[verdict] += count
        return total

    @property
    def packets_of_chunk(self) -> float:
        """Number of packets to a parameter server for each chunk when nothing is lost, which is one for each flow to
        its root.
        """
        return sum(tree.share * tree.ends()[tree.root] for tree in self.plan.trees)

    def _counts(self, u: str, v: str) -> ctypes.Array[ctypes.c_uint64]:
        counts = (ctypes.c_uint64 * 5)()
        self._lib.network_carried(self._handle, self._nodes[u], self._port(u, v), counts)
        return counts

    def carried(self, u: str, v: str) -> int:
        """Return the number of packets on the link from u to v so far."""
        return self._counts(u, v)[0]

    def dropped(self) -> int:
        """Return the number of packets that found a queue full."""
        return sum(self._counts(u, v)[1] for u, v in self.topology.links)

    def marked(self) -> int:
        """Return the number of packets that were marked, because a queue was too long."""
        return sum(self._counts(u, v)[3] for u, v in self.topology.links)

    def longest_wait(self, u: str, v: str) -> float:
        """Return the longest time, in seconds, that a packet has waited for the link from u to v since it was made
        `narrow`.
        """
        return self._counts(u, v)[4] / NS

    def root_stats(self) -> RootStats:
        total = dict.fromkeys(RootStats.__dataclass_fields__, 0)
        for name, engine in self._roots.items():
            config = self.configs[name]
            count = len(config.root_trees)
            numbers = (ctypes.c_uint32 * count)(*(tree.tree for tree in config.root_trees))
            stats, io, trees = PacketStats(), NativeIoStats(), (server._TreeStats * count)()
            _root_library().inart_root_statistics(engine, ctypes.byref(stats), ctypes.byref(io), numbers, trees, count)
            for field in total:
                total[field] += sum(getattr(tree, field) for tree in trees)
        return RootStats(**total)

    def worker_stats(self) -> WorkerStats:
        total = dict.fromkeys(WorkerStats.__dataclass_fields__, 0)
        done = []
        for name, engine in self._workers.items():
            config = self.configs[name]
            count = len(config.worker_trees)
            numbers = (ctypes.c_uint32 * count)(*(tree.tree for tree in config.worker_trees))
            stats, io = native_worker.NativeStats(), NativeIoStats()
            trees = (native_worker.NativeTreeStats * count)()
            _worker_library().inart_worker_statistics(
                engine, ctypes.byref(stats), ctypes.byref(io), numbers, trees, count
            )
            done.append(stats.operations_done)
            total["operations_failed"] += stats.operations_failed
            total["wakeups"] += stats.wakeups
            for field in total.keys() - {"operations_done", "operations_failed", "wakeups"}:
                total[field] += sum(getattr(tree, field) for tree in trees)
        return WorkerStats(**(total | {"operations_done": min(done)}))

    def close(self) -> None:
        for engine in self._workers.values():
            _worker_library().inart_worker_destroy(engine)
        for engine in self._roots.values():
            _root_library().inart_root_destroy(engine)
        self._workers.clear()
        self._roots.clear()
        if self._handle:
            self._lib.network_free(self._handle)
            self._handle = None

    def __enter__(self) -> VirtualNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
