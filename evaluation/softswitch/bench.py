"""One measurement: a generator behind one veth pair, the switch, a sink behind another.

A switch keeps up with a rate if at least 99 % of the expected frames have left, in one of two trials. A search finds
the highest such rate; CPU time is that of the switch's threads while it kept up with it. Generator and switch share the
machine.
"""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from evaluation.softswitch.switches import Switch
from evaluation.softswitch.workloads import Workload
from softswitch.compiler.build import cache_dir, compiler

KEPT_UP = 0.99
SETTLE = 0.5  # seconds after the last frame in which a switch may still empty its queues
HEADERS = 42  # Ethernet, IPv4, UDP
IPV4 = b"\x08\x00\x45"
SOURCE = Path(__file__).with_name("generator.c")


@dataclass(frozen=True)
class Trial:
    """The outcome of one run of the generator."""

    offered: int
    seconds: float
    processed: float  # frames in, as counted by their answers
    cpu_seconds: float

    @property
    def kept_up(self) -> bool:
        return self.processed >= KEPT_UP * self.offered

    @property
    def rate(self) -> float:
        """Frames processed per second."""
        return self.processed / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU time per processed frame, in microseconds."""
        return self.cpu_seconds / max(self.processed, 1) * 1e6


class Bench:
    """Two namespaces, each joined to this one by a veth pair whose near ends are ``interfaces``.

    ``realtime``: generator and switch have priority over everything else on the machine while a trial lasts.
    """

    def __init__(self, realtime: bool = False) -> None:
        self.realtime = realtime
        self.generator = compiled(SOURCE)
        self.directory = tempfile.TemporaryDirectory(prefix="softswitch-bench-")
        tag = os.getpid() % 100000
        self.namespaces = [f"ssbench-{tag}-{n}" for n in (1, 2)]
        self.interfaces = (f"ssb{tag}a", f"ssb{tag}b")
        self.generation = 0

    def __enter__(self) -> Bench:
        try:
            for namespace, interface in zip(self.namespaces, self.interfaces, strict=True):
                _run("ip", "netns", "add", namespace)
                _run("ip", "link", "add", interface, "type", "veth", "peer", "name", "eth0", "netns", namespace)
                _run("sysctl", "-q", "-w", f"net.ipv6.conf.{interface}.disable_ipv6=1")
                _run("ip", "netns", "exec", namespace, "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1")
                _run("ip", "link", "set", interface, "up")
                _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for namespace, interface in zip(self.namespaces, self.interfaces, strict=True):
            for command in (["ip", "netns", "del", namespace], ["ip", "link", "del", interface]):
                subprocess.run(command, capture_output=True, check=False, timeout=30)
        self.directory.cleanup()

    @contextmanager
    def pair(self) -> Iterator[tuple[str, str]]:
        """Make a veth pair with both ends here."""
        tag = os.getpid() % 100000
        names = (f"ssb{tag}c", f"ssb{tag}d")
        _run("ip", "link", "add", names[0], "type", "veth", "peer", "name", names[1])
        try:
            for name in names:
                _run("sysctl", "-q", "-w", f"net.ipv6.conf.{name}.disable_ipv6=1")
                _run("ip", "link", "set", name, "up")
            yield names
        finally:
            subprocess.run(["ip", "link", "del", names[0]], capture_output=True, check=False, timeout=30)

    def _received(self) -> tuple[int, int]:
        """Return the frames and bytes that have reached the sink."""
        counters = [f"/sys/class/net/eth0/statistics/rx_{what}" for what in ("packets", "bytes")]
        command = ["ip", "netns", "exec", self.namespaces[1], "cat", *counters]
        frames, size = subprocess.run(command, capture_output=True, check=True, timeout=30).stdout.split()
        return int(frames), int(size)

    def trial(self, switch: Switch, workload: Workload, rate: float, seconds: float) -> Trial:
        """Offer ``rate`` frames per second (0: as fast as the generator can) for ``seconds``."""
        self.generation += 1
        path = Path(self.directory.name) / "frames"
        ring = workload.frames(self.generation)
        path.write_bytes(b"".join(records(ring, workload.superframe)))
        received, cpu = self._received(), switch.cpu_seconds()
        command = ["ip", "netns", "exec", self.namespaces[0], str(self.generator), "eth0", str(path)]
        command += [str(seconds), str(rate), str(workload.offset)]
        with self._first(switch):
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=False)
        if done.returncode:
            raise RuntimeError(f"the generator failed: {done.stderr.strip()}")
        time.sleep(SETTLE)
        frames, size = (now - before for now, before in zip(self._received(), received, strict=True))
        answers = frames
        if ring[0][12:15] == IPV4:  # A frame of the sink may hold many datagrams, with headers only once.
            answers = (size - HEADERS * frames) // (len(ring[0]) - HEADERS)
        return Trial(int(done.stdout), seconds, answers * workload.per_output, switch.cpu_seconds() - cpu)

    @contextmanager
    def _first(self, switch: Switch) -> Iterator[None]:
        """Give the switch's threads and this process, whose scheduling the generator inherits, real-time priority."""
        if not self.realtime:
            yield
            return
        threads = [*switch.threads(), 0]
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
        try:
            yield
        finally:
            for thread in threads:
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))

    def search(self, switch: Switch, workload: Workload, seconds: float) -> tuple[Trial, bool]:
        """Return (the best trial that kept up, whether the generator was the limit)."""
        self.trial(switch, workload, 1000, 0.5)
        full = self.trial(switch, workload, 0, seconds)
        if full.kept_up:
            return full, True
        low, high = 0.0, max(full.rate * 1.5, 1000.0)
        best: Trial | None = None
        while high < full.offered / full.seconds:  # If offered too much, a switch may do less than it can.
            found = self.trial(switch, workload, high, seconds)
            if not found.kept_up:
                break
            low, best, high = high, found, high * 1.5
        for _ in range(7):
            rate = (low + high) / 2
            found = self.trial(switch, workload, rate, seconds)
            if not found.kept_up:  # the machine may have been busy
                found = self.trial(switch, workload, rate, seconds)
            if found.kept_up:
                low, best = rate, found
            else:
                high = rate
        return best or full, False


