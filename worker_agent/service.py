"""The agent as a process of its own: trainers on the same machine hand it tensors over a Unix socket.

The trainers need only access to the socket. A trainer that goes away without a word is a lost worker: the agent joins
the job anew, which stops the operations of the others with a message that names this node.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import shutil
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.rpc.tls import Tls
from worker_agent.agent import Agent
from worker_agent.engine import DEFAULT_TIMEOUT, DTYPES, ITEM_BYTES, Work
from worker_agent.errors import AgentError
from worker_agent.socket_protocol import VERSION, Connection, ConnectionLost, ProtocolViolation

MOST_REGIONS = 1024
TURN_SECONDS = 3.0
"""How long a trainer waits for the one before it, which may be on its way out, before it is told that the agent is
busy."""
_NUMPY_TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
_OPERATIONS = ("sum", "mean")


class Service:
    """Serves one trainer at a time on a Unix socket.

    Args:
        controller, node, interface, tls, operation_timeout, log: see Agent.
        path: of the socket; a socket that nobody listens on is replaced.
        mode, group: permissions of the socket.
    """

    def __init__(
        self,
        controller: str,
        path: str,
        *,
        node: str | None = None,
        interface: str | None = None,
        tls: Tls | None = None,
        operation_timeout: float = DEFAULT_TIMEOUT,
        mode: int = 0o660,
        group: str | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._path = Path(path)
        self._log = log
        self._new_agent = lambda: Agent(
            controller, node, interface=interface, tls=tls, operation_timeout=operation_timeout, log=log
        )
        self._listener = _listen(self._path, mode, group)
        self._turn = threading.Condition()
        self._trainer: _Trainer | None = None
        self._agent = self._new_agent()

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop`. Raises AgentError when the agent cannot go on (the controller refused)."""
        while not stop.is_set():
            readable, _, _ = select.select([self._listener], [], [], 0.2)
            if readable:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), name="trainer", daemon=True).start()
            self._agent.wait_change(0)

    def close(self) -> None:
        """End the trainer's connection and leave the job."""
        with self._turn:
            trainer = self._trainer
        if trainer is not None:
            trainer.connection.close()
        self._listener.close()
        self._path.unlink(missing_ok=True)
        self._agent.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, accepted: socket.socket) -> None:
        pid, uid, _ = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        connection = Connection(accepted)
        trainer = _Trainer(connection, f"process {pid} of user {uid}")
        with self._turn:
            self._turn.wait_for(lambda: self._trainer is None, TURN_SECONDS)
            busy = self._trainer
            if busy is None:
                self._trainer = trainer
        if busy is not None:
            connection.refuse("AgentError", f"this node's agent is in use by {busy.who}")
            return
        clean = False
        try:
            clean = trainer.serve(self._agent)
        except ConnectionLost:
            pass
        except (ProtocolViolation, AgentError) as error:
            connection.refuse(type(error).__name__, str(error))
            self._log(f"{trainer.who}: {error}")
        finally:
            if not clean and trainer.used:
                self._log(f"{trainer.who} is gone without a word: joining anew")
                self._agent.close(announce=False)
                self._agent = self._new_agent()
            connection.close()
            with self._turn:
                self._trainer = None
                self._turn.notify()


class _Trainer:
    """One trainer's session. used: it has started an operation, so others may wait for its next one."""

    def __init__(self, connection: Connection, who: str) -> None:
        self.connection = connection
        self.who = who
        self.used = False
        self._regions: dict[int, mmap.mmap] = {}

    def serve(self, agent: Agent) -> bool:
        """Until the connection ends; True when the trainer said good-bye."""
        hello, descriptors = self.connection.receive()
        _close(descriptors)
        if hello["type"] != "hello" or hello.get("version") != VERSION:
            raise ProtocolViolation(f"this agent speaks version {VERSION} of the socket protocol: install the same one")
        config = agent.wait_ready(min(max(float(hello.get("timeout", 0)), 0), 3600))
        self.connection.send(
            {"type": "welcome", "workers": len(config.workers), "node": config.node, "index": config.index}
        )
        while True:
            message, descriptors = self.connection.receive()
            if message["type"] == "bye":
                _close(descriptors)
                return True
            if message["type"] == "region":
                self._map(message, descriptors)
                continue
            _close(descriptors)
            if message["type"] != "allreduce":
                raise ProtocolViolation(f"unknown message {message['type']!r}")
            self._start(agent, message)

    def _map(self, message: dict[str, Any], descriptors: list[int]) -> None:
        try:
            number, size = message.get("region"), message.get("bytes")
            if len(descriptors) != 1 or not isinstance(number, int) or not isinstance(size, int) or size <= 0:
                raise ProtocolViolation("a region needs a number, its bytes and a descriptor")
            if number in self._regions or len(self._regions) >= MOST_REGIONS:
                raise ProtocolViolation(f"region {number} exists already, or there are {MOST_REGIONS}")
            # Without the seal a trainer could shrink the file under our mapping, and kill us with SIGBUS.
            if not fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise ProtocolViolation("a region must be sealed against shrinking")
            if os.fstat(descriptors[0]).st_size < size:
                raise ProtocolViolation(f"region {number} is smaller than its {size} bytes")
            self._regions[number] = mmap.mmap(descriptors[0], size)
        except OSError as error:
            raise ProtocolViolation(f"a region cannot be mapped: {error}") from None
        finally:
            _close(descriptors)

    def _start(self, agent: Agent, message: dict[str, Any]) -> None:
        number, region, elements = (message.get(key) for key in ("id", "region", "elements"))
        dtype, op = message.get("dtype"), message.get("op")
        if dtype not in DTYPES or op not in _OPERATIONS or not isinstance(number, int):
            raise ProtocolViolation(f"an operation needs an id, a dtype and an op, got {message}")
        if not isinstance(elements, int) or elements < 0 or region not in self._regions:
            raise ProtocolViolation(f"an operation needs a region and a number of elements, got {message}")
        memory = self._regions[region]
        if elements * ITEM_BYTES[dtype] > len(memory):
            raise ProtocolViolation(f"{elements} elements of {dtype} are more than region {region} holds")
        self.used = True
        array = np.frombuffer(memory, _NUMPY_TYPES[dtype], elements)
        try:
            work = agent.allreduce_async(array, op, dtype=dtype)
        except (AgentError, ValueError) as error:
            self._answer({"type": "failed", "id": number, "error": type(error).__name__, "message": str(error)})
            return

        def finish(done: Work) -> None:
            error = done.exception()
            if error is None:
                self._answer({"type": "done", "id": number, "seconds": done.seconds})
            else:
                self._answer({"type": "failed", "id": number, "error": type(error).__name__, "message": str(error)})

        work.add_done_callback(finish)

    def _answer(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(ConnectionLost):
            self.connection.send(message)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _listen(path: Path, mode: int, group: str | None) -> socket.socket:
    """A listening socket with these permissions. Raises AgentError when another agent listens there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(str(path))
                raise AgentError(f"another agent listens on {path}")
            except OSError:
                path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        before = os.umask(0o777)  # nobody gets in before the permissions are right
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        if group is not None:
            shutil.chown(path, group=group)
        os.chmod(path, mode)
        listener.listen()
    except (OSError, LookupError) as error:
        listener.close()
        raise AgentError(f"cannot listen on {path}: {error}") from None
    return listener
