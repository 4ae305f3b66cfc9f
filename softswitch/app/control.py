"""The control socket, for statistics, traces, shaping, ports and reboots while the switches run.

It is a Unix stream socket. Each request is a line of JSON, and so is each answer: ``{"ok": true, "result": ...}`` or
``{"ok": false, "error": "..."}``; a trace sends a line for each packet before its answer. ``docs/guide.md`` lists
the commands.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from softswitch.app.config import MAX_PORT, ConfigError
from softswitch.app.switches import Switches
from softswitch.dataplane.trace import MAX_PACKETS, as_json, lines
from softswitch.errors import SoftswitchError
from softswitch.p4runtime import P4RuntimeError

MAX_LINE = 1 << 16
_DEVICE: dict[str, Any] = {"device": (int, str)}
COMMANDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "stats": ({}, _DEVICE),
    "shape": (_DEVICE | {"port": int, "shape": dict}, {}),
    "reboot": (_DEVICE, {"down_s": (int, float)}),
    "port_add": (_DEVICE | {"port": int, "interface": str}, {}),
    "port_remove": (_DEVICE | {"port": int}, {}),
    "flip": (_DEVICE | {"register": str}, {"count": int, "most_index": int}),
    "crc": (_DEVICE | {"calculation": str, "parameters": dict}, {}),
    "run": (_DEVICE | {"line": str}, {}),
    "trace": (_DEVICE, {"packets": int, "seconds": (int, float), "in_port": int, "out_port": int}),
}
"""By command, the types of the arguments that it needs, and of those that it may have."""
METHODS: dict[str, Callable[..., object]] = {
    "stats": Switches.stats,
    "shape": Switches.shape,
    "reboot": Switches.reboot,
    "port_add": Switches.add_port,
    "port_remove": Switches.remove_port,
    "flip": Switches.flip,
    "crc": Switches.set_crc,
    "run": Switches.run,
}
"""The method of each command, but for `trace`, which answers line by line (`_Handler`)."""
RANGES: dict[str, tuple[float, float]] = {
    "down_s": (0, 600),
    "count": (1, 10_000),
    "most_index": (0, 1 << 32),
    "packets": (1, MAX_PACKETS),
    "seconds": (0.001, 86_400),
    "in_port": (0, MAX_PORT),
    "out_port": (0, MAX_PORT),
}
"""The lowest and the highest value of each argument that has limits."""

_log = logging.getLogger(__name__)


class ControlError(Exception):
    """A command was refused; the message says why."""


class _Handler(socketserver.StreamRequestHandler):
    server: _SocketServer

    def handle(self) -> None:
        while line := self.rfile.readline(MAX_LINE):
            self._send(self._answer(line))
            if not line.endswith(b"\n"):
                return  # The line is too long, or the client closed in the middle of it; there is no next line to find.

    def _answer(self, line: bytes) -> dict[str, object]:
        if len(line) == MAX_LINE:
            return {"ok": False, "error": f"a request has less than {MAX_LINE} bytes"}
        try:
            request = json.loads(line)
            if isinstance(request, dict) and request.get("command") == "trace":
                return {"ok": True, "result": self._trace(request)}
            return {"ok": True, "result": execute(self.server.switches, request)}
        except (ControlError, ConfigError, SoftswitchError, P4RuntimeError, OSError) as error:
            return {"ok": False, "error": str(error)}
        except ValueError as error:
            return {"ok": False, "error": f"not JSON: {error}"}
        except Exception:
            _log.exception("control command failed")
            return {"ok": False, "error": "an internal error; the log has the details"}

    def _send(self, answer: dict[str, object]) -> None:
        self.wfile.write(json.dumps(answer).encode() + b"\n")

    def _trace(self, request: dict[str, Any]) -> dict[str, int]:
        """Send a line ``{"packet": ...}`` for each packet, until there are enough, time is up or the client is gone."""
        arguments = {name: value for name, value in request.items() if name != "command"}
        _check("trace", arguments)
        packets, seconds = arguments.get("packets", 10), arguments.get("seconds", 60.0)
        ports = [arguments.get(name) for name in ("in_port", "out_port")]
        end, sent = time.monotonic() + seconds, 0
        with self.server.switches.trace(arguments["device"], packets, *ports) as trace:
            while not trace.done and (rest := end - time.monotonic()) > 0 and not self._gone():
                packet = trace.next(min(rest, 0.2))
                if packet is not None:
                    self._send({"ok": True, "packet": as_json(packet), "lines": lines(packet)})
                    sent += 1
        return {"packets": sent}

    def _gone(self) -> bool:
        """Return whether the client has closed its end."""
        try:
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


class _SocketServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    switches: Switches

    def handle_error(self, request: object, client_address: object) -> None:
        _log.debug("a control client went away", exc_info=True)


class ControlServer:
    """A server that listens on ``path`` (mode 0600) until :meth:`stop`. It raises OSError if it cannot listen."""

    def __init__(self, path: str, switches: Switches) -> None:
        self.path = path
        _remove_stale(path)
        mask = os.umask(0o177)
        try:
            self._server = _SocketServer(path, _Handler)
        except OSError as error:
            raise OSError(f"cannot listen on {path}: {error}") from error
        finally:
            os.umask(mask)
        self._server.switches = switches
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="control", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        Path(self.path).unlink(missing_ok=True)


def execute(switches: Switches, request: object) -> object:
    """Carry out one command, and return its result as JSON values."""
    if not isinstance(request, dict):
        raise ControlError("a request is a JSON object")
    arguments = dict(request)
    command = arguments.pop("command", None)
    if command not in METHODS:
        raise ControlError(f"unknown command {command!r}; there are {', '.join(COMMANDS)}")
    _check(command, arguments)
    return METHODS[command](switches, **arguments)


class Connection:
    """A connection to a running softswitch, for one command after another.

    It raises :class:`ControlError` if a command is refused, OSError if nobody answers.
    """

    def __init__(self, path: str, timeout: float | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise OSError(f"no softswitch answers on {path}: {error.strerror or error}") from error
        self._answers = self._socket.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._socket.close()

    def conversation(self, command: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Yield the answers to a command as they arrive, up to the one with its ``result``."""
        self._socket.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
        for line in self._answers:
            answer = json.loads(line)
            if not answer["ok"]:
                raise ControlError(answer["error"])
            yield answer
            if "result" in answer:
                return

    def call(self, command: str, **arguments: Any) -> Any:
        """Send a command and return its result."""
        for answer in self.conversation(command, **arguments):
            if "result" in answer:
                return answer["result"]
        raise ControlError("softswitch ended before it answered")


