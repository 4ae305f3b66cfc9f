"""The worker's engine: all-reduces of host memory over the trees of one configuration (a C thread does the work).

    engine = Engine(config, "h1-eth0")
    work = engine.allreduce_async(tensor, op="mean")     # in place
    work.wait()

All workers of a job must submit the same operations in the same order. Section 3 of docs/architecture.md is the
protocol; worker.c says how loss is handled; fixedpoint.py has the numbers and their error bound.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from controlplane.agentconfig import AgentConfig, RepairedTree
from p4src.protocol import frame_bytes
from worker_agent.collectives import Collective, Operation, parse
from worker_agent.errors import (
    AbortedError,
    AgentError,
    AllReduceError,
    MismatchError,
    ProgressTimeoutError,
)
from worker_agent.io_options import PACKET_COUNTERS, IoConfig, IoOptions, IoStats, NativeIoStats, assign
from worker_agent.native_engine import NATIVE, load_engine
from worker_agent.split import ranges

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
BYTES = "bytes"
"""The dtype of what travels as it is: elements are bytes."""
NUMBERING = 3
"""Of native/numbering.h: workers that number chunks differently must not add them up."""
_NATIVE_BYTES = 3
DEFAULT_TIMEOUT = 60.0
MOST_ELEMENTS = 2**31 - 1
_MESSAGE_BYTES = 512
_NAME_BYTES = 64
_OK = 0
_ERRORS: dict[int, type[AllReduceError]] = {
    1: MismatchError,
    2: ProgressTimeoutError,
    3: AbortedError,
    4: AllReduceError,
}


class _TreeConfig(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_uint32)
            for name in ("tree", "up_label", "return_label", "answer_label", "slots", "port", "thread")
        ),
        ("rate_mbps", ctypes.c_double),
        ("gather_speed", ctypes.c_double),
        ("others", ctypes.c_uint32),
        ("others_labels", ctypes.POINTER(ctypes.c_uint32)),
        ("root", ctypes.c_char * _NAME_BYTES),
    ]


class _Config(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("job", "epoch", "workers", "values", "trees", "index")),
        ("timeout_seconds", ctypes.c_double),
        ("tree", ctypes.POINTER(_TreeConfig)),
    ]


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("count", ctypes.c_uint64)]


class _Completion(ctypes.Structure):
    _fields_ = [
        ("operation", ctypes.c_int64),
        ("status", ctypes.c_int32),
        ("seconds", ctypes.c_double),
        ("first_send", ctypes.c_double),
        ("last_answer", ctypes.c_double),
        ("message", ctypes.c_char * _MESSAGE_BYTES),
    ]


_TREE_COUNTERS = (
    "chunks_sent",
    "resent_gap",
    "resent_timeout",
    "resent_recovery",
    "answers",
    "duplicates",
    "refused",
    "first_send_ns",
    "last_answer_ns",
    "busy_ns",
    "next_sequence",
    "oldest_unanswered",
)
_COUNTERS = (*PACKET_COUNTERS, "operations_done", "operations_failed", "bytes_reduced")


class _TreeStats(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in _TREE_COUNTERS),
        *((name, ctypes.c_double) for name in ("rtt_seconds", "rtt_lowest")),
    ]


class _Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in _COUNTERS]


@dataclass(frozen=True)
class TreeStats:
    """One tree since the last configuration. measured_mbps: wire bits of the chunks (each once) over the time in which
    an operation was under way (first send to last answer). rtt_seconds: lowest of the last second or so."""

    tree: int
    root: str
    chunks_sent: int
    resent_gap: int
    resent_timeout: int
    resent_recovery: int
    answers: int
    duplicates: int
    refused: int
    busy_seconds: float
    measured_mbps: float
    rtt_seconds: float
    rtt_lowest: float
    oldest_unanswered: int
    next_sequence: int

    @property
    def resent(self) -> int:
        """Packets sent again."""
        return self.resent_gap + self.resent_timeout + self.resent_recovery


@dataclass(frozen=True)
class EngineStats:
    """Counters since the engine was made (`trees`: since the last configuration). bytes_*: of whole frames;
    bytes_reduced: of tensors; cpu_seconds: of the I/O threads; io: back end, threads, super-frames, trouble."""

    packets_sent: int
    packets_received: int
    bytes_sent: int
    bytes_received: int
    malformed: int
    unknown: int
    other_epoch: int
    send_errors: int
    kernel_drops: int
    operations_done: int
    operations_failed: int
    bytes_reduced: int
    wakeups: int
    cpu_seconds: float
    io: IoStats
    trees: tuple[TreeStats, ...]

    @property
    def resent(self) -> int:
        """Packets sent again, on all trees."""
        return sum(tree.resent for tree in self.trees)

    @property
    def measured_mbps(self) -> float:
        """The sending rate on all trees together, in wire Mbit/s."""
        return sum(tree.measured_mbps for tree in self.trees)


def library() -> ctypes.CDLL:
    """The compiled worker engine. Raises AgentError."""
    structures = (_TreeConfig, _Config, IoConfig, NativeIoStats, _Range, _Completion, _TreeStats, _Stats)
    lib = load_engine(NATIVE / "worker.c", "inart_worker_sizes", structures)
    text: list[Any] = [ctypes.c_char_p, ctypes.c_size_t]
    lib.inart_worker_create.restype = ctypes.c_void_p
    lib.inart_worker_create.argtypes = [ctypes.POINTER(IoConfig), ctypes.POINTER(_Config), *text]
    lib.inart_worker_destroy.restype = None
    lib.inart_worker_destroy.argtypes = [ctypes.c_void_p]
    lib.inart_worker_stop.restype = None
    lib.inart_worker_stop.argtypes = [ctypes.c_void_p]
    lib.inart_worker_reconfigure.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Config), ctypes.c_char_p, *text]
    lib.inart_worker_repaired.restype = None
    lib.inart_worker_repaired.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_double, ctypes.c_int, ctypes.c_int]
    lib.inart_worker_abort.restype = None
    lib.inart_worker_abort.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    lib.inart_worker_submit.restype = ctypes.c_int64
    lib.inart_worker_submit.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_uint32,
        ctypes.c_uint32,
        ctypes.POINTER(ctypes.c_uint32),
        ctypes.POINTER(_Range),
        ctypes.POINTER(ctypes.c_int32),
        *text,
    ]
    lib.inart_worker_next_completion.argtypes = [ctypes.c_void_p, ctypes.c_double, ctypes.POINTER(_Completion)]
    lib.inart_worker_statistics.restype = None
    lib.inart_worker_statistics.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(_Stats),
        ctypes.POINTER(NativeIoStats),
        ctypes.POINTER(ctypes.c_uint32),
        ctypes.POINTER(_TreeStats),
        ctypes.c_uint32,
    ]
    return lib


class Work:
    """An all-reduce under way. seconds, first_send, last_answer (time.monotonic) are set when it is done. workers: how
    many the sum or mean is of, known then: a job may go on without workers that are lost."""

    def __init__(self, elements: int, nbytes: int, workers: int = 0) -> None:
        self.workers = workers
        self.elements = elements
        self.nbytes = nbytes
        self.seconds = math.nan
        self.first_send = math.nan
        self.last_answer = math.nan
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._error: AllReduceError | None = None
        self._callbacks: list[Callable[[Work], None]] = []

    def done(self) -> bool:
        """Whether it ended, well or not."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Returns when the result is in place. Raises AllReduceError (see errors.py) when the operation failed, and
        TimeoutError when it is not done within `timeout` seconds (it goes on)."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"the all-reduce of {self.elements} elements is not done after {timeout} s")
        if self._error is not None:
            raise self._error

    def exception(self) -> AllReduceError | None:
        """Why it failed; None when it went well or is not done."""
        return self._error

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        """`callback(work)` from the engine's completion thread when it is done; at once when it is done already."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def follow(self, other: Work) -> None:
        """Ends as `other` ends: this one stood for it until it could be started."""

        def ended(work: Work) -> None:
            self.seconds, self.first_send, self.last_answer = work.seconds, work.first_send, work.last_answer
            self.workers = work.workers
            self.finish(work.exception())

        other.add_done_callback(ended)

    def finish(self, error: AllReduceError | None) -> None:
        """Done, well (None) or not. For whoever runs the operation."""
        with self._lock:
            self._error = error
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception as failure:  # a callback's bug must not stop the other operations' completion
                threading.excepthook(
                    threading.ExceptHookArgs(
                        (type(failure), failure, failure.__traceback__, threading.current_thread())
                    )
                )


@dataclass(frozen=True)
class HostArray:
    """Host memory of an array: address, elements, dtype's name, and the object that keeps it alive."""

    address: int
    elements: int
    dtype: str
    owner: Any

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.elements * ITEM_BYTES.get(self.dtype, 1)


