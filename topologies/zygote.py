"""Runs Python functions as processes in hosts, forked from one process that has already imported heavy modules.

Importing torch costs some seconds of CPU: eight workers that each import it keep two cores busy for half a minute.
The zygote imports once and forks for each call; the child enters the host's network namespace before it has threads.

    with Zygote(emulation, preload=["torch"]) as zygote:
        worker = zygote.spawn("h1", "topologies.hosts:allreduce", {"controller": "172.31.0.1:9600"})
        worker.send("go")
        print(worker.receive(timeout=60))

The function is called as f(channel, **arguments); its return value (JSON) is the last message.
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from topologies.emulation import Emulation
from topologies.network import EmulationError

START_SECONDS = 180.0
NAMESPACES = ("mnt", "net")  # The mount namespace has the host's own /sys, /etc/hosts and /etc/resolv.conf.
_LENGTH_BYTES = 4
_REQUEST_BYTES = 1 << 16


class Channel:
    """JSON messages over a stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        self._connection.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    def receive(self, timeout: float | None = None) -> Any:
        """Return the next message. Raise TimeoutError, or EOFError if the other side has closed the channel."""
        self._connection.settimeout(timeout)
        length = int.from_bytes(self._exactly(_LENGTH_BYTES), "big")
        return json.loads(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._connection.recv(count - len(data))
            if not part:
                raise EOFError("the other side of the channel is gone")
            data += part
        return data

    def send_self(self) -> None:
        """Send a descriptor of this process, and its id, before any message."""
        socket.send_fds(self._connection, [b"p"], [os.pidfd_open(os.getpid())])
        self.send({"pid": os.getpid()})

    def receive_process(self, timeout: float | None = None) -> tuple[int, int]:
        """Return the (descriptor, id) that the other side sent by `send_self`. Raise the errors of `receive`."""
        self._connection.settimeout(timeout)
        _, descriptors, _, _ = socket.recv_fds(self._connection, 1, 1)
        if not descriptors:
            raise EOFError("the other side of the channel is gone")
        return descriptors[0], self.receive(timeout)["pid"]

    def close(self) -> None:
        self._connection.close()


class HostFailure(EmulationError):
    """A process in a host failed; the message has the end of its log."""


class HostProcess:
    """A function that runs in a host. Messages go both ways; the function's return value is the last one."""

    def __init__(self, host: str, channel: Channel, log: Path) -> None:
        self.host = host
        self.log = log
        self._channel = channel
        self._pid: int | None = None
        # Process ids are used again, within seconds on a busy machine; a descriptor always means the same process.
        self._descriptor: int | None = None
        self._learning = threading.Lock()  # one thread may wait for messages while another one sends a signal
        self._ended = False

    @property
    def pid(self) -> int | None:
        """The process id, or None as long as it is not known."""
        return self._pid

    def send(self, message: Any) -> None:
        try:
            self._channel.send({"message": message})
        except OSError as error:
            raise self._failure("is gone") from error

    def receive(self, timeout: float) -> Any:
        """Return the next message (which may be the function's return value). Raise HostFailure where the process
        failed.
        """
        self._learn_pid(timeout)
        reply = self._next(timeout)
        if "error" in reply:
            raise HostFailure(f"{self.host}: {reply['error']}")
        return reply["message"]

    def _send(self, number: signal.Signals) -> None:
        self._learn_pid(START_SECONDS)
        assert self._descriptor is not None
        signal.pidfd_send_signal(self._descriptor, number)

    def end(self, timeout: float = 5.0) -> None:
        """Send SIGTERM, and SIGKILL after `timeout` seconds; do nothing if the process has ended."""
        if self._ended:
            return
        self._ended = True
        try:
            self._send(signal.SIGTERM)
            self._drain(timeout)
        except TimeoutError:
            self.kill()
        except (HostFailure, ProcessLookupError):
            pass
        finally:
            self._channel.close()

    def kill(self) -> None:
        """Send SIGKILL; do nothing if the process has ended."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; do nothing if the process has ended."""
        with contextlib.suppress(HostFailure, ProcessLookupError):
            self._send(number)

    def _drain(self, timeout: float) -> None:
        """Read until the process has closed its end of the channel, which means that it has ended."""
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                self._channel.receive(timeout)

    def _learn_pid(self, timeout: float) -> None:
        with self._learning:
            if self._descriptor is None:
                self._descriptor, self._pid = self._answer(timeout, self._channel.receive_process)
                weakref.finalize(self, os.close, self._descriptor)

    def _next(self, timeout: float) -> Any:
        return self._answer(timeout, self._channel.receive)

    def _answer(self, timeout: float, receive: Callable[[float], Any]) -> Any:
        try:
            return receive(timeout)
        except TimeoutError:
            raise self._failure(f"has not answered for {timeout:.0f} s") from None
        except (EOFError, OSError):
            raise self._failure("has ended") from None

    def _failure(self, what: str) -> HostFailure:
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").strip().splitlines()[-12:]
            if lines:
                what += "; its last lines:\n  " + "\n  ".join(lines)
        return HostFailure(f"the process in {self.host} {what}")


class Zygote:
    """The preloaded process, as a context manager; it ends with the emulation at the latest."""

    def __init__(self, emulation: Emulation, preload: Sequence[str] = ()) -> None:
        self.emulation = emulation
        self._logs = emulation.directory
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests = ours
        self._count = 0
        log = self._logs / "zygote.log"
        root = Path(__file__).resolve().parent.parent
        with theirs, log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "topologies.zygote", str(theirs.fileno()), *preload],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=emulation.environment | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,
                cwd=root,
            )

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until the imports are done (`spawn` may be called before, and then waits). Raise EmulationError where
        they fail.
        """
        self._requests.settimeout(timeout)
        try:
            alive = self._requests.recv(1)
        except TimeoutError:
            alive = b""
        if not alive:
            words = (self._logs / "zygote.log").read_text(errors="replace").strip()
            raise EmulationError(f"the process that starts the workers failed: {words[-2000:]}")

    def spawn(self, host: str, target: str, arguments: Mapping[str, Any]) -> HostProcess:
        """Start module:function in the host's network namespace."""
        ours, theirs = socket.socketpair()
        self._count += 1
        log = self._logs / f"{self._count}-{host}.log"
        request = {
            "host": host,
            "namespaces": [self.emulation.namespace(host, kind) for kind in NAMESPACES],
            "target": target,
            "log": str(log),
        }
        data = json.dumps(request | {"arguments": dict(arguments)}).encode()
        if len(data) > _REQUEST_BYTES:
            raise ValueError(f"the arguments for {host} are {len(data)} bytes long, at most {_REQUEST_BYTES} fit")
        with theirs:
            socket.send_fds(self._requests, [data], [theirs.fileno()])
        return HostProcess(host, Channel(ours), log)

    def __enter__(self) -> "Zygote":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the zygote. Its children go on until they return or the emulation ends."""
        self._requests.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _serve(requests: socket.socket) -> None:
    """Fork for each request until the other side closes."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 1)
        _reap()
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            requests.close()
            _child(json.loads(data), Channel(socket.socket(fileno=descriptors[0])))
        for descriptor in descriptors:
            os.close(descriptor)