def call(path: str, command: str, timeout: float | None = None, **arguments: Any) -> Any:
    """Send one command over a connection of its own, and return its result."""
    with Connection(path, timeout) as connection:
        return connection.call(command, **arguments)


def conversation(path: str, command: str, timeout: float | None = None, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Yield the answers to one command over a connection of its own."""
    with Connection(path, timeout) as connection:
        yield from connection.conversation(command, **arguments)


def device(text: str) -> int | str:
    """Return a device as requests name it: by its id or its name."""
    return int(text) if text.isdecimal() else text


def only_device(path: str) -> str:
    """Return the id of the only device; raise :class:`ControlError` if there are several."""
    devices = list(call(path, "stats")["devices"])
    if len(devices) > 1:
        raise ControlError(f"there are several devices; give one of {', '.join(devices)}")
    return devices[0]


def _check(command: str, arguments: dict[str, Any]) -> None:
    """Check the arguments of a command: their names, types and ranges."""
    required, optional = COMMANDS[command]
    for name in required:
        if name not in arguments:
            raise ControlError(f"{name!r} is missing")
    known = required | optional
    for name, value in arguments.items():
        if name not in known:
            raise ControlError(f"unknown argument {name!r}; there are {', '.join(known)}")
        if not isinstance(value, known[name]) or isinstance(value, bool):
            raise ControlError(f"{name!r} has the wrong type")
        if name in RANGES:
            low, high = RANGES[name]
            if not low <= value <= high:
                raise ControlError(f"{name} must be in {low}..{high}")


def _remove_stale(path: str) -> None:
    """Remove a socket that nobody listens on; leave one in use alone, so that binding fails."""
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
        except OSError:
            return
