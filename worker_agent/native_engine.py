"""The C engines of agents (native/ has their common part) as Python runs them: a worker's and a parameter server's."""

from __future__ import annotations

import ctypes
import ipaddress
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from controlplane.common.agentconfig import AgentConfig, RootTree, WorkerTree
from controlplane.common.native_build import ENGINES, BuildError, Sources, check_sizes, load
from worker_agent.errors import AbortedError, AgentError
from worker_agent.forked import abandon_when_forked, why
from worker_agent.io_options import IoOptions, IoStats, NativeIoStats
from worker_agent.tree_lanes import lanes_of

NATIVE = Path(__file__).resolve().parent / "native"
KEY_BYTES = 16
MESSAGE_BYTES = 512
NO_CHUNK = 2**64 - 1
TEXT: list[Any] = [ctypes.c_char_p, ctypes.c_size_t]
"""The last arguments of functions that say in words what is wrong."""

Functions = Mapping[str, tuple[Any, Sequence[Any]]]
"""The result type and the argument types of an engine's functions, by name."""


def load_engine(
    sources: Sources,
    prefix: str,
    structures: Sequence[type[ctypes.Structure]],
    functions: Functions,
    options: Sequence[str] = ENGINES,
) -> ctypes.CDLL:
    """Compile and load the engine of these C files. Raise AgentError where it cannot be compiled, or a structure
    differs.

    Args:
        sources: the C files.
        prefix: what the names of the engine's functions begin with.
        structures: the structures that it shares with Python, in the order of its table of their sizes.
        functions: the functions that Python calls.
        options: options of the compiler.
    """
    try:
        library = load(sources, include=[NATIVE], options=options)
        check_sizes(library, f"{prefix}_sizes", structures)
    except BuildError as error:
        raise AgentError(str(error)) from error
    for name, (result, arguments) in functions.items():
        function = getattr(library, f"{prefix}_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def counters(kind: type, native: ctypes.Structure) -> dict[str, Any]:
    """Return the fields of the dataclass `kind` that the engine's structure has, too, by name."""
    return {field.name: getattr(native, field.name) for field in fields(kind) if hasattr(native, field.name)}


class NativeEngine(ABC):
    """An engine with the trees of one configuration, on the interfaces of one host; it runs from construction to
    close(). It is thread-safe.

    Args:
        config: the trees and what else the controller said.
        interface: the interface of the data network; where the node has several links, their interfaces separated by
            commas, in the order of `AgentConfig.links`.
        mbps: the rate of the trees together; 0: not known.
        io: threads (default: those of the environment).
    """

    _library: ctypes.CDLL
    _prefix: str
    _gone: str  # the reason when there is no handle

    def __init__(self, config: AgentConfig, interface: str, mbps: float, io: IoOptions | None) -> None:
        self.interface = interface
        self._lock = threading.Lock()  # protects the handle, the configuration, and the order of calls
        self._handle: int | None = None
        options = io or IoOptions.from_environment()
        self._io = options.native(config, interface, [lane.port for lane in lanes_of(self._trees(config))], mbps)
        native, self._keep = self._native_config(config)
        error = ctypes.create_string_buffer(MESSAGE_BYTES)
        self._handle = self._function("create")(ctypes.byref(self._io), ctypes.byref(native), error, len(error))
        if not self._handle:
            raise AgentError(f"{config.node}: {error.value.decode(errors='replace')}")
        self.config = config
        abandon_when_forked(self)

    @abstractmethod
    def _trees(self, config: AgentConfig) -> Sequence[WorkerTree] | Sequence[RootTree]:
        """Return the trees of a configuration that the engine has a part in."""

    @abstractmethod
    def _native_config(self, config: AgentConfig) -> tuple[ctypes.Structure, Any]:
        """Return a configuration in the engine's form, and the objects that must live as long. Raise ValueError for one
        that makes no sense.
        """

    @abstractmethod
    def close(self) -> None:
        """End the engine. A second call does nothing."""

    def open_chunks(self) -> dict[int, int]:
        """Return, for each tree with chunks in progress, the oldest of them.

        It costs far less than the counters. Raise AbortedError when the engine is closed.
        """
        with self._lock:
            numbers = self._numbers()
            oldest = (ctypes.c_uint64 * len(numbers))()
            self._function("open")(self._open(), numbers, oldest, len(numbers))
        return {tree: chunk for tree, chunk in zip(numbers, oldest, strict=True) if chunk != NO_CHUNK}

    def abandon(self) -> None:
        """Give up the engine in a forked process, because it belongs to the parent."""
        self._handle, self._gone = None, why()
        self._lock = threading.Lock()

    def _count(self, stats: ctypes.Structure, tree_stats: type[ctypes.Structure]) -> tuple[AgentConfig, IoStats, Any]:
        """Have the engine fill in `stats`, and return the configuration, the counters of input and output, and an array
        with a `tree_stats` for each tree. Raise AbortedError when the engine is closed.
        """
        io = NativeIoStats()
        with self._lock:
            numbers = self._numbers()
            trees = (tree_stats * len(numbers))()
            self._function("statistics")(
                self._open(), ctypes.byref(stats), ctypes.byref(io), numbers, trees, len(trees)
            )
            return self.config, IoStats.of(io, self._io), trees

    def _function(self, name: str) -> Any:
        return getattr(self._library, f"{self._prefix}_{name}")

    # -- with the lock held -------------------------------------------------------------------------------------------

    def _open(self) -> int:
        """Return the handle. Raise AbortedError when there is none."""
        if self._handle is None:
            raise AbortedError(self._gone)
        return self._handle

    def _numbers(self) -> ctypes.Array[ctypes.c_uint32]:
        """Return the trees' numbers, in their order."""
        trees = self._trees(self.config)
        return (ctypes.c_uint32 * len(trees))(*(tree.tree for tree in trees))

    def _reconfigure(self, config: AgentConfig, *reason: bytes) -> None:
        """Use `config`; `reason` is for engines that have operations to end. Raise ValueError or AgentError for a
        configuration that cannot run; the old one stays then.
        """
        native, keep = self._native_config(config)
        error = ctypes.create_string_buffer(MESSAGE_BYTES)
        if self._function("reconfigure")(self._open(), ctypes.byref(native), *reason, error, len(error)):
            raise AgentError(f"{config.node}: {error.value.decode(errors='replace')}")
        self.config, self._keep = config, keep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def native_key(config: AgentConfig) -> ctypes.Array[ctypes.c_uint8]:
    """Return the key of the configuration's epoch as the C engines take it. Raise ValueError where it is no key."""
    try:
        key = bytes.fromhex(config.key) if config.key else bytes(KEY_BYTES)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"the configuration of {config.node} has a key that is not {2 * KEY_BYTES} hexadecimal digits")
    return (ctypes.c_uint8 * KEY_BYTES).from_buffer_copy(key)


def native_sources(config: AgentConfig) -> ctypes.Array[ctypes.c_uint32]:
    """Return the addresses that packets may come from, as the C engines take them. Raise ValueError for others than
    IPv4.
    """
    addresses = [int(ipaddress.IPv4Address(address)) for address in config.sources]
    return (ctypes.c_uint32 * len(addresses))(*addresses)
