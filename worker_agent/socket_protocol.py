"""Messages of a trainer and the agent process on its machine over a Unix socket.

JSON messages over SOCK_SEQPACKET, one a packet; tensors are in shared memory (memfd) whose descriptor goes along.

    trainer                                          agent
    {"type": "hello", "version": 2, "timeout": s, "job": j, "rank": r, "ranks": n,
     "bound": b, "take_over": b} ->
                                                  <- {"type": "welcome", "workers": W, "node": name, "index": i,
                                                      "epoch": e, "values": of a packet}
                                                  <- {"type": "refused", "message": ...}      and the connection ends
    {"type": "region", "region": r, "bytes": n} + descriptor ->
    {"type": "allreduce", "id": i, "region": r, "elements": n, "dtype": d, "op": o} ->
                                                  <- {"type": "done", "id": i, "seconds": s}
                                                  <- {"type": "failed", "id": i, "error": class, "message": ...}
                                                  <- {"type": "ended", "message": ...}       of a bound trainer's epoch
    {"type": "late"} ->                           <- {"type": "late", "names": [...]}         who is waited for
    {"type": "bye"} ->                                                                         a trainer that is done
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.common.native_build import BuildError, cache_directory
from worker_agent.errors import AgentError, ClaimedError
from worker_agent.forked import abandon_when_forked

VERSION = 2
MESSAGE_BYTES = 1 << 16
HANG_UP_SECONDS = 1.0
MOST_UNREAD = 1000
SECRET_BYTES = 32

MOST_TRAINERS = 1024


class ConnectionLost(Exception):
    """The other side closed the connection."""


class Silence(ConnectionLost):
    """The other side has sent nothing for as long as this side waits."""


class ProtocolViolation(Exception):
    """The other side sent what no correct program sends."""


@dataclass(frozen=True)
class Seat:
    """The place of a trainer among those of one job on this node.

    Attributes:
        job: a key that all trainers of the job have.
        rank: the trainer's rank on this node.
        size: the number of the job's ranks on this node.
        bound: whether the connection ends with the epoch, so that an operation that was meant for one never meets those
            of the next; several ranks are always bound.
        take_over: whether another job's trainers are put out.
    """

    job: str
    rank: int = 0
    size: int = 1
    bound: bool = False
    take_over: bool = False

    def to_json(self) -> dict[str, Any]:
        flags = {"bound": self.bound, "take_over": self.take_over}
        return {"job": self.job, "rank": self.rank, "ranks": self.size, **flags}

    @classmethod
    def from_json(cls, message: dict[str, Any]) -> Seat:
        """Read the seat of a hello message. Raise ProtocolViolation where it has none."""
        job = message.get("job", secrets.token_hex(8))  # a trainer that names no job has a job of its own
        rank, size = message.get("rank", 0), message.get("ranks", 1)
        numbers = isinstance(rank, int) and isinstance(size, int) and 0 <= rank < size <= MOST_TRAINERS
        if not isinstance(job, str) or not numbers:
            raise ProtocolViolation(f"a trainer needs a job and a rank below its ranks, got {message}")
        bound = message.get("bound") is True or size > 1
        return cls(job, rank, size, bound, message.get("take_over") is True)


def claim_name(controller: str, node: str | None, job: str | None = None, *, private: bool = False) -> bytes:
    """Return the name of the abstract socket of a node's agent.

    There is one for each controller, job (None: $INART_JOB) and node in a network namespace. With `private` it is one
    that no other user can compute, for use if another user's process listens on the usual one. Raise AgentError if the
    user's secret for that cannot be stored.
    """
    name = os.environ.get("INART_JOB", "") if job is None else job
    identity = f"{controller}\0{node or ''}\0{name}".encode()
    key = _user_secret() if private else b""
    return b"\0inart/" + hashlib.blake2b(identity, key=key, digest_size=16).hexdigest().encode()


def is_own(user: int) -> bool:
    """Return whether an agent of this user id may be this process's: that of the same user, or of root."""
    return user in (0, os.getuid())