def host_array(array: Any, dtype: str | None = None, *, raw: bool = False) -> HostArray:
    """A numpy array or torch CPU tensor as contiguous, writable host memory. `dtype` overrides what the array says
    (numpy has no bfloat16: uint16 with dtype="bfloat16"). raw: as bytes, whatever it says. Raises TypeError, ValueError
    that say what to do."""
    if isinstance(array, np.ndarray):
        if not array.flags.c_contiguous or not array.flags.writeable or not array.flags.aligned:
            raise ValueError("the array must be contiguous, aligned and writable: pass a numpy.ascontiguousarray copy")
        name, address, elements, item = array.dtype.name, array.ctypes.data, array.size, array.itemsize
        if not array.dtype.isnative:
            raise TypeError("the array must have native byte order: pass array.astype(array.dtype.newbyteorder('='))")
    elif type(array).__module__.partition(".")[0] == "torch" or hasattr(array, "data_ptr"):
        if array.device.type != "cpu":
            raise ValueError(f"the tensor is on {array.device}: copy it to (pinned) host memory first")
        if not array.is_contiguous():
            raise ValueError("the tensor must be contiguous: pass tensor.contiguous() and copy back")
        name, address = str(array.dtype).removeprefix("torch."), array.data_ptr()
        elements, item = array.numel(), array.element_size()
    else:
        raise TypeError(f"all-reduce takes a numpy array or a torch CPU tensor, not {type(array).__name__}")
    if raw:
        return HostArray(address, elements * item, BYTES, array)
    name = dtype or name
    if name not in DTYPES:
        raise TypeError(f"cannot all-reduce {name}: float32, float16 and bfloat16 are supported")
    if item != ITEM_BYTES[name]:
        raise TypeError(f"elements of {item} bytes cannot be {name}")
    return HostArray(address, elements, name, array)


