"""Switch processes that serve P4Runtime (softswitch and bmv2's simple_switch_grpc), and cables to connect them."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[3]
BMV2 = "simple_switch_grpc"
CLONE_NEWNET = 0x40000000
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
PACKET_AUXDATA = 8
AUXDATA = struct.Struct("=IIIHHHH")
"""The kernel's tpacket_auxdata: status, lengths (2), offsets (2), VLAN tag and its EtherType."""
VLAN_VALID = 1 << 4
NUMBERS = itertools.count()
END_SECONDS = 10


def missing(kind: str) -> str | None:
    """Return why a kind of switch cannot run here, or None when it can."""
    if kind == "bmv2" and shutil.which(BMV2) is None:
        return f"{BMV2} is not on PATH"
    if kind == "softswitch" and shutil.which(os.environ.get("CC", "cc")) is None:
        return "there is no C compiler (cc)"
    return None


def missing_with_cables(kind: str) -> str | None:
    """Return why a kind of switch cannot run with :class:`Cables` here, or None when it can."""
    return missing(kind) or (None if os.geteuid() == 0 else "network namespaces and raw sockets need root")


def run(*command: str) -> None:
    """Run a command that has to succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def sockets_in(namespace: str, interfaces: list[str]) -> list[socket.socket]:
    """Return raw sockets that are opened inside ``namespace`` and bound to ``interfaces``."""
    library = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    opened = []
    try:
        if library.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        for interface in interfaces:
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # The socket receives nothing until it is bound.
            raw.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            raw.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            raw.bind((interface, 3))
            opened.append(raw)
    finally:
        if library.setns(home, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot return to this process's network namespace")
        os.close(home)
        os.close(there)
    return opened


def receive(raw: socket.socket) -> bytes:
    """Receive a frame from one of :func:`sockets_in` as it was on the wire: the kernel removes a VLAN tag and reports
    it apart.
    """
    frame, extra, _, _ = raw.recvmsg(65536, socket.CMSG_SPACE(AUXDATA.size))
    for level, kind, data in extra:
        if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
            status, *_, tag, ether_type = AUXDATA.unpack_from(data)
            if status & VLAN_VALID:
                return frame[:12] + struct.pack(">HH", ether_type, tag) + frame[12:]
    return frame


class Cables:
    """A network namespace with a veth pair for each port: the switch's end, and a raw socket in ``sockets`` by port."""

    def __init__(self, ports: Sequence[int], mtu: int = 1500) -> None:
        self.namespace = f"inart-t-sw-{os.getpid()}-{next(NUMBERS)}"
        self.inside: tuple[str, ...] = ("ip", "netns", "exec", self.namespace)
        self.ports: Mapping[int, str] = {port: f"s{port}" for port in ports}
        self.sockets: dict[int, socket.socket] = {}
        off = ("net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
        try:
            run("ip", "netns", "add", self.namespace)
            run(*self.inside, "sysctl", "-q", "-w", *off)
            for port, end in self.ports.items():
                run(*self.inside, "ip", "link", "add", end, "type", "veth", "peer", "name", f"t{port}")
                for name in (end, f"t{port}"):
                    run(*self.inside, "ip", "link", "set", name, "up", "mtu", str(mtu))
            opened = sockets_in(self.namespace, [f"t{port}" for port in ports])
            self.sockets = dict(zip(ports, opened, strict=True))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for raw in self.sockets.values():
            raw.close()
        subprocess.run(["ip", "netns", "delete", self.namespace], capture_output=True, check=False, timeout=30)


class Wiring(Protocol):
    """A network namespace: the words that run a command inside it, and the switch's interface by port."""

    @property
    def inside(self) -> tuple[str, ...]: ...
    @property
    def ports(self) -> Mapping[int, str]: ...


@dataclass(frozen=True)
class Wires:
    """Interfaces that somebody else has made in a namespace, which may connect switches with each other."""

    inside: tuple[str, ...]
    ports: Mapping[int, str]


class Switch:
    """A switch process without a program: P4Runtime at ``address``, by default a unix socket in ``folder``.

    Args:
        folder: for its log and what it writes.
        options: of the P4Runtime server.
    """

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        device_id: int = 1,
        address: str | None = None,
        cables: Wiring | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self.address = address or f"unix:{folder}/grpc"
        program = [BMV2] if kind == "bmv2" else [sys.executable, "-m", "softswitch"]
        self._command = [*(cables.inside if cables else ()), *program, "--no-p4", "--device-id", str(device_id)]
        for port, interface in cables.ports.items() if cables else ():
            self._command += ["-i", f"{port}@{interface}"]
        self._command += ["--", "--grpc-server-addr", self.address, *options]
        self._folder = folder
        self._log = folder / "switch.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process without waiting until it serves."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=self._folder if self.kind == "bmv2" else ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def status(self) -> int | None:
        """Return its exit status, or None while it runs."""
        return None if self.process is None else self.process.poll()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Kill the process at once, as a machine that loses power."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
