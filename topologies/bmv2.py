"""One `simple_switch_grpc` process for each switch."""

import subprocess
from pathlib import Path

from topologies.network import EmulationError
from topologies.switches import Layout, SwitchAddress, free_ports, wait_listening

PROGRAM = "simple_switch_grpc"


class Bmv2:
    """Links between switches are veth pairs, shaped by Mininet. Faults cannot be injected here."""

    kind = "bmv2"
    links_in_memory = False

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        self._environment: dict[str, str] = {}
        self._addresses: dict[str, SwitchAddress] = {}
        self._logs = Path()

    def start(self, layout: Layout, environment: dict[str, str]) -> dict[str, SwitchAddress]:
        topology, self._logs = layout.topology, layout.directory
        ports = free_ports(len(topology.switches) * 2)
        self._environment = environment
        # Builds with Thrift listen on a fixed port unless told another; builds without it do not know the option.
        options = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=False).stdout
        for index, switch in enumerate(topology.switches):
            grpc, thrift = ports[2 * index : 2 * index + 2]
            command = [PROGRAM, "--no-p4", "--device-id", str(index + 1), "--log-level", "error"]
            if "--thrift-port" in options:
                command += ["--thrift-port", str(thrift)]
            for neighbour in topology.neighbours(switch):
                interface = layout.host_interfaces.get(neighbour) or layout.fabric_interfaces[switch, neighbour]
                command += ["-i", f"{topology.port(switch, neighbour)}@{interface}"]
            command += ["--", "--grpc-server-addr", f"127.0.0.1:{grpc}"]
            self._commands[switch] = command
            self._addresses[switch] = SwitchAddress(f"127.0.0.1:{grpc}", index + 1)
        for switch in topology.switches:
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

    def drops(self) -> dict[str, dict[str, int]]:
        return {}

    def check(self) -> None:
        for switch, process in self._processes.items():
            if process.poll() is not None:
                words = (self._logs / f"bmv2-{switch}.log").read_text(errors="replace").strip().splitlines()[-5:]
                raise EmulationError(f"{PROGRAM} of {switch} ended with {process.returncode}: " + " / ".join(words))

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
