"""The Python interface of the parameter server's C engine (native/), which adds packets and answers with sums.

with Server(config, "h5-eth0") as server:
    ...
    print(server.stats())
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.common.agentconfig import AgentConfig, RepairedTree, RootFlow, interfaces_in, suspect_key
from controlplane.common.native_build import ENGINES, Sources, engine_sources
from p4src.protocol import MAX_WORKERS, frame_bytes
from worker_agent.checkword import KEY_BYTES
from worker_agent.errors import AgentError
from worker_agent.forked import abandon_when_forked, why
from worker_agent.io_options import (
    PACKET_COUNTERS,
    IoConfig,
    IoOptions,
    IoStats,
    NativeIoStats,
    assign,
    link_mbps,
)
from worker_agent.native_engine import NATIVE, load_engine, native_key, native_sources
from worker_agent.tree_lanes import lanes_of

_MESSAGE_BYTES = 512
_SUSPECTS = 32
NO_CHUNK = 2**64 - 1


class _Flow(ctypes.Structure):
    _fields_ = [
        ("label", ctypes.c_uint32),
        ("partial", ctypes.c_int32),
        ("workers", ctypes.c_uint32),
        ("worker", ctypes.POINTER(ctypes.c_uint32)),
        ("part", ctypes.POINTER(ctypes.c_uint32)),
    ]


class _TreeConfig(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_uint32)
            for name in (
                "tree",
                "return_label",
                "slots",
                "flows",
                "port",
                "thread",
                "here",
                "link",
                "directions",
                "lanes",
                "lane",
            )
        ),
        ("rate_mbps", ctypes.c_double),
        ("flow", ctypes.POINTER(_Flow)),
        ("answer_labels", ctypes.POINTER(ctypes.c_uint32)),
        ("others_labels", ctypes.POINTER(ctypes.c_uint32)),
    ]


class _Config(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("job", "epoch", "workers", "values", "trees")),
        ("key", ctypes.c_uint8 * KEY_BYTES),
        ("sources", ctypes.c_uint32),
        ("source", ctypes.POINTER(ctypes.c_uint32)),
        ("tree", ctypes.POINTER(_TreeConfig)),
    ]


_TREE_COUNTERS = (
    "packets",
    "bytes",
    "added",
    "completed",
    "duplicates",
    "refused",
    "results",
    "answers",
    "results_dropped",
    "check_failures",
    "questions",
    "first_packet_ns",
    "last_result_ns",
    "oldest_incomplete",
    "oldest_waiting_ns",
    "newest",
)


class _TreeStats(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in _TREE_COUNTERS),
        ("oldest_workers", ctypes.c_uint64 * -(-MAX_WORKERS // 64)),
        ("suspects", ctypes.c_uint64 * _SUSPECTS),
        ("suspect_workers", ctypes.c_uint32 * _SUSPECTS),
    ]


class _Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in PACKET_COUNTERS]


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
    structures = (_Flow, _TreeConfig, _Config, IoConfig, NativeIoStats, _TreeStats, _Stats)
    lib = load_engine(sources, "inart_root_sizes", structures, options)
    text: list[Any] = [ctypes.c_char_p, ctypes.c_size_t]
    lib.inart_root_create.restype = ctypes.c_void_p
    lib.inart_root_create.argtypes = [ctypes.POINTER(IoConfig), ctypes.POINTER(_Config), *text]
    lib.inart_root_destroy.restype = None
    lib.inart_root_destroy.argtypes = [ctypes.c_void_p]
    lib.inart_root_reconfigure.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Config), *text]
    lib.inart_root_repaired.restype = None
    lib.inart_root_repaired.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_double,
        ctypes.c_int,
        ctypes.c_int,
    ]
    lib.inart_root_open.restype = None
    lib.inart_root_open.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_uint32),
        ctypes.POINTER(ctypes.c_uint64),
        ctypes.c_uint32,
    ]
    lib.inart_root_statistics.restype = None
    lib.inart_root_statistics.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(_Stats),
        ctypes.POINTER(NativeIoStats),
        ctypes.POINTER(ctypes.c_uint32),
        ctypes.POINTER(_TreeStats),
        ctypes.c_uint32,
    ]
    return lib


def _native_flow(flow: RootFlow, keep: list[Any]) -> _Flow:
    """Return a flow in the engine's form, and add the arrays that it points at, which must live as long, to `keep`."""
    pairs = [(worker, part) for part, workers in enumerate(flow.parts) for worker in workers]
    numbers = ctypes.c_uint32 * len(pairs)
    worker, part = numbers(*(pair[0] for pair in pairs)), numbers(*(pair[1] for pair in pairs))
    keep += [worker, part]
    return _Flow(flow.label, flow.partial, len(pairs), worker, part)


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
                tree.tree,
                tree.return_label,
                tree.slots,
                len(flows),
                lane.port,
                thread,
                config.node in config.workers,
                tree.link,
                tree.directions,
                tree.lanes,
                lane.lane,
                tree.rate_mbps / tree.lanes,
                flows,
                answers,
                others,
            )
        )
    array = (_TreeConfig * len(trees))(*trees)
    sources = native_sources(config)
    keep += [array, sources]
    sizes = config.job_id, config.epoch, len(config.workers), config.values_per_packet, len(trees)
    return _Config(*sizes, native_key(config), len(sources), sources, array), keep


