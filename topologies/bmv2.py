"""The switches of an emulation as one `simple_switch_grpc` process each."""

import subprocess
import threading
from pathlib import Path

from controlplane.targets.base import SwitchAddress
from topologies.network import EmulationError, shaping
from topologies.ports import free_ports
from topologies.switches import InterfaceCounters, Layout, wait_listening

PROGRAM = "simple_switch_grpc"


class Bmv2:
    """bmv2 switches, whose links are veth pairs shaped by Mininet.

    Links can be cut; other faults cannot be injected.
    """

    kind = "bmv2"
    links_in_memory = False
    takes_offloads = False

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        self._environment: dict[str, str] = {}
        self._addresses: dict[str, SwitchAddress] = {}
        self._logs = Path()
        self._layout: Layout | None = None
        self._timers: list[threading.Timer] = []
        self._lock = threading.Lock()
        self._closed = False

    def start(self, layout: Layout, environment: dict[str, str]) -> dict[str, SwitchAddress]:
        self._layout = layout
        topology, self._logs = layout.topology, layout.directory
        ports = free_ports(len(topology.devices) * 2)
        self._environment = environment
        # Builds with Thrift listen on a fixed port unless told another; builds without Thrift do not know the option.
        options = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=False).stdout
        for index, switch in enumerate(topology.devices):
            grpc, thrift = ports[2 * index : 2 * index + 2]
            command = [PROGRAM, "--no-p4", "--device-id", str(index + 1), "--log-level", "error"]
            if "--thrift-port" in options:
                command += ["--thrift-port", str(thrift)]
            for neighbour in topology.neighbours(switch):
                interface = layout.to_host(switch, neighbour) or layout.fabric_interfaces[switch, neighbour]
                command += ["-i", f"{topology.port(switch, neighbour)}@{interface}"]
            command += ["--", "--grpc-server-addr", f"127.0.0.1:{grpc}"]
            self._commands[switch] = command
            self._addresses[switch] = SwitchAddress(switch, f"127.0.0.1:{grpc}", index + 1)
        for switch in topology.devices:
            self._launch(switch)
        wait_listening([each.address for each in self._addresses.values()], self.check)
        return dict(self._addresses)

    def _launch(self, switch: str) -> None:
        with (self._logs / f"bmv2-{switch}.log").open("wb") as log:
            self._processes[switch] = subprocess.Popen(
                self._commands[switch],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                cwd=self._logs,
            )

    def shape(self, u: str, v: str, **faults: float) -> None:
        raise EmulationError("bmv2 injects no faults and this kernel may have no netem: use SWITCH=softswitch")

    def reboot(self, switch: str) -> None:
        process = self._processes[switch]
        process.kill()
        process.wait()
        self._launch(switch)
        wait_listening([self._addresses[switch].address], self.check)

    def fail(self, switch: str, seconds: float) -> None:
        process = self._processes.pop(switch)
        process.kill()
        process.wait()
        timer = threading.Timer(seconds, self._back, [switch])
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _back(self, switch: str) -> None:
        with self._lock:
            if not self._closed:
                self._launch(switch)

    def cut(self, u: str, v: str) -> None:
        # tbf drops every frame that is larger than its bucket.
        self._tbf(u, v, "rate 1kbit burst 20b limit 20b")

    def mend(self, u: str, v: str) -> None:
        assert self._layout is not None
        topology = self._layout.topology
        self._tbf(u, v, shaping(topology.bandwidth_mbps(u, v)), shaping(topology.bandwidth_mbps(v, u)))

    def _tbf(self, u: str, v: str, there: str, back: str = "") -> None:
        assert self._layout is not None
        for (a, b), tbf in (((u, v), there), ((v, u), back or there)):
            interface = self._layout.fabric_interfaces[a, b]
            command = f"tc qdisc replace dev {interface} root handle 5: tbf {tbf}"
            done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                raise EmulationError(f"{command}: {done.stderr.strip()}")

    def queued_bytes(self, u: str, v: str) -> int:
        raise EmulationError("bmv2 does not tell how long its queues are; softswitch does")

    def drops(self) -> dict[str, dict[str, int]]:
        return {}

    def is_up(self, switch: str) -> bool:
        raise EmulationError("bmv2 does not tell whether it is up; softswitch does")

    def corrupted(self) -> dict[str, int]:
        return {}

    def flip(self, switch: str, registers: str, count: int, most_index: int) -> int:
        raise EmulationError("bmv2 cannot flip bits in its registers; softswitch can")

    def link_counters(self, switch: str | None = None) -> dict[tuple[str, str], InterfaceCounters]:
        return {}

    def check(self) -> None:
        for switch, process in list(self._processes.items()):
            if process.poll() is not None:
                words = (self._logs / f"bmv2-{switch}.log").read_text(errors="replace").strip().splitlines()[-5:]
                raise EmulationError(f"{PROGRAM} of {switch} ended with {process.returncode}: " + " / ".join(words))

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for timer in self._timers:
            timer.cancel()
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