def operand(array: Any, op: Operation, dtype: str | None = None) -> HostArray:
    """The memory of an operation's array. Raises TypeError, ValueError for what cannot be, also as host_array does."""
    return host_array(array, dtype, raw=parse(op).raw)


def operation_tag(dtype: str, op: str) -> int:
    """What the workers compare beside the size: 31 bits of dtype, operation and NUMBERING."""
    return zlib.crc32(f"{dtype}:{op}:{NUMBERING}".encode()) & 0x7FFFFFFF


def part_sizes(collective: Collective, config: AgentConfig, elements: int, dtype: str) -> tuple[int, int, int]:
    """What is cut over the trees: elements (of each worker's part), how many a chunk has, and how many chunks go
    together. Raises ValueError."""
    workers, values = len(config.workers), config.values_per_packet
    if collective.source >= workers:
        raise ValueError(f"there is no worker {collective.source}: the job has {workers}")
    parts = workers if collective.in_parts else 1
    if elements % parts:
        raise ValueError(f"the array has {elements} elements, which are not {workers} parts of the same size")
    return elements // parts, values * 4 if dtype == BYTES else values, parts


def _numbers(config: AgentConfig) -> ctypes.Array[ctypes.c_uint32]:
    """The trees' numbers, in their order."""
    return (ctypes.c_uint32 * len(config.worker_trees))(*(tree.tree for tree in config.worker_trees))