class Server:
    """The root of the trees of one configuration on the interfaces of one host; it runs from construction to close().
    It is thread-safe.

    Args:
        config: the configuration.
        interface: the interface of the data network, as of worker_agent/engine.py's Engine.
        io: back end and threads (default: as the environment says; one thread per 10 Gbit/s of the links).
    """

    def __init__(self, config: AgentConfig, interface: str, io: IoOptions | None = None) -> None:
        self.interface = interface
        self._lock = threading.Lock()
        self._library = library()
        self._handle: int | None = None
        self._gone = "the server is closed"  # the reason why there is no handle
        options = (io or IoOptions.from_environment()).of(config)
        ports = [lane.port for lane in lanes_of(config.root_trees)]
        self._io = options.native(config, interface, ports, sum(map(link_mbps, interfaces_in(interface))))
        native, _keep = self._native_config(config)
        error = ctypes.create_string_buffer(_MESSAGE_BYTES)
        self._handle = self._library.inart_root_create(ctypes.byref(self._io), ctypes.byref(native), error, len(error))
        if not self._handle:
            raise AgentError(f"{config.node}: {error.value.decode(errors='replace')}")
        self.config = config
        abandon_when_forked(self)
        flows = [tree.slots // tree.lanes * len(tree.flows) for tree in config.root_trees]
        self.stats().io.warn_if_small(interface, max(flows, default=0) * frame_bytes(config.values_per_packet))

    def _native_config(self, config: AgentConfig) -> tuple[_Config, Any]:
        return native_config(config, self._io.threads)

    def reconfigure(self, config: AgentConfig) -> None:
        """Start all chunks afresh with `config` (a new epoch).

        Raise ValueError or AgentError for a configuration that cannot run; the old one stays then.
        """
        native, _keep = self._native_config(config)
        error = ctypes.create_string_buffer(_MESSAGE_BYTES)
        with self._lock:
            if self._library.inart_root_reconfigure(self._open(), ctypes.byref(native), error, len(error)):
                raise AgentError(f"{config.node}: {error.value.decode(errors='replace')}")
            self.config = config

    def repaired(self, trees: Iterable[RepairedTree]) -> None:
        """Send again the results that workers may lack, because the trees were rerouted. Trees that the server does not
        have are ignored.
        """
        with self._lock:
            for tree in trees:
                if self._handle is not None:
                    self._library.inart_root_repaired(
                        self._handle, tree.label, tree.rate_mbps, tree.results, tree.link - 1
                    )

    def open_chunks(self) -> dict[int, int]:
        """Return, for each tree with a chunk for which a worker is missing, the oldest such chunk.

        It costs far less than `stats`. Raise AgentError when the server is closed.
        """
        with self._lock:
            count = len(self.config.root_trees)
            numbers = (ctypes.c_uint32 * count)(*(tree.tree for tree in self.config.root_trees))
            oldest = (ctypes.c_uint64 * count)()
            self._library.inart_root_open(self._open(), numbers, oldest, count)
        return {tree: chunk for tree, chunk in zip(numbers, oldest, strict=True) if chunk != NO_CHUNK}

    def stats(self) -> ServerStats:
        """Return the counters, and the missing workers. Raise AgentError when the server is closed."""
        native, io = _Stats(), NativeIoStats()
        with self._lock:
            config = self.config
            trees = (_TreeStats * len(config.root_trees))()
            numbers = (ctypes.c_uint32 * len(trees))(*(tree.tree for tree in config.root_trees))
            self._library.inart_root_statistics(
                self._open(), ctypes.byref(native), ctypes.byref(io), numbers, trees, len(trees)
            )
        counters = {name: int(getattr(native, name)) for name in PACKET_COUNTERS}
        cpu_seconds = counters.pop("cpu_ns") / 1e9
        return ServerStats(
            **counters,
            cpu_seconds=cpu_seconds,
            io=IoStats.of(io, self._io),
            trees=tuple(
                RootTreeStats(
                    tree=tree.tree,
                    packets=raw.packets,
                    bytes=raw.bytes,
                    added=raw.added,
                    completed=raw.completed,
                    duplicates=raw.duplicates,
                    refused=raw.refused,
                    results=raw.results,
                    answers=raw.answers,
                    results_dropped=raw.results_dropped,
                    check_failures=raw.check_failures,
                    suspects=tuple(
                        (each >> 32, worker - 1 if worker else None, each & 0xFFFFFFFF)
                        for each, worker in zip(raw.suspects, raw.suspect_workers, strict=True)
                        if each
                    ),
                    questions=raw.questions,
                    oldest_incomplete=raw.oldest_incomplete,
                    waiting_seconds=raw.oldest_waiting_ns / 1e9,
                    missing=tuple(
                        worker
                        for index, worker in enumerate(config.workers)
                        if raw.oldest_waiting_ns and not raw.oldest_workers[index // 64] >> index % 64 & 1
                    ),
                )
                for tree, raw in zip(config.root_trees, trees, strict=True)
            ),
        )

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

    def abandon(self) -> None:
        """Give the server up in a forked process, because it belongs to the parent."""
        self._handle, self._gone = None, why()
        self._lock = threading.Lock()

    def _open(self) -> int:
        if self._handle is None:
            raise AgentError(self._gone)
        return self._handle

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