def records(ring: list[bytes], superframe: int) -> Iterator[bytes]:
    """Yield the generator's input: each frame, or as many as go together, with its length and that of a segment."""
    for start in range(0, len(ring), superframe):
        packets = ring[start : start + superframe]
        size = len(packets[0]) - HEADERS if superframe > 1 else 0
        frame = joined(packets) if superframe > 1 else packets[0]
        yield struct.pack("<II", len(frame), size) + frame


def joined(packets: list[bytes]) -> bytes:
    """Return datagrams of one flow as one frame, whose UDP checksum is left to the segmentation."""
    payload = b"".join(packet[HEADERS:] for packet in packets)
    ip = packets[0][14:16] + struct.pack(">H", 28 + len(payload)) + packets[0][18:24] + b"\0\0" + packets[0][26:34]
    ip = ip[:10] + struct.pack(">H", 0xFFFF ^ _sum(ip)) + ip[12:]
    length = struct.pack(">H", 8 + len(payload))
    pseudo = _sum(ip[12:20] + b"\0\x11" + length)
    return packets[0][:14] + ip + packets[0][34:38] + length + struct.pack(">H", pseudo) + payload


def _sum(data: bytes) -> int:
    """Return the ones' complement sum of 16-bit numbers."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def compiled(source: Path, *flags: str) -> Path:
    """Return the compiled C file from the cache."""
    path, _ = compiler()
    target = cache_dir() / f"{source.stem}-{source.stat().st_mtime_ns}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        _run(path, "-O2", *flags, "-o", str(target), str(source))
    return target


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
