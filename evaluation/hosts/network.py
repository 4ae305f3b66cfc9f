"""A star of network namespaces: one a host, each with a veth to a namespace in the middle. Needs root."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def run(*command: str) -> str:
    """The output of a command. Raises OSError with what it wrote when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """The calling thread is in `namespace`: sockets made here stay there."""
    with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{namespace}") as there:
        if _libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
        try:
            yield
        finally:
            _libc.setns(here.fileno(), CLONE_NEWNET)


class StarNetwork:
    """Hosts `names` (interface data0, address 10.9.x.y/16) around a middle whose ports() are in the same order.

    mbps: both directions of every link (tbf, burst 256 KB, as tests of TCP need it); 0: not shaped.
    """

    def __init__(self, prefix: str, names: Sequence[str], addresses: Sequence[str], mbps: float = 0.0) -> None:
        self.middle = f"{prefix}-{os.getpid()}-mid"
        self.hosts = {name: f"{prefix}-{os.getpid()}-{name}" for name in names}
        self.addresses = dict(zip(names, addresses, strict=True))
        self._made: list[str] = []
        try:
            self._make(self.middle)
            for name, namespace in self.hosts.items():
                self._make(namespace)
                run(
                    "ip",
                    "-n",
                    self.middle,
                    "link",
                    "add",
                    "dev",
                    f"p-{name}",
                    "type",
                    "veth",
                    "peer",
                    "name",
                    "data0",
                    "netns",
                    namespace,
                )
                run("ip", "-n", namespace, "address", "add", f"{self.addresses[name]}/16", "dev", "data0")
                for where, interface in ((namespace, "data0"), (namespace, "lo"), (self.middle, f"p-{name}")):
                    run("ip", "-n", where, "link", "set", "dev", interface, "up")
                for where, interface in ((namespace, "data0"), (self.middle, f"p-{name}")) if mbps else ():
                    run(
                        "tc",
                        "-n",
                        where,
                        "qdisc",
                        "add",
                        "dev",
                        interface,
                        "root",
                        "tbf",
                        "rate",
                        f"{int(mbps * 1e6)}bit",
                        "burst",
                        "256kb",
                        "latency",
                        "200ms",
                    )
        except BaseException:
            self.close()
            raise

    def _make(self, namespace: str) -> None:
        run("ip", "netns", "add", namespace)
        self._made.append(namespace)
        run(
            "ip",
            "netns",
            "exec",
            namespace,
            "sysctl",
            "-q",
            "-w",
            "net.ipv6.conf.all.disable_ipv6=1",
            "net.ipv6.conf.default.disable_ipv6=1",
        )

    def ports(self) -> list[str]:
        """The middle's interfaces."""
        return [f"p-{name}" for name in self.hosts]

    @contextmanager
    def bridged(self) -> Iterator[None]:
        """The middle is an Ethernet bridge (for IP between the hosts), instead of whatever else uses its ports."""
        run("ip", "-n", self.middle, "link", "add", "dev", "br0", "type", "bridge")
        try:
            run("ip", "-n", self.middle, "link", "set", "dev", "br0", "up")
            for port in self.ports():
                run("ip", "-n", self.middle, "link", "set", "dev", port, "master", "br0")
            yield
        finally:
            run("ip", "-n", self.middle, "link", "delete", "dev", "br0")

    def close(self) -> None:
        """Removes all of it. Again: nothing happens."""
        while self._made:
            with suppress(OSError):
                run("ip", "netns", "delete", self._made.pop())

    def __enter__(self) -> StarNetwork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
