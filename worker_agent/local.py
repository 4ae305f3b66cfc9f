"""A trainer's side of an agent that runs as its own process on the same machine (`python -m worker_agent serve`).

The trainer needs no privilege: the agent process has the raw socket. Tensors are copied to shared memory and back.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from worker_agent import errors
from worker_agent.engine import Operation, Work, host_array
from worker_agent.errors import AbortedError, AgentError, AllReduceError, NotReadyError
from worker_agent.socket_protocol import VERSION, Connection, ConnectionLost, ProtocolViolation

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
SMALLEST_REGION = 1 << 16


@dataclass
class _Region:
    number: int
    memory: mmap.mmap

    @property
    def bytes(self) -> int:
        return len(self.memory)


class LocalAgent:
    """A connection to the agent of this machine. Thread-safe; one trainer at a time.

    Args:
        address: "unix:/path" of the agent's socket.
        timeout: seconds to wait for the agent, and for the other agents of the job.

    Raises:
        NotReadyError: the job is not complete; says what is missing.
        AgentError: there is no agent, or it is busy with another trainer.
    """

    def __init__(self, address: str, timeout: float = 60.0) -> None:
        if not address.startswith("unix:"):
            raise AgentError(f'an agent\'s address is "unix:/path", got {address!r}')
        path = address.removeprefix("unix:")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise AgentError(
                f"no agent at {path}: {error.strerror}; start `python -m worker_agent serve --socket {path}`"
            ) from None
        self._connection = Connection(connection)
        self._lock = threading.Lock()
        self._free: list[_Region] = []
        self._regions = 0
        self._pending: dict[int, tuple[Work, _Region, Any, memoryview]] = {}
        self._operations = 0
        self._lost = ""
        connection.settimeout(timeout + 5)
        try:
            # An agent that is in use may have said so and hung up already.
            with contextlib.suppress(ConnectionLost):
                self._connection.send({"type": "hello", "version": VERSION, "timeout": timeout})
            answer, _ = self._connection.receive()
        except (ConnectionLost, ProtocolViolation) as error:
            self._connection.close()
            raise NotReadyError(f"the agent at {path} does not answer: {error}") from None
        if answer["type"] != "welcome":
            self._connection.close()
            kind = NotReadyError if answer.get("error") == "NotReadyError" else AgentError
            raise kind(f"the agent at {path} refused: {answer.get('message')}")
        connection.settimeout(None)
        self._world_size = int(answer["workers"])
        self.node = str(answer["node"])
        self._thread = threading.Thread(target=self._receive, name="inart-local", daemon=True)
        self._thread.start()

    @property
    def world_size(self) -> int:
        """Number of workers of the job."""
        return self._world_size

    def allreduce_async(self, array: Any, op: Operation = "sum", *, dtype: str | None = None) -> Work:
        """As Engine.allreduce_async."""
        host = host_array(array, dtype)
        view = _bytes_of(array)
        work = Work(host.elements, len(view))
        with self._lock:
            if self._lost:
                raise AbortedError(self._lost)
            region = self._take(len(view))
            region.memory[: len(view)] = view
            self._operations += 1
            number = self._operations
            self._pending[number] = (work, region, array, view)
            message = {"type": "allreduce", "id": number, "region": region.number, "elements": host.elements}
            try:
                self._connection.send({**message, "dtype": host.dtype, "op": op})
            except ConnectionLost as error:
                del self._pending[number]
                raise AbortedError(f"the agent process is gone: {error}") from None
        return work

    def allreduce(self, array: Any, op: Operation = "sum", *, timeout: float | None = None) -> None:
        """`allreduce_async` and wait."""
        self.allreduce_async(array, op).wait(timeout)

    def close(self) -> None:
        """Tell the agent that this trainer is done. Again: nothing happens."""
        with self._lock:
            if not self._lost:
                self._lost = "the connection to the agent is closed"
                try:
                    self._connection.send({"type": "bye"})
                except ConnectionLost:
                    pass
        self._connection.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def _take(self, size: int) -> _Region:
        for position, region in enumerate(self._free):
            if region.bytes >= size and region.bytes <= max(4 * size, SMALLEST_REGION):
                return self._free.pop(position)
        self._regions += 1
        length = max(SMALLEST_REGION, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        descriptor = os.memfd_create("inart", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, length)
            # Sealed, so that the agent can trust that its mapping stays backed by memory.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            memory = mmap.mmap(descriptor, length)
            self._connection.send({"type": "region", "region": self._regions, "bytes": length}, [descriptor])
        except ConnectionLost as error:
            raise AbortedError(f"the agent process is gone: {error}") from None
        finally:
            os.close(descriptor)
        return _Region(self._regions, memory)

    def _receive(self) -> None:
        try:
            while True:
                message, _ = self._connection.receive()
                self._complete(message)
        except (ConnectionLost, ProtocolViolation, KeyError) as error:
            with self._lock:
                self._lost = self._lost or f"the agent process is gone: {error}"
                pending, self._pending = self._pending, {}
            for work, *_ in pending.values():
                work.finish(AbortedError(self._lost))

    def _complete(self, message: dict[str, Any]) -> None:
        with self._lock:
            work, region, _, view = self._pending.pop(int(message["id"]))
        error: AllReduceError | None = None
        if message["type"] == "done":
            view[:] = memoryview(region.memory)[: len(view)]
            work.seconds = float(message["seconds"])
        else:
            kind = getattr(errors, str(message.get("error")), AllReduceError)
            error = kind(str(message.get("message")))
        with self._lock:
            self._free.append(region)
        work.finish(error)


def _bytes_of(array: Any) -> memoryview:
    """The memory of a contiguous numpy array or torch CPU tensor, writable."""
    if not isinstance(array, np.ndarray):
        import torch

        array = array.detach().view(-1).view(torch.uint8).numpy()
    return memoryview(array.reshape(-1).view(np.uint8))