def _child(request: Mapping[str, Any], channel: Channel) -> None:
    """Enter the namespace, call the function, send its result and exit; this never returns."""
    status = 1
    try:
        channel.send_self()
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _enter(request["namespaces"])
        module, _, name = request["target"].partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        channel.send({"message": function(_Messages(channel), **request["arguments"])})
        status = 0
    except BaseException as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):
            channel.send({"error": f"{type(error).__name__}: {error}"})
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


class _Messages(Channel):
    """The child's side of a channel: it wraps messages, so that the parent can tell them from a failure."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel._connection)

    def send(self, message: Any) -> None:
        super().send({"message": message})

    def receive(self, timeout: float | None = None) -> Any:
        return super().receive(timeout)["message"]


def _enter(namespaces: Sequence[str]) -> None:
    """Move this process, which has one thread, into the namespaces."""
    libc = ctypes.CDLL(None, use_errno=True)
    directory = os.getcwd()
    descriptors = [os.open(path, os.O_RDONLY) for path in namespaces]
    for descriptor, path in zip(descriptors, namespaces, strict=True):
        if libc.setns(descriptor, 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {path}")
        os.close(descriptor)
    os.chdir(directory)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def main() -> int:
    requests = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    requests.send(b"r")
    _serve(requests)
    return 0


if __name__ == "__main__":
    sys.exit(main())
