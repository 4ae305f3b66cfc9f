"""An emulated network for use from Python: build it, run programs in its hosts, inject faults, remove it.

with Emulation(topology) as emulation:
    deploy(emulation.switch_addresses)
    process = emulation.popen("h1", ["python", "-m", "ps_server", "--controller", f"{emulation.controller_host}:9600"])
"""

import math
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mininet.log import setLogLevel
from mininet.net import Mininet

from controlplane.planner.plan.framing import MTU
from controlplane.planner.topology import Topology
from controlplane.planner.topology_cables import access, ports_of
from controlplane.targets.base import SwitchAddress
from topologies import choice, network
from topologies.lifetime import MANAGEMENT_ROOT, Lifetime
from topologies.network import EmulationError
from topologies.reaper import MARK
from topologies.switches import InterfaceCounters, Layout, Switches

NEEDED_COMMANDS = {
    "mnexec": "mininet",
    "ifconfig": "net-tools",
    "ip": "iproute2",
    "tc": "iproute2",
    "ethtool": "ethtool",
}


class Emulation:
    """The hosts, links and switches of a topology, as a context manager that removes everything when it is left.

    However the process ends (exception, Ctrl-C, SIGTERM, SIGKILL), a reaper process removes the network.

    Args:
        topology: the network.
        switch: "softswitch", "bmv2" or None (environment variable SWITCH, else bmv2 if installed).
        seed: seed of the faults that switches inject.
        mtu: largest IP packet in bytes on the hosts' links; links between switches carry packets of that size, too.
    """

    controller_host = MANAGEMENT_ROOT  # Every host can reach a controller that listens on this address.

    def __init__(self, topology: Topology, switch: str | None = None, *, seed: int = 0, mtu: int = MTU) -> None:
        self.topology, self.mtu = topology, mtu
        self.kind = choice.choose(switch)
        self.switch_addresses: dict[str, SwitchAddress] = {}
        self._seed = seed
        self.lifetime: Lifetime | None = None
        self._switches: Switches | None = None
        self._net: Mininet | None = None
        self._children: list[subprocess.Popen[Any]] = []

    # --- building and taking down ---

    def __enter__(self) -> "Emulation":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Build the network, and return when the switches answer. Raise EmulationError where that fails; then nothing
        is left.
        """
        _check_machine()
        setLogLevel("warning")
        self.lifetime = Lifetime()
        try:
            self._build(self.lifetime)
        except BaseException:
            self.stop()
            raise

    def _build(self, lifetime: Lifetime) -> None:
        self._switches = choice.make(self.kind, seed=self._seed)
        before = os.environ.get(MARK)
        os.environ[MARK] = lifetime.token  # Mininet starts its shells with our environment.
        try:
            self._net = network.build(
                self.topology,
                lifetime,
                veth_fabric=not self._switches.links_in_memory,
                offloads=self._switches.takes_offloads,
                mtu=self.mtu,
            )
        finally:
            os.environ.pop(MARK)
            if before is not None:
                os.environ[MARK] = before
        host_interfaces = network.host_links(self.topology, lifetime)
        fabric: dict[tuple[str, str], str] = {}
        for link in self._net.links:
            a, b = link.intf1, link.intf2
            if not self._switches.links_in_memory and a.node.name in self.topology.switches:
                fabric[a.node.name, b.node.name] = a.name
                fabric[b.node.name, a.node.name] = b.name
        layout = Layout(self.topology, host_interfaces, fabric, lifetime.directory)
        self.switch_addresses = self._switches.start(layout, lifetime.environment)

    def stop(self) -> None:
        """Remove the network, in any state; a second call does nothing. Raise EmulationError if something is left."""
        lifetime, self.lifetime = self.lifetime, None
        if lifetime is None:
            return
        clean = lifetime.end()
        for process in self._children:
            process.wait()
        if self._switches is not None:
            self._switches.close()
        if self._net is not None:
            for node in (*self._net.hosts, *self._net.switches):
                node.terminate()
        self._net = self._switches = None
        if not clean:
            raise EmulationError("some process or interface of the emulation could not be removed")

    @property
    def switches(self) -> Switches:
        """The switches' processes, which tell their queues, counters and faults."""
        if self._switches is None:
            raise EmulationError("the emulation is not running")
        return self._switches

    @property
    def net(self) -> Mininet:
        """The Mininet object (for its CLI)."""
        if self._net is None:
            raise EmulationError("the emulation is not running")
        return self._net

    # --- programs in hosts ---

    def popen(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program in a host. `env` in the options is added to the environment. It ends with the emulation."""
        lifetime = self._running()
        environment = lifetime.environment | dict(options.pop("env", {}))
        command = ["mnexec", "-a", str(self.net[host].pid), *map(str, argv)]
        # It gets a session of its own, so that Ctrl-C at the terminal reaches only the program that runs the emulation.
        process = subprocess.Popen(command, env=environment, start_new_session=True, **options)
        self._children.append(process)
        return process

    def run(self, host: str, argv: Sequence[str], timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a program in a host to its end, at most `timeout` seconds (then TimeoutExpired)."""
        process = self.popen(
            host, argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        finally:
            self._children.remove(process)
        return subprocess.CompletedProcess(argv, process.returncode, output, errors)

    @property
    def environment(self) -> dict[str, str]:
        """The environment that a process needs so that the reaper finds it and ends it with the emulation."""
        return self._running().environment

    @property
    def directory(self) -> Path:
        """A folder for files that are removed with the emulation."""
        return self._running().directory

    def namespace(self, host: str, kind: str = "net") -> str:
        """Return the path of one of the host's namespaces (net, mnt), for setns."""
        return f"/proc/{self.net[host].pid}/ns/{kind}"

    # --- the network ---

    def interface(self, host: str, link: int = 0) -> str:
        """Return the name of the host's interface to the data network; `link` says which, where a host has several
        links.
        """
        return network.data_interface(host, link)

    def counters(self, host: str, link: int = 0) -> InterfaceCounters:
        """Return the traffic that the host's link has carried so far, counted in packets (not super-frames); `link`
        says which, where a host has several.
        """
        near = ports_of(self.topology, host)[link]
        switch, _ = access(self.topology, host, near)
        counted = self.switches.link_counters(switch).get((switch, host if near == switch else near))
        if counted is not None:
            return counted.other_end
        for line in Path(f"/proc/{self.net[host].pid}/net/dev").read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == self.interface(host, link):
                fields = [int(field) for field in numbers.split()]
                return InterfaceCounters(fields[0], fields[1], fields[8], fields[9])
        raise EmulationError(f"{host} has lost its interface {self.interface(host)}")

    def ping(self, pairs: Iterable[tuple[str, str]] | None = None, timeout: float = 60.0) -> list[tuple[str, str]]:
        """Ping once for each (from, to), by default for all pairs, and return the pairs without an answer."""
        servers = self.topology.servers
        wanted: dict[str, list[str]] = {}
        for a, b in pairs if pairs is not None else [(a, b) for a in servers for b in servers if a != b]:
            wanted.setdefault(a, []).append(b)
        running = {}
        for host, others in wanted.items():
            script = "; ".join(
                f"ping -n -q -c 1 -W 2 {self.topology.address(o)} >/dev/null 2>&1 || echo {o}" for o in others
            )
            running[host] = self.popen(
                host, ["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
            )
        failed = []
        for host, process in running.items():
            output, _ = process.communicate(timeout=timeout)
            self._children.remove(process)
            failed += [(host, other) for other in output.split()]
        return failed

    def shape(self, u: str, v: str, **faults: float) -> None:
        """Change the link from u to v, in this direction only.

        The faults are rate_mbps, delay_ms, jitter_ms, loss, duplicate, reorder and corrupt; softswitch/docs/guide.md
        has all options.
        """
        self.switches.shape(u, v, **faults)

    def reboot(self, switch: str) -> None:
        """Restart one switch with empty memory and tables, and return when it answers."""
        self.switches.reboot(switch)

    def fail(self, switch: str, seconds: float = math.inf) -> None:
        """Switch one off for `seconds`, and return at once. It comes back with empty memory and tables."""
        _check_switches(self.topology, switch)
        self.switches.fail(switch, min(seconds, threading.TIMEOUT_MAX))

    def cut(self, u: str, v: str) -> None:
        """Cut a link until `mend`.

        A link between two switches loses all frames in both directions; one to a host is unplugged, so that the host's
        interface has no carrier.
        """
        if (end := _host_end(self.topology, self._running(), u, v)) is not None:
            subprocess.run(["ip", "link", "set", end, "down"], check=True)
            return
        _check_switches(self.topology, u, v)
        self.switches.cut(u, v)

    def mend(self, u: str, v: str) -> None:
        """Restore a link that `cut` had cut."""
        if (end := _host_end(self.topology, self._running(), u, v)) is not None:
            subprocess.run(["ip", "link", "set", end, "up"], check=True)
            return
        _check_switches(self.topology, u, v)
        self.switches.mend(u, v)

    def drops(self) -> dict[str, dict[str, int]]:
        """Return the number of frames that each switch has lost, by reason."""
        return self.switches.drops()

    def remake_interface(self, host: str) -> None:
        """Delete a host's data interface and make it again, with the same name and addresses."""
        offloads = self.switches.takes_offloads
        network.remake_host_link(self.net, self.topology, self._running(), host, offloads=offloads, mtu=self.mtu)

    def wait(self, condition: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
        """Poll until the condition holds. Raise EmulationError with `what` after the timeout, or when a switch ends."""
        deadline = time.monotonic() + timeout
        while not condition():
            self.switches.check()
            if time.monotonic() > deadline:
                raise EmulationError(f"after {timeout:.0f} s still not: {what}")
            time.sleep(0.02)

    def _running(self) -> Lifetime:
        if self.lifetime is None:
            raise EmulationError("the emulation is not running")
        return self.lifetime


def _host_end(topology: Topology, lifetime: Lifetime, u: str, v: str) -> str | None:
    """Return the interface at the switch's end of a link to a host; None where neither end of the link is a host."""
    ends = network.host_links(topology, lifetime)
    return ends.get((u, v)) or ends.get((v, u))


def _check_switches(topology: Topology, *names: str) -> None:
    wrong = [name for name in names if name not in topology.switches]
    if wrong:
        raise EmulationError(f"{wrong[0]} is not a switch: only switches, and links between them, can fail")


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise EmulationError("network namespaces need root: run it with sudo")
    missing = {package for command, package in NEEDED_COMMANDS.items() if shutil.which(command) is None}
    if missing:
        raise EmulationError(f"missing: {', '.join(sorted(missing))}; run make setup")
    # Mininet would wait for ever for the prompt of a shell that could not get its namespaces.
    probe = subprocess.run(["mnexec", "-n", "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        words = " ".join((probe.stdout + probe.stderr).split()) or f"mnexec ended with {probe.returncode}"
        raise EmulationError(
            f"this kernel or container does not let root make network and mount namespaces ({words}); "
            "in a container, give it the privileges (and a root that is a mount point)"
        )
