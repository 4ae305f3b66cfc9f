"""The worker's engine: all-reduces of host memory over the trees of one configuration, done by C threads.

    engine = Engine(config, "h1-eth0")
    work = engine.allreduce_async(tensor, op="mean")     # in place
    work.wait()

All workers of a job must submit the same operations in the same order. The protocol is in
docs/protocol.md, the handling of loss in native/worker/worker.c, the numbers and their error bound in
fixedpoint.py.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import threading
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from controlplane.common.agentconfig import AgentConfig, ReroutedTree, WorkerTree
from p4src.protocol import data_values, frame_bytes
from worker_agent.collectives import Collective, Operation, collective
from worker_agent.engine_stats import EngineStats
from worker_agent.errors import (
    AbortedError,
    AllReduceError,
    ExhaustedError,
    MismatchError,
    ProgressTimeoutError,
)
from worker_agent.fields import is_stochastic
from worker_agent.gathered import columns, gathered_words
from worker_agent.io_options import IoOptions
from worker_agent.native_engine import MESSAGE_BYTES, NativeEngine
from worker_agent.native_worker import (
    NativeCompletion,
    NativeConfig,
    NativeEncoding,
    NativeGathered,
    NativeRange,
    NativeStats,
    NativeTreeStats,
    library,
    native_config,
)
from worker_agent.operands import DTYPES, ITEM_BYTES, NATIVE_DTYPES, HostArray, item_bytes, operand
from worker_agent.split import fields_of, lane_shares, part_sizes, ranges
from worker_agent.tree_lanes import lanes_of
from worker_agent.work import Work

NUMBERING = 8
"""The version of native/numbering.h and of the division of chunks over trees (controlplane/common/dealing.py): workers
that number chunks differently must not be in one sum.
"""
DEFAULT_TIMEOUT = 60.0
MOST_ELEMENTS = 2**31 - 1
UNINTERRUPTED_SECONDS = 0.5
MOST_SHAPES = 256
_OK = 0
_FETCHED, _NOT_ENDED = 1, -1
_ERRORS: dict[int, type[AllReduceError]] = {
    1: MismatchError,
    2: ProgressTimeoutError,
    3: AbortedError,
    4: AllReduceError,
    5: ExhaustedError,
}


def operation_tag(dtype: str, op: Collective, fields: int = 1) -> int:
    """Return 31 bits of dtype, operation, values per word and NUMBERING, which the workers compare beside the size."""
    return zlib.crc32(f"{dtype}:{op.plain}:{fields}:{NUMBERING}".encode()) & 0x7FFFFFFF


def encoding_of(how: Collective, dtype: str, elements: int, config: AgentConfig) -> NativeEncoding:
    """Return the encoding of the values of an operation whose size and type part_sizes has accepted."""
    workers = len(config.workers)
    if words := gathered_words(how, dtype, elements, workers, data_values(config.values_per_packet)):
        return NativeEncoding(
            fields=1,
            gathered=NativeGathered(columns=columns(how, workers), words=words, reduction=how.reduction),
        )
    fields = fields_of(how, dtype, workers) if dtype in DTYPES else 1
    stochastic = fields > 1 and is_stochastic(dtype, 32 // fields, feedback=how.feedback)
    return NativeEncoding(fields=fields, stochastic=stochastic, seed=how.seed)


@dataclass(frozen=True)
class Shape:
    """The division of operations of one kind, dtype and size in one configuration: the elements of each lane of each
    tree, the lanes' numbers, and the encoding.
    """

    parts: ctypes.Array[NativeRange]
    numbers: ctypes.Array[ctypes.c_uint32]
    encoding: NativeEncoding
    tag: int

    @classmethod
    def of(cls, how: Collective, dtype: str, elements: int, config: AgentConfig) -> Shape:
        """Compute the shape of an operation. Raise ValueError for an operation that cannot be."""
        lanes = lanes_of(config.worker_trees)
        shares = lane_shares(config)
        part, values, at_once = part_sizes(how, config, elements, dtype)
        cut = ranges(part, values, shares, at_once)
        parts = (NativeRange * len(shares))(*(NativeRange(offset=first, count=count) for first, count in cut))
        encoding = encoding_of(how, dtype, elements, config)
        numbers = (ctypes.c_uint32 * len(lanes))(*(lane.number for lane in lanes))
        return cls(parts, numbers, encoding, operation_tag(dtype, how, encoding.fields))


class Engine(NativeEngine):
    """An engine that all-reduces over the interfaces of one host.

    It is thread-safe, but all workers must submit the same operations in the same order.

    Args:
        config, interface, io: see NativeEngine.
        timeout: seconds without any progress on a tree before its operations fail (0: never).
    """

    _prefix = "inart_worker"
    _gone = "the engine is closed"

    def __init__(
        self, config: AgentConfig, interface: str, timeout: float = DEFAULT_TIMEOUT, io: IoOptions | None = None
    ) -> None:
        self.timeout = timeout
        self._registered = threading.Lock()  # ensures that an operation is in _works before its completion is delivered
        self._works: dict[int, tuple[Work, HostArray]] = {}
        self._shapes: dict[tuple[Any, ...], Shape] = {}
        self._fetching = threading.Condition()
        self._fetchers = 0  # threads that wait in the library
        self._library = library()
        mbps = sum(tree.rate_mbps for tree in config.worker_trees if math.isfinite(tree.rate_mbps))
        super().__init__(config, interface, mbps, io)
        self._thread = threading.Thread(
            target=self._complete, args=(self._handle,), name="inart-completions", daemon=True
        )
        self._thread.start()
        _engines.add(self)
        window = max(tree.slots // tree.lanes for tree in config.worker_trees) * frame_bytes(config.values_per_packet)
        self.stats().io.warn_if_small(interface, window)

    def _trees(self, config: AgentConfig) -> Sequence[WorkerTree]:
        return config.worker_trees

    def _native_config(self, config: AgentConfig) -> tuple[NativeConfig, Any]:
        return native_config(config, self._io.threads, self.timeout)

    def allreduce_async(
        self, array: Any, op: Operation = "sum", *, dtype: str | None = None, bits: int | None = None, seed: int = 0
    ) -> Work:
        """Start the all-reduce of a contiguous numpy array or torch CPU tensor in place; all workers get the same bits.

        Do not touch the array until the work is done.

        Args:
            array: the input, and later the result.
            op: "sum", or "mean" (sum / number of workers), or another collective (collectives.py).
            dtype: the elements' type where the array does not say it; see host_array.
            bits: bits per value, 32, 16, 10 or 8, the same on all workers; None: 32 for float32, 16 for float16 and
                bfloat16 (fields.py).
            seed: seed of the random numbers by which values that lose bits are rounded; use another one for each step.

        Raises:
            TypeError, ValueError: the array cannot be reduced.
            AllReduceError: the engine has failed or is aborted.
        """
        how = collective(op).encoded(bits, seed)
        return self.submit(operand(array, how, dtype), how)

    def submit(self, memory: HostArray, how: Collective) -> Work:
        """Start an operation on host memory, in place; its owner is held until the work is done. Raise ValueError for
        an operation that cannot be, AllReduceError when the engine has failed or is aborted.
        """
        address, elements, dtype, _ = memory
        if elements > MOST_ELEMENTS:
            raise ValueError(f"an operation has at most {MOST_ELEMENTS} elements, not {elements}: split the tensor")
        work = Work(elements, elements * item_bytes(dtype), len(self.config.workers))
        error = ctypes.create_string_buffer(MESSAGE_BYTES)
        status = ctypes.c_int32()
        with self._lock:
            handle = self._open()
            shape = self._shape(how, dtype, elements)
            encoding = shape.encoding
            encoding.residual, encoding.seed = None, how.seed
            if how.feedback:
                elements //= 2
                encoding.residual = address + elements * ITEM_BYTES[dtype]
            with self._registered:
                number = self._library.inart_worker_submit(
                    handle,
                    address,
                    address,
                    elements,
                    NATIVE_DTYPES[dtype],
                    ctypes.byref(encoding),
                    int(how.mean),
                    how.kind,
                    how.source,
                    shape.tag,
                    len(shape.parts),
                    shape.numbers,
                    shape.parts,
                    ctypes.byref(status),
                    error,
                    len(error),
                )
                if number >= 0:
                    self._works[number] = (work, memory)
                    work.fetched_by(lambda timeout: self._fetch(number, timeout))
        if number < 0:
            raise _ERRORS[status.value](error.value.decode(errors="replace"))
        return work

    def _shape(self, how: Collective, dtype: str, elements: int) -> Shape:
        """Return how an operation is divided and encoded; the caller holds the lock.

        Shapes are cached, because scripts use the same few sizes again and again. Raise ValueError for an operation
        that cannot be.
        """
        key = (how.kind, how.mean, how.source, how.bits, how.feedback, how.merge, dtype, elements)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= MOST_SHAPES:
                self._shapes.clear()
            shape = self._shapes[key] = Shape.of(how, dtype, elements, self.config)
        return shape

    def allreduce(self, array: Any, op: Operation = "sum", *, timeout: float | None = None) -> None:
        """Run allreduce_async and wait at most `timeout` seconds (None: without a limit of its own)."""
        self.allreduce_async(array, op).wait(timeout)

    def abort(self, reason: str) -> None:
        """End all operations with `reason` (AbortedError); new ones fail with it until reconfigure()."""
        with self._lock:
            if self._handle is not None:
                self._library.inart_worker_abort(self._handle, reason.encode())

    def rerouted(self, trees: Iterable[ReroutedTree]) -> None:
        """Take note that trees were rerouted: their rates change, and where requested, chunks in progress on them are
        sent once more. Trees that the engine does not have are ignored.
        """
        with self._lock:
            for tree in trees:
                if self._handle is not None:
                    self._library.inart_worker_rerouted(
                        self._handle, tree.label, tree.rate_mbps, tree.contributions, tree.results, tree.link - 1
                    )

    def reconfigure(self, config: AgentConfig, reason: str = "the job was configured anew") -> None:
        """Use `config`, a new epoch, in which sequence numbers start at 0.

        Pending operations fail with `reason` (or with the reason of an earlier abort). Raise ValueError or AgentError
        for a configuration that cannot run.
        """
        with self._lock:
            self._reconfigure(config, reason.encode())
            self._shapes.clear()

    def stats(self) -> EngineStats:
        """Return the counters. Raise AbortedError when the engine is closed."""
        native = NativeStats()
        config, io, trees = self._count(native, NativeTreeStats)
        return EngineStats.of(config, native, io, trees)

    def close(self) -> None:
        """End pending operations (AbortedError) and the threads. A second call does nothing."""
        with self._lock, self._fetching:
            handle, self._handle = self._handle, None
        if handle is None:
            return
        _engines.discard(self)
        self._library.inart_worker_stop(handle)
        if threading.current_thread() is self._thread:  # A callback has called this.
            threading.Thread(target=self._destroy, args=(handle,), name="inart-close").start()
        else:
            self._destroy(handle)

    def _destroy(self, handle: int) -> None:
        self._thread.join()
        with self._fetching:
            self._fetching.wait_for(lambda: not self._fetchers)
        self._library.inart_worker_destroy(handle)

    def _complete(self, handle: int) -> None:
        """Deliver completions until the engine is stopped and all are delivered."""
        completion = NativeCompletion()
        while self._library.inart_worker_next_completion(handle, -1.0, ctypes.byref(completion)) > 0:
            self._deliver(completion)

    def _fetch(self, operation: int, timeout: float | None) -> None:
        """Wait for an operation's end in the caller's thread, and deliver it unless the completion thread has done
        that.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        completion = NativeCompletion()
        found = _NOT_ENDED
        while found == _NOT_ENDED and (left := end - time.monotonic()) > 0:
            with self._fetching:
                if self._handle is None:
                    return
                handle = self._handle
                self._fetchers += 1
            try:
                # Ctrl-C cannot interrupt a wait in the library, which therefore lasts at most this long.
                seconds = min(left, UNINTERRUPTED_SECONDS)
                found = self._library.inart_worker_wait(handle, operation, seconds, ctypes.byref(completion))
            finally:
                with self._fetching:
                    self._fetchers -= 1
                    self._fetching.notify_all()
        if found == _FETCHED:
            self._deliver(completion)

    def _deliver(self, completion: NativeCompletion) -> None:
        with self._registered:
            work, _ = self._works.pop(completion.operation)
        work.seconds = completion.seconds
        work.first_send, work.last_answer = completion.first_send, completion.last_answer
        error = None
        if completion.status != _OK:
            error = _ERRORS[completion.status](cast(bytes, completion.message).decode(errors="replace"))
        work.finish(error)

    def abandon(self) -> None:
        super().abandon()
        self._registered, self._fetching = threading.Lock(), threading.Condition()
        _engines.discard(self)


_engines: set[Engine] = set()


@atexit.register
def _close_all() -> None:
    """Close all engines at exit: memory of tensors is freed then, and no thread may still write to it."""
    for engine in list(_engines):
        engine.close()
