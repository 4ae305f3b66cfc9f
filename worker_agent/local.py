"""A trainer's side of an agent in another process of the same machine: `inart agent`, or another rank of the node.

The trainer needs no privilege: the agent process has the raw socket. Tensors are copied to shared memory and back.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import queue
import secrets
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from worker_agent import errors
from worker_agent.collectives import Operation, collective
from worker_agent.errors import AbortedError, AgentError, AllReduceError, NotReadyError
from worker_agent.forked import abandon_when_forked, why
from worker_agent.operands import operand
from worker_agent.socket_protocol import (
    VERSION,
    Connection,
    ConnectionLost,
    ProtocolViolation,
    Seat,
    Silence,
    is_own,
    peer_of,
)
from worker_agent.ways import Ways
from worker_agent.work import Work

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
SMALLEST_REGION = 1 << 16
LATE_SECONDS = 5.0


class NoAgentError(AgentError):
    """This node has no agent that listens."""


class ForeignAgentError(AgentError):
    """A process of another user listens on the usual name of this node's agent."""


@dataclass
class _Region:
    number: int
    memory: mmap.mmap

    @property
    def bytes(self) -> int:
        return len(self.memory)


class LocalAgent:
    """A connection to the agent of this machine. It is thread-safe.

    Args:
        address: "unix:/path" of the agent's socket, or the name of an abstract one.
        timeout: seconds to wait for the agent, and for the other agents of the job.
        seat: which trainer of which job this is; None: the only one of a job of its own.

    Raises:
        NotReadyError: the job is not complete; the message says what is missing.
        NoAgentError: nobody listens on the abstract socket, or the listener has gone while this process connected.
        ForeignAgentError: a process of another user listens on the abstract socket.
        AgentError: there is no agent, or it is busy with another trainer.
    """

    def __init__(self, address: str | bytes, timeout: float = 60.0, seat: Seat | None = None) -> None:
        if isinstance(address, str) and not address.startswith("unix:"):
            raise AgentError(f'an agent\'s address is "unix:/path", got {address!r}')
        path = address if isinstance(address, bytes) else address.removeprefix("unix:")
        seat = seat or Seat(secrets.token_hex(8))
        self._bound = seat.bound
        connection, who = _connect(path)
        self._connection = Connection(connection)
        self._lock = threading.Lock()
        self._free: list[_Region] = []
        self._regions = 0
        self._pending: dict[int, tuple[Work, _Region, Any, memoryview]] = {}
        self._operations = 0
        self._lost = ""
        # An agent sends its welcome when the job is complete, and a refusal where it is not after `timeout`.
        connection.settimeout(timeout + 5)
        answer = self._welcome(path, who, {"timeout": timeout, **seat.to_json()})
        connection.settimeout(None)
        self._world_size = int(answer["workers"])
        self.node = str(answer["node"])
        self.index = int(answer["index"])
        self.epoch = int(answer["epoch"])
        self.values_per_packet = int(answer.get("values", 0))
        self.ways = Ways(**answer["ways"]) if "ways" in answer else None
        self._late: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._receive, name="inart-local", daemon=True)
        self._thread.start()
        abandon_when_forked(self)

    def _welcome(self, path: str | bytes, who: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send the request for a seat, and return the welcome; close the connection and raise if there is none."""
        named = f"the agent at {path}" if isinstance(path, str) else "this node's agent"
        try:
            # An agent that is in use may have said so and hung up already.
            with contextlib.suppress(ConnectionLost):
                self._connection.send({"type": "hello", "version": VERSION, **request})
            answer, _ = self._connection.receive()
        except (ConnectionLost, ProtocolViolation) as error:
            self._connection.close()
            if isinstance(path, bytes) and isinstance(error, ConnectionLost) and not isinstance(error, Silence):
                raise NoAgentError(f"this node's agent ({who}) has just ended") from None
            raise NotReadyError(f"{named} ({who}) does not answer: {error}") from None
        if answer["type"] != "welcome":
            self._connection.close()
            kind = NotReadyError if answer.get("error") == "NotReadyError" else AgentError
            if kind is NotReadyError and isinstance(path, bytes):
                raise NotReadyError(str(answer.get("message")))  # as this process's own agent would say it
            raise kind(f"{named} refused: {answer.get('message')}")
        return answer

    @property
    def world_size(self) -> int:
        """Number of workers of the job."""
        return self._world_size

    @property
    def ready(self) -> bool:
        """Whether the agent takes operations. Once this is false it stays so: connect anew."""
        return not self._lost

    def late(self) -> list[str]:
        """Return the workers for whom the others wait."""
        try:
            self._connection.send({"type": "late"})
            return self._late.get(timeout=LATE_SECONDS)
        except (ConnectionLost, queue.Empty):
            return []

    def allreduce_async(
        self, array: Any, op: Operation = "sum", *, dtype: str | None = None, bits: int | None = None, seed: int = 0
    ) -> Work:
        """Submit an operation, as Engine.allreduce_async does."""
        how = collective(op).encoded(bits, seed)
        host = operand(array, how, dtype)
        view = bytes_of(array)
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
                self._connection.send({**message, "dtype": host.dtype, "op": str(how)})
            except ConnectionLost as error:
                del self._pending[number]
                raise AbortedError(f"the agent process is gone: {error}") from None
        return work

    def allreduce(self, array: Any, op: Operation = "sum", *, timeout: float | None = None) -> None:
        """Run `allreduce_async` and wait at most `timeout` seconds (None: for as long as it takes)."""
        self.allreduce_async(array, op).wait(timeout)

    def close(self) -> None:
        """Tell the agent that this trainer is done. A second call does nothing."""
        with self._lock:
            self._lost = self._lost or "the connection to the agent is closed"
            # This is sent also after the epoch: a trainer that goes without a word counts as lost.
            with contextlib.suppress(ConnectionLost):
                self._connection.send({"type": "bye"})
        self._connection.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def abort(self, reason: str) -> None:
        """End all operations with AbortedError(reason), and leave without a good-bye: the agent joins its job anew,
        which ends these operations for the other workers, too.
        """
        with self._lock:
            self._lost = self._lost or reason
        self._connection.close()

    def abandon(self) -> None:
        """Abandon the connection in a forked process: the parent is the trainer. The `Connection` object abandons
        itself.
        """
        self._lock, self._lost = threading.Lock(), why()

    def _take(self, size: int) -> _Region:
        for position, region in enumerate(self._free):
            if region.bytes >= size and region.bytes <= max(4 * size, SMALLEST_REGION):
                return self._free.pop(position)
        self._regions += 1
        length = max(SMALLEST_REGION, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        descriptor = os.memfd_create("inart", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, length)
            # The region is sealed, so that the agent can trust that its mapping stays backed by memory.
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
                if message["type"] == "late":
                    self._late.put([str(name) for name in message.get("names", ())])
                elif message["type"] == "ended":
                    with self._lock:
                        self._lost = self._lost or str(message.get("message"))
                elif message["type"] == "refused":
                    raise ConnectionLost(str(message.get("message")))
                else:
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
            if error is not None and self._bound:
                # The epoch has ended at the agent, and with it this trainer's place in the order of operations.
                self._lost = self._lost or str(error)
        work.finish(error)


def _connect(path: str | bytes) -> tuple[socket.socket, str]:
    """Connect to the socket of an agent, and return the connection and the agent's process in words."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        if isinstance(path, bytes):
            raise NoAgentError("this node has no agent yet") from None
        raise AgentError(f"no agent at {path}: {error.strerror}; start `inart agent --socket {path}`") from None
    pid, uid = peer_of(connection)
    who = f"process {pid} of user {uid}"
    if isinstance(path, bytes) and not is_own(uid):
        connection.close()
        raise ForeignAgentError(f'this node\'s agent is {who}: name its socket with agent="unix:/path"')
    return connection, who


def bytes_of(array: Any) -> memoryview:
    """Return the memory of a contiguous numpy array or torch CPU tensor, writable."""
    if not isinstance(array, np.ndarray):
        import torch

        array = array.detach().view(-1).view(torch.uint8).numpy()
    return memoryview(array.reshape(-1).view(np.uint8))
