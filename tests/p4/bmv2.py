"""bmv2's ``simple_switch_grpc`` with veth ports in a network namespace of its own."""

from __future__ import annotations

import ctypes
import itertools
import os
import select
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from p4src.artifacts import Artifact
from p4src.protocol import Verdict
from tests.model.packet import Packet, decode, ours
from tests.model.switch import Switch
from tests.p4.p4runtime import Client
from tests.p4.targets import Frames, Target, parameters

PROGRAM = "simple_switch_grpc"
CLONE_NEWNET = 0x40000000
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
SENTINEL_LABEL = 0xFFFF0001
SENTINEL_GROUP = 4000
SENTINEL_JOB = 0xBEEF
NUMBERS = itertools.count()
DEADLINE = 20.0
"""Seconds that a switch may take to start or to answer."""


def missing() -> str | None:
    """Why bmv2 cannot run here; None when it can."""
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not on PATH"
    if os.geteuid() != 0:
        return "network namespaces and raw sockets need root"
    return None


def run(*command: str) -> None:
    """Run a command that has to succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def sockets_in(namespace: str, interfaces: list[str]) -> list[socket.socket]:
    """Raw sockets, opened inside ``namespace`` and bound to ``interfaces``."""
    library = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    opened = []
    try:
        if library.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        for interface in interfaces:
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            raw.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            raw.bind((interface, 0))
            opened.append(raw)
    finally:
        if library.setns(home, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot return to this process's network namespace")
        os.close(home)
        os.close(there)
    return opened


class Bmv2Target(Target):
    """One ``simple_switch_grpc``. Ports are those of the configuration.

    What a frame causes is known to be complete when a second frame, sent behind it on the same port and replicated to
    all ports, has arrived on each of them: ingress takes packets in turn, and so does every egress port.
    """

    def __init__(self, artifact: Artifact, configuration: Switch, ports: tuple[int, ...]) -> None:
        self.artifact, self.configuration, self.ports = artifact, configuration, ports
        self.namespace = f"inart-t-p4-{os.getpid()}-{next(NUMBERS)}"
        self.sentinels = 0
        self.process_: subprocess.Popen[bytes] | None = None
        self.client: Client | None = None
        self.sockets: dict[int, socket.socket] = {}
        self.directory = tempfile.TemporaryDirectory(prefix="inart-t-")
        try:
            self._start()
            self.restart()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        run("ip", "netns", "add", self.namespace)
        inside = ("ip", "netns", "exec", self.namespace)
        run(*inside, "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
        command = [*inside, PROGRAM, "--no-p4", "--device-id", "1"]
        for port in self.ports:
            run(*inside, "ip", "link", "add", f"s{port}", "type", "veth", "peer", "name", f"t{port}")
            run(*inside, "ip", "link", "set", f"s{port}", "up")
            run(*inside, "ip", "link", "set", f"t{port}", "up")
            command += ["-i", f"{port}@s{port}"]
        address = f"unix:{self.directory.name}/grpc"
        command += ["--", "--grpc-server-addr", address]
        log = (Path(self.directory.name) / "log").open("wb")
        self.process_ = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        log.close()
        opened = sockets_in(self.namespace, [f"t{port}" for port in self.ports])
        self.sockets = dict(zip(self.ports, opened, strict=True))
        self.client = Client(address, 1, self.artifact)

    def restart(self) -> None:
        client = self.client
        assert client is not None
        client.load()
        self.sentinels = 0
        groups = {**self.configuration.groups, SENTINEL_GROUP: self.ports}
        client.insert([client.group(group, ports) for group, ports in groups.items()])
        entries = []
        for (port, label), action in self.configuration.labels.items():
            name, values = parameters(action)
            entries.append(client.entry("label_table", (port, label), name, [value for _, value in values]))
        for port in self.ports:
            entries.append(client.entry("label_table", (port, SENTINEL_LABEL), "replicate", [SENTINEL_GROUP]))
        for (address, length), (mac, port) in self.configuration.routes.items():
            values_ = [int.from_bytes(mac, "big"), port]
            entries.append(client.entry("ipv4_table", [(address, length)], "route", values_))
        client.insert(entries)
        # The new program is in force from some packet on: frames that are lost before it are sent again.
        end = time.monotonic() + DEADLINE
        while not self._try_sentinel(self.ports[0], wait=0.2):
            if time.monotonic() > end:
                raise TimeoutError(f"{PROGRAM} forwards nothing {DEADLINE} s after it got its program")
        self.base = self._verdicts()

    def _try_sentinel(self, port: int, wait: float) -> bool:
        try:
            self._behind(port, wait)
        except TimeoutError:
            return False
        return True

    def process(self, port: int, frame: bytes) -> Frames:
        self.sockets[port].send(frame)
        return self.settle(port)

    def settle(self, port: int) -> Frames:
        """All that is still on its way because of frames sent on ``port``."""
        return self._behind(port, DEADLINE)

    def _behind(self, port: int, wait: float) -> Frames:
        """Send a sentinel on ``port``; what arrives anywhere before it."""
        values = (0,) * self.artifact.manifest.values_per_packet
        self.sentinels += 1
        sentinel = Packet(SENTINEL_LABEL, 0, self.sentinels, 0, values, job=SENTINEL_JOB).encode()
        self.sockets[port].send(sentinel)
        pending = {raw: number for number, raw in self.sockets.items()}
        frames: Frames = []
        end = time.monotonic() + wait
        while pending:
            ready, _, _ = select.select(list(pending), [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"no answer on ports {sorted(pending.values())} after {wait} s")
            for raw in ready:
                frame = raw.recv(65536)
                if frame == sentinel:
                    del pending[raw]
                elif not self._is_sentinel(frame):
                    frames.append((pending[raw], frame))
        return frames

    def _is_sentinel(self, frame: bytes) -> bool:
        """An earlier sentinel, from before the switch had its program."""
        if not ours(frame):
            return False
        packet = decode(frame, self.artifact.manifest.values_per_packet)
        return packet is not None and (packet.label, packet.job) == (SENTINEL_LABEL, SENTINEL_JOB)

    def _verdicts(self) -> dict[Verdict, int]:
        assert self.client is not None
        counts = self.client.counter("verdict_counter")
        found = {verdict: counts.get(int(verdict), 0) for verdict in Verdict}
        found[Verdict.REPLICATED] -= self.sentinels
        return found

    def verdicts(self) -> dict[Verdict, int]:
        return {verdict: count - self.base[verdict] for verdict, count in self._verdicts().items()}

    def label_counters(self) -> dict[tuple[int, int], tuple[int, int]]:
        assert self.client is not None
        counters = self.client.direct_counters("label_table")
        return {(port, label): counters[port, label] for port, label in self.configuration.labels}

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
        for raw in self.sockets.values():
            raw.close()
        if self.process_ is not None:
            self.process_.terminate()
            try:
                self.process_.wait(10)
            except subprocess.TimeoutExpired:
                self.process_.kill()
                self.process_.wait()
        subprocess.run(["ip", "netns", "delete", self.namespace], capture_output=True, check=False, timeout=30)
        self.directory.cleanup()