class Engine:
    """All-reduce over one interface. Thread-safe; that concurrent submissions have the same order on all workers is the
    caller's task. timeout: seconds without any progress on a tree before its operations fail (0: never). io: back end
    and threads (default: as the environment says)."""

    def __init__(
        self, config: AgentConfig, interface: str, timeout: float = DEFAULT_TIMEOUT, io: IoOptions | None = None
    ) -> None:
        self.interface = interface
        self.timeout = timeout
        self._lock = threading.Lock()  # order of submissions, and the handle's life
        self._registered = threading.Lock()  # an operation is in _works before its completion is delivered
        self._works: dict[int, tuple[Work, Any]] = {}
        self._library = library()
        self._handle: int | None = None
        options = io or IoOptions.from_environment()
        mbps = sum(tree.rate_mbps for tree in config.worker_trees if math.isfinite(tree.rate_mbps))
        self._io = options.native(config, interface, [tree.port for tree in config.worker_trees], mbps)
        native, self._keep = self._native_config(config)
        error = ctypes.create_string_buffer(_MESSAGE_BYTES)
        self._handle = self._library.inart_worker_create(
            ctypes.byref(self._io), ctypes.byref(native), error, len(error)
        )
        if not self._handle:
            raise AgentError(f"{config.node}: {error.value.decode(errors='replace')}")
        self.config = config
        self._thread = threading.Thread(
            target=self._complete, args=(self._handle,), name="inart-completions", daemon=True
        )
        self._thread.start()
        _engines.add(self)
        window = max(tree.slots for tree in config.worker_trees) * frame_bytes(config.values_per_packet)
        self.stats().io.warn_if_small(interface, window)

    def _native_config(self, config: AgentConfig) -> tuple[_Config, Any]:
        if config.role != "worker":
            raise ValueError(f"{config.node} is configured as {config.role}, not as a worker")
        if not config.worker_trees:
            raise ValueError(f"the configuration of worker {config.node} has no trees")
        if any(not tree.share > 0 for tree in config.worker_trees):
            raise ValueError(f"the configuration of worker {config.node} has a tree without a share")
        if any(not tree.gather_speed >= 1 for tree in config.worker_trees):
            raise ValueError(f"the configuration of worker {config.node} has a gather_speed below 1")
        threads = assign([(tree.port, tree.share) for tree in config.worker_trees], self._io.threads)
        labels = [(ctypes.c_uint32 * len(tree.others_labels))(*tree.others_labels) for tree in config.worker_trees]
        trees = (_TreeConfig * len(config.worker_trees))(
            *(
                _TreeConfig(
                    tree.tree,
                    tree.up_label,
                    tree.return_label,
                    tree.answer_label,
                    tree.slots,
                    tree.port,
                    thread,
                    tree.rate_mbps if math.isfinite(tree.rate_mbps) else 0.0,
                    tree.gather_speed,
                    len(tree.others_labels),
                    others,
                    tree.root.encode()[: _NAME_BYTES - 1],
                )
                for tree, thread, others in zip(config.worker_trees, threads, labels, strict=True)
            )
        )
        native = _Config(
            config.job_id,
            config.epoch,
            len(config.workers),
            config.values_per_packet,
            len(trees),
            config.index,
            self.timeout,
            trees,
        )
        return native, (trees, labels)

    def allreduce_async(self, array: Any, op: Operation = "sum", *, dtype: str | None = None) -> Work:
        """Starts the all-reduce of a contiguous numpy array or torch CPU tensor, in place: the same bits everywhere.

        Leave the array alone until the work is done. op: "sum", or "mean" (sum / number of workers), or another
        collective (collectives.py). dtype: see host_array. Raises TypeError, ValueError for what cannot be reduced;
        AllReduceError when the engine has failed or is aborted."""
        memory = operand(array, op, dtype)
        return self.allreduce_pointer(memory.address, memory.elements, memory.dtype, op, keep_alive=array)

    def allreduce_pointer(
        self,
        address: int,
        elements: int,
        dtype: str,
        op: Operation = "sum",
        *,
        output: int | None = None,
        keep_alive: Any = None,
    ) -> Work:
        """The same for raw host memory (pinned staging buffers): `elements` values of `dtype` at `address`; the result
        goes to `output` (default: in place). `keep_alive` is held until the work is done."""
        collective = parse(op)
        if elements > MOST_ELEMENTS:
            raise ValueError(f"an operation has at most {MOST_ELEMENTS} elements, not {elements}: split the tensor")
        work = Work(elements, elements * ITEM_BYTES.get(dtype, 1), len(self.config.workers))
        error = ctypes.create_string_buffer(_MESSAGE_BYTES)
        status = ctypes.c_int32()
        with self._lock:
            if self._handle is None:
                raise AbortedError("the engine is closed")
            shares = [tree.share for tree in self.config.worker_trees]
            part, values, at_once = part_sizes(collective, self.config, elements, dtype)
            cut = ranges(part, values, shares, at_once)
            parts = (_Range * len(shares))(*(_Range(first, count) for first, count in cut))
            numbers = _numbers(self.config)
            with self._registered:
                number = self._library.inart_worker_submit(
                    self._handle,
                    address,
                    address if output is None else output,
                    elements,
                    DTYPES.get(dtype, _NATIVE_BYTES),
                    int(collective.mean),
                    collective.kind,
                    collective.source,
                    operation_tag(dtype, op),
                    len(parts),
                    numbers,
                    parts,
                    ctypes.byref(status),
                    error,
                    len(error),
                )
                if number >= 0:
                    self._works[number] = (work, keep_alive)
        if number < 0:
            raise _ERRORS[status.value](error.value.decode(errors="replace"))
        return work

    def allreduce(
        self, array: Any, op: Operation = "sum", *, dtype: str | None = None, timeout: float | None = None
    ) -> None:
        """allreduce_async and wait."""
        self.allreduce_async(array, op, dtype=dtype).wait(timeout)

    def abort(self, reason: str) -> None:
        """Ends all operations with `reason` (AbortedError); new ones fail with it until reconfigure()."""
        with self._lock:
            if self._handle is not None:
                self._library.inart_worker_abort(self._handle, reason.encode())

    def repaired(self, trees: Iterable[RepairedTree]) -> None:
        """Trees were led another way: their rates from now on, and what is under way on them is sent once more where
        that is said. Of those that are not here nothing happens."""
        with self._lock:
            for tree in trees:
                if self._handle is not None:
                    self._library.inart_worker_repaired(
                        self._handle, tree.label, tree.rate_mbps, tree.contributions, tree.results
                    )

    def reconfigure(self, config: AgentConfig, reason: str = "the job was configured anew") -> None:
        """Pending operations fail with `reason` (or with the reason of an earlier abort); then `config` (a new epoch)
        holds and sequence numbers start at 0. Raises ValueError, AgentError for a bad configuration."""
        native, keep = self._native_config(config)
        error = ctypes.create_string_buffer(_MESSAGE_BYTES)
        with self._lock:
            if self._handle is None:
                raise AbortedError("the engine is closed")
            if self._library.inart_worker_reconfigure(
                self._handle, ctypes.byref(native), reason.encode(), error, len(error)
            ):
                raise AgentError(f"{config.node}: {error.value.decode(errors='replace')}")
            self.config, self._keep = config, keep

    def stats(self) -> EngineStats:
        """Counters. Raises AbortedError when closed."""
        native, io = _Stats(), NativeIoStats()
        with self._lock:
            if self._handle is None:
                raise AbortedError("the engine is closed")
            config = self.config
            trees = (_TreeStats * len(config.worker_trees))()
            self._library.inart_worker_statistics(
                self._handle, ctypes.byref(native), ctypes.byref(io), _numbers(config), trees, len(trees)
            )
        frame_bits = 8 * frame_bytes(config.values_per_packet)
        counters = {name: int(getattr(native, name)) for name in _COUNTERS}
        cpu_seconds = counters.pop("cpu_ns") / 1e9
        return EngineStats(
            **counters,
            cpu_seconds=cpu_seconds,
            io=IoStats.of(io, self._io),
            trees=tuple(
                TreeStats(
                    tree=tree.tree,
                    root=tree.root,
                    chunks_sent=raw.chunks_sent,
                    resent_gap=raw.resent_gap,
                    resent_timeout=raw.resent_timeout,
                    resent_recovery=raw.resent_recovery,
                    answers=raw.answers,
                    duplicates=raw.duplicates,
                    refused=raw.refused,
                    busy_seconds=raw.busy_ns / 1e9,
                    measured_mbps=raw.answers * frame_bits / (raw.busy_ns / 1e3) if raw.busy_ns else 0.0,
                    rtt_seconds=raw.rtt_seconds,
                    rtt_lowest=raw.rtt_lowest,
                    oldest_unanswered=raw.oldest_unanswered,
                    next_sequence=raw.next_sequence,
                )
                for tree, raw in zip(config.worker_trees, trees, strict=True)
            ),
        )

    def close(self) -> None:
        """Ends pending operations (AbortedError) and the threads. Again: nothing happens."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is None:
            return
        _engines.discard(self)
        self._library.inart_worker_stop(handle)
        if threading.current_thread() is self._thread:  # closed by a callback
            threading.Thread(target=self._destroy, args=(handle,), name="inart-close").start()
        else:
            self._destroy(handle)

    def _destroy(self, handle: int) -> None:
        self._thread.join()
        self._library.inart_worker_destroy(handle)

    def _complete(self, handle: int) -> None:
        """Delivers completions until the engine is stopped and all are delivered."""
        completion = _Completion()
        while self._library.inart_worker_next_completion(handle, -1.0, ctypes.byref(completion)) > 0:
            with self._registered:
                work, _ = self._works.pop(completion.operation)
            work.seconds, work.first_send, work.last_answer = (
                completion.seconds,
                completion.first_send,
                completion.last_answer,
            )
            error = None
            if completion.status != _OK:
                error = _ERRORS[completion.status](cast(bytes, completion.message).decode(errors="replace"))
            work.finish(error)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_engines: set[Engine] = set()


@atexit.register
def _close_all() -> None:
    """Memory of tensors goes away at exit: no thread may still write to it."""
    for engine in list(_engines):
        engine.close()
