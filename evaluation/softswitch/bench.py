"""One measurement: a generator behind one veth pair, the switch, a sink behind another.

A switch keeps up with a rate when at least 99 % of what should leave has left, in one of two trials. The highest such
rate is searched for; CPU time is that of the switch's threads while it kept up with it. Generator and switch share the
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
SOURCE = Path(__file__).with_name("generator.c")


@dataclass(frozen=True)
class Trial:
    """What one run of the generator led to."""

    offered: int
    seconds: float
    processed: float  # frames in, as far as their answers show
    cpu_seconds: float

    @property
    def kept_up(self) -> bool:
        return self.processed >= KEPT_UP * self.offered

    @property
    def rate(self) -> float:
        """Frames per second that were processed."""
        return self.processed / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU time per processed frame, in microseconds."""
        return self.cpu_seconds / max(self.processed, 1) * 1e6


class Bench:
    """Two namespaces, each joined to this one by a veth pair whose near ends are ``interfaces``."""

    def __init__(self) -> None:
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
        """A veth pair, both ends here."""
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

    def _received(self) -> int:
        counter = "/sys/class/net/eth0/statistics/rx_packets"
        command = ["ip", "netns", "exec", self.namespaces[1], "cat", counter]
        return int(subprocess.run(command, capture_output=True, check=True, timeout=30).stdout)

    def trial(self, switch: Switch, workload: Workload, rate: float, seconds: float) -> Trial:
        """Offer ``rate`` frames per second (0: as fast as the generator can) for ``seconds``."""
        self.generation += 1
        path = Path(self.directory.name) / "frames"
        ring = workload.frames(self.generation)
        path.write_bytes(b"".join(struct.pack("<I", len(f)) + f for f in ring))
        received, cpu = self._received(), switch.cpu_seconds()
        command = ["ip", "netns", "exec", self.namespaces[0], str(self.generator), "eth0", str(path)]
        command += [str(seconds), str(rate), str(workload.offset)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=False)
        if done.returncode:
            raise RuntimeError(f"the generator failed: {done.stderr.strip()}")
        time.sleep(SETTLE)
        answers = self._received() - received
        return Trial(int(done.stdout), seconds, answers * workload.per_output, switch.cpu_seconds() - cpu)

    def search(self, switch: Switch, workload: Workload, seconds: float) -> tuple[Trial, bool]:
        """(the best trial that kept up, whether the generator was the limit)."""
        self.trial(switch, workload, 1000, 0.5)
        full = self.trial(switch, workload, 0, seconds)
        if full.kept_up:
            return full, True
        low, high = 0.0, max(full.rate * 1.5, 1000.0)
        best: Trial | None = None
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


def compiled(source: Path, *flags: str) -> Path:
    """The C file, compiled and kept."""
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
