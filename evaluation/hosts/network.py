"""A star of network namespaces: one per host, each with a veth pair to a namespace in the middle. Needs root."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def run(*command: str) -> str:
    """Run a command and return its output. Raise OSError with its error output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Put the calling thread into `namespace`: sockets made inside stay there."""
    with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{namespace}") as there:
        if _libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
        try:
            yield
        finally:
            _libc.setns(here.fileno(), CLONE_NEWNET)


def sweep(prefix: str) -> None:
    """Remove the namespaces with this prefix of processes that have ended without removing them, as after SIGKILL."""
    for made in Path("/run/netns").glob(f"{prefix}-*"):
        process = made.name.removeprefix(f"{prefix}-").partition("-")[0]
        if process.isdigit() and not Path("/proc", process).exists():
            with suppress(OSError):
                run("ip", "netns", "delete", made.name)


class StarNetwork:
    """Hosts `names` (interface data0, address 10.9.x.y/16) around a middle whose ports() are in the same order.

    Both directions of every link have the rate `mbps` (tbf, burst 256 KB, as tests of TCP need it); 0 for links that
    are not shaped.
    """

    def __init__(self, prefix: str, names: Sequence[str], addresses: Sequence[str], mbps: float = 0.0) -> None:
        self.middle = f"{prefix}-{os.getpid()}-mid"
        self.hosts = {name: f"{prefix}-{os.getpid()}-{name}" for name in names}
        self.addresses = dict(zip(names, addresses, strict=True))
        self._mbps = mbps
        self._made: list[str] = []
        sweep(prefix)
        try:
            self._make(self.middle)
            for name, namespace in self.hosts.items():
                self._make(namespace)
                run("ip", "-n", namespace, "link", "set", "dev", "lo", "up")
                self._link(name)
        except BaseException:
            self.close()
            raise

    def _link(self, name: str) -> None:
        """Make the veth pair between a host and the middle, with the host's address, up and shaped."""
        namespace, port = self.hosts[name], f"p-{name}"
        middle = ("ip", "-n", self.middle, "link")
        run(*middle, "add", "dev", port, "type", "veth", "peer", "name", "data0", "netns", namespace)
        run("ip", "-n", namespace, "address", "add", f"{self.addresses[name]}/16", "dev", "data0")
        shape = ("root", "tbf", "rate", f"{int(self._mbps * 1e6)}bit", "burst", "256kb", "latency", "200ms")
        for where, interface in ((namespace, "data0"), (self.middle, port)):
            run("ip", "-n", where, "link", "set", "dev", interface, "up")
            if self._mbps:
                run("tc", "-n", where, "qdisc", "add", "dev", interface, *shape)

    def remake(self, name: str) -> None:
        """Delete a host's link and make it again, as when a container's network restarts or a card's driver is
        reloaded.

        Both ends get their old names and the host its address, but they are other interfaces to the kernel.
        """
        self.unlink(name)
        self._link(name)

    def unlink(self, name: str) -> None:
        """Delete a host's link if it exists; `remake` makes it again."""
        with suppress(OSError):
            run("ip", "-n", self.middle, "link", "delete", "dev", f"p-{name}")

    def _make(self, namespace: str) -> None:
        self._made.append(namespace)  # first: a signal may come in between
        run("ip", "netns", "add", namespace)
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
        """Return the middle's interfaces."""
        return [f"p-{name}" for name in self.hosts]

    @contextmanager
    def bridged(self) -> Iterator[None]:
        """Make the middle an Ethernet bridge (for IP between the hosts), instead of the switch that uses its ports
        otherwise.
        """
        run("ip", "-n", self.middle, "link", "add", "dev", "br0", "type", "bridge")
        try:
            run("ip", "-n", self.middle, "link", "set", "dev", "br0", "up")
            for port in self.ports():
                run("ip", "-n", self.middle, "link", "set", "dev", port, "master", "br0")
            yield
        finally:
            run("ip", "-n", self.middle, "link", "delete", "dev", "br0")

    def close(self) -> None:
        """Remove everything; may be called again."""
        while self._made:
            with suppress(OSError):
                run("ip", "netns", "delete", self._made.pop())

    def __enter__(self) -> StarNetwork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