def claim(controller: str, node: str | None, job: str | None = None) -> socket.socket:
    """Listen as a node's agent. Raise ClaimedError if another agent of this user or of root does."""
    usual = claim_name(controller, node, job)
    try:
        return bind_claim(usual)
    except ClaimedError:
        there = _listener(usual)
        if there is None or is_own(there[1]):
            raise
        return bind_claim(claim_name(controller, node, job, private=True))


def _user_secret() -> bytes:
    """Return random bytes that only this user can read, the same in all of the user's processes."""
    try:
        path = cache_directory() / "agent-name-secret"
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # several ranks start at the same time
            secret = file.read(SECRET_BYTES)
            if len(secret) < SECRET_BYTES:
                secret = secrets.token_bytes(SECRET_BYTES)
                file.seek(0)
                file.write(secret)
        return secret
    except (BuildError, OSError) as error:
        raise AgentError(f"another user's process has the name of this node's agent, and {error}") from None


def bind_claim(name: bytes) -> socket.socket:
    """Listen on `name`; nobody else can until the socket is closed. Raise ClaimedError where another process does."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(name)
    except OSError:
        listener.close()
        raise ClaimedError(f"this node's agent for this controller runs already, in {holder(name)}") from None
    listener.listen(64)
    return listener


def holder(name: bytes) -> str:
    """Return in words which process listens on an abstract socket."""
    there = _listener(name)
    return "a process that has just ended" if there is None else f"process {there[0]} of user {there[1]}"


def _listener(name: bytes) -> tuple[int, int] | None:
    """Return process and user of the listener on an abstract socket; None if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.settimeout(HANG_UP_SECONDS)
            probe.connect(name)
            return peer_of(probe)
        except OSError:
            return None


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return process and user of the other end of a Unix socket, as the kernel has noted them."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


class Connection:
    """Sends and receives messages over a socket; `send` may be called from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()
        abandon_when_forked(self)

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message and descriptors. Raise ConnectionLost where the other side is gone."""
        data = json.dumps(message).encode()
        try:
            with self._lock:
                socket.send_fds(self._socket, [data], list(descriptors))
        except OSError as error:
            raise ConnectionLost(str(error)) from None

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """Return the next message and its descriptors, which the caller closes.

        Raise ConnectionLost where the other side is gone, ProtocolViolation for a message that makes no sense, and
        Silence where the socket has a timeout and it passes.
        """
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 1)
        except TimeoutError as error:
            raise Silence(str(error)) from None
        except OSError as error:
            raise ConnectionLost(str(error)) from None
        try:
            if not data:
                raise ConnectionLost("the other side closed the connection")
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ProtocolViolation("a message is too long")
            message = json.loads(data)
            if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                raise ProtocolViolation("a message is not an object with a type")
        except (ValueError, RecursionError):
            close_all(descriptors)
            raise ProtocolViolation("a message is not JSON, or nested too deeply") from None
        except BaseException:
            close_all(descriptors)
            raise
        return message, list(descriptors)

    def refuse(self, error: str, message: str) -> None:
        """Tell the other side why it is refused, and hang up."""
        try:
            self.send({"type": "refused", "error": error, "message": message})
            # With unread messages, close would reset the connection and take the reason away from the other side.
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(HANG_UP_SECONDS)
            for _ in range(MOST_UNREAD):
                _, descriptors = self.receive()
                close_all(descriptors)
        except (ConnectionLost, ProtocolViolation, OSError):
            pass
        self.close()

    def abandon(self) -> None:
        """Abandon the connection in a forked process: only this copy of the socket is closed."""
        self._lock = threading.Lock()
        self._socket.close()

    def close(self) -> None:
        """Close the connection; that also ends a `receive` of another thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()


def close_all(descriptors: Sequence[int]) -> None:
    """Close the descriptors that came with a message."""
    for descriptor in descriptors:
        os.close(descriptor)
