"""The Python interface of the parameter server's C engine (native/), which adds packets and answers with sums.

with Server(config, "h5-eth0") as server:
    ...
    print(server.stats())
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.common.agentconfig import AgentConfig, ReroutedTree, RootFlow, RootTree, interfaces_in, suspect_key
from controlplane.common.native_build import ENGINES, Sources, engine_sources
from p4src.protocol import MAX_WORKERS, frame_bytes
from worker_agent.c_structures import Header
from worker_agent.io_options import (
    IoConfig,
    IoOptions,
    IoStats,
    NativeIoStats,
    PacketStats,
    assign,
    link_mbps,
)
from worker_agent.native_engine import (
    KEY_BYTES,
    NATIVE,
    TEXT,
    Functions,
    NativeEngine,
    counters,
    load_engine,
    native_key,
    native_sources,
)
from worker_agent.tree_lanes import lanes_of

_HEADER = Header(
    Path(__file__).resolve().parent / "native" / "root.h",
    {"CHECK_KEY_BYTES": KEY_BYTES, "MOST_WORDS": -(-MAX_WORKERS // 64), "INART_SUSPECTS": 32},
)


class _Flow(ctypes.Structure):
    _fields_ = _HEADER.fields("inart_root_flow")


class _TreeConfig(ctypes.Structure):
    _fields_ = _HEADER.fields("inart_root_tree_config", inart_root_flow=_Flow)


class _Config(ctypes.Structure):
    _fields_ = _HEADER.fields("inart_root_config", inart_root_tree_config=_TreeConfig)


class _TreeStats(ctypes.Structure):
    _fields_ = _HEADER.fields("inart_root_tree_stats")


@dataclass(frozen=True)
class RootTreeStats:
    """The counters of one tree since the last configuration.

    Attributes:
        bytes: bytes of whole frames received on the tree's flows.
        missing: workers for which the oldest incomplete chunk has been waiting; empty if none waits.
        waiting_seconds: how long it has been waiting.
        check_failures: sums and packets whose check word was wrong; none of them was used.
        suspects: (label, index of the worker or None for a sum of several, number) of such packets.
    """

    tree: int
    packets: int
    bytes: int
    added: int
    completed: int
    duplicates: int
    refused: int
    results: int
    answers: int
    results_dropped: int
    check_failures: int
    suspects: tuple[tuple[int, int | None, int], ...]
    questions: int
    oldest_incomplete: int
    missing: tuple[str, ...]
    waiting_seconds: float

    UNREPORTED = frozenset(
        ("tree", "packets", "bytes", "check_failures", "suspects", "oldest_incomplete", "missing", "waiting_seconds")
    )
    """Fields that are no counters, or that are in the agent's report by another name; reporter.py sums the others."""

    @classmethod
    def of(cls, tree: int, native: _TreeStats, workers: Sequence[str]) -> RootTreeStats:
        """Convert the library's counters."""
        suspects = zip(native.suspects, native.suspect_workers, strict=True)
        named = {
            "suspects": tuple(
                (each >> 32, worker - 1 if worker else None, each & 0xFFFFFFFF) for each, worker in suspects if each
            ),
            "missing": tuple(
                worker
                for index, worker in enumerate(workers)
                if native.oldest_waiting_ns and not native.oldest_workers[index // 64] >> index % 64 & 1
            ),
            "waiting_seconds": native.oldest_waiting_ns / 1e9,
        }
        return cls(tree=tree, **counters(cls, native) | named)


@dataclass(frozen=True)
class ServerStats:
    """The counters of a server since it was made, and of its trees since the last configuration.

    Attributes:
        bytes_sent, bytes_received: bytes of whole frames.
        unknown: packets of an unknown label or job.
        other_source: packets from addresses that are not in the job.
        cpu_seconds: processor time of the I/O threads.
        io: back end, threads, super-frames and problems of input and output.
    """

    packets_received: int
    bytes_received: int
    packets_sent: int
    bytes_sent: int
    malformed: int
    unknown: int
    other_epoch: int
    other_source: int
    send_errors: int
    kernel_drops: int
    wakeups: int
    cpu_seconds: float
    io: IoStats
    trees: tuple[RootTreeStats, ...]

    @property
    def ingress_bytes(self) -> int:
        """Bytes of whole frames that arrived on the trees' flows, duplicates included."""
        return sum(tree.bytes for tree in self.trees)


SOURCES = engine_sources(Path(__file__).resolve().parent / "native" / "root.c", NATIVE)


def library(sources: Sources = SOURCES, options: Sequence[str] = ENGINES) -> ctypes.CDLL:
    """Return the compiled engine. Raise AgentError where it cannot be compiled.

    `sources` and `options` of the compiler can be given, for tests of other builds.
    """
    structures = (_Flow, _TreeConfig, _Config, IoConfig, NativeIoStats, _TreeStats, PacketStats)
    engine, pointer, uint32 = ctypes.c_void_p, ctypes.POINTER, ctypes.c_uint32
    statistics = [pointer(PacketStats), pointer(NativeIoStats), pointer(uint32), pointer(_TreeStats), uint32]
    functions: Functions = {
        "create": (ctypes.c_void_p, [pointer(IoConfig), pointer(_Config), *TEXT]),
        "destroy": (None, [engine]),
        "reconfigure": (ctypes.c_int, [engine, pointer(_Config), *TEXT]),
        "rerouted": (None, [engine, uint32, ctypes.c_double, ctypes.c_int, ctypes.c_int]),
        "open": (None, [engine, pointer(uint32), pointer(ctypes.c_uint64), uint32]),
        "statistics": (None, [engine, *statistics]),
    }
    return load_engine(sources, "inart_root", structures, functions, options)


def _native_flow(flow: RootFlow, keep: list[Any]) -> _Flow:
    """Return a flow in the engine's form, and add the arrays that it points at, which must live as long, to `keep`."""
    pairs = [(worker, part) for part, workers in enumerate(flow.parts) for worker in workers]
    numbers = ctypes.c_uint32 * len(pairs)
    worker, part = numbers(*(pair[0] for pair in pairs)), numbers(*(pair[1] for pair in pairs))
    keep += [worker, part]
    return _Flow(label=flow.label, partial=flow.partial, workers=len(pairs), worker=worker, part=part)


def native_config(config: AgentConfig, threads: int) -> tuple[_Config, Any]:
    """Return a parameter server's configuration in the engine's form, and the objects that must live as long.

    `threads` is the number of I/O threads. Raise ValueError for a configuration that is not a parameter server's, or
    makes no sense.
    """
    if config.node not in config.parameter_servers:
        raise ValueError(f"{config.node} is configured as {config.role}, not as a parameter server")
    keep: list[Any] = []
    trees = []
    lanes = lanes_of(config.root_trees)
    of_lanes = assign([(lane.port, 1 / config.root_trees[lane.place].lanes) for lane in lanes], threads)
    for lane, thread in zip(lanes, of_lanes, strict=True):
        tree = config.root_trees[lane.place]
        workers = len(config.workers)
        for name, labels in (("answer", tree.answer_labels), ("others'", tree.others_labels)):
            if len(labels) != workers and (name == "answer" or labels):
                raise ValueError(f"{config.node}, tree {tree.tree}: {len(labels)} {name} labels for {workers} workers")
        flows = (_Flow * len(tree.flows))(*(_native_flow(flow, keep) for flow in tree.flows))
        answers = (ctypes.c_uint32 * len(tree.answer_labels))(*tree.answer_labels)
        others = (ctypes.c_uint32 * len(tree.others_labels))(*tree.others_labels) if tree.others_labels else None
        keep += [flows, answers, others]
        trees.append(
            _TreeConfig(
                tree=tree.tree,
                return_label=tree.return_label,
                slots=tree.slots,
                flows=len(flows),
                port=lane.port,
                thread=thread,
                here=config.node in config.workers,
                link=tree.link,
                directions=tree.directions,
                lanes=tree.lanes,
                lane=lane.lane,
                rate_mbps=tree.rate_mbps / tree.lanes,
                flow=flows,
                answer_labels=answers,
                others_labels=others,
            )
        )
    array = (_TreeConfig * len(trees))(*trees)
    sources = native_sources(config)
    keep += [array, sources]
    native = _Config(
        job=config.job_id,
        epoch=config.epoch,
        workers=len(config.workers),
        values=config.values_per_packet,
        trees=len(trees),
        key=native_key(config),
        sources=len(sources),
        source=sources,
        tree=array,
    )
    return native, keep


class Server(NativeEngine):
    """The root of the trees of one configuration. It is thread-safe.

    Args:
        config, interface, io: see NativeEngine; by default there is a thread for each 10 Gbit/s of the links.
    """

    _prefix = "inart_root"
    _gone = "the server is closed"

    def __init__(self, config: AgentConfig, interface: str, io: IoOptions | None = None) -> None:
        self._library = library()
        super().__init__(config, interface, sum(map(link_mbps, interfaces_in(interface))), io)
        flows = [tree.slots // tree.lanes * len(tree.flows) for tree in config.root_trees]
        self.stats().io.warn_if_small(interface, max(flows, default=0) * frame_bytes(config.values_per_packet))

    def _trees(self, config: AgentConfig) -> Sequence[RootTree]:
        return config.root_trees

    def _native_config(self, config: AgentConfig) -> tuple[_Config, Any]:
        return native_config(config, self._io.threads)

    def reconfigure(self, config: AgentConfig) -> None:
        """Start all chunks afresh with `config` (a new epoch).

        Raise ValueError or AgentError for a configuration that cannot run; the old one stays then.
        """
        with self._lock:
            self._reconfigure(config)

    def rerouted(self, trees: Iterable[ReroutedTree]) -> None:
        """Send again the results that workers may lack, because the trees were rerouted. Trees that the server does not
        have are ignored.
        """
        with self._lock:
            for tree in trees:
                if self._handle is not None:
                    self._library.inart_root_rerouted(
                        self._handle, tree.label, tree.rate_mbps, tree.results, tree.link - 1
                    )

    def stats(self) -> ServerStats:
        """Return the counters, and the missing workers. Raise AbortedError when the server is closed."""
        native = PacketStats()
        config, io, trees = self._count(native, _TreeStats)
        counted = tuple(
            RootTreeStats.of(tree.tree, raw, config.workers) for tree, raw in zip(config.root_trees, trees, strict=True)
        )
        return ServerStats(**counters(ServerStats, native), cpu_seconds=native.cpu_ns / 1e9, io=io, trees=counted)

    def suspects(self, stats: ServerStats) -> dict[str, int]:
        """Return how many wrong packets each sender had, by the sender's name in words (see RootTreeStats.suspects)."""
        found: dict[str, int] = {}
        for tree, counted in zip(self.config.root_trees, stats.trees, strict=False):
            whose = {flow.label: flow for flow in tree.flows}
            for label, worker, packets in counted.suspects:
                flow = whose.get(label)
                several = sorted(flow.contributors) if flow is not None and worker is None else ()
                workers = [self.config.workers[index] for index in (several if worker is None else (worker,))]
                name = workers[0] if len(workers) == 1 else f"a switch that adds {', '.join(workers)}"
                found[name] = found.get(name, 0) + packets
        return found

    def wrong_packets(self, stats: ServerStats) -> dict[str, float]:
        """Return the numbers of wrong packets for the controller, which knows the routes of labels
        (agentconfig.suspect_key).
        """
        return {
            suspect_key(counted.tree, label, "" if worker is None else self.config.workers[worker]): float(packets)
            for counted in stats.trees
            for label, worker, packets in counted.suspects
        }

    def close(self) -> None:
        """End the server. A second call does nothing."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                self._library.inart_root_destroy(handle)
