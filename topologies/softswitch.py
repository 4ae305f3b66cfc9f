"""The switches of an emulation in one softswitch process, controlled over its control socket."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from controlplane.planner.topology import Topology
from controlplane.planner.topology_cables import beyond, port_back
from controlplane.targets.base import SwitchAddress
from topologies.network import EmulationError
from topologies.switches import START_SECONDS, InterfaceCounters, Layout

CONTROL_SECONDS = 30.0
MOST_DOWN_SECONDS = 600.0  # softswitch accepts at most this.
# The queue holds the burst that a host's queue sends at once (topologies.network.BURST_BYTES), and TCP beside it.
QUEUE_PACKETS = 512
# Seconds that a link may run ahead of its schedule. Frames that came together leave together (a timer and a system call
# for each would cost more than the frames), and the rate measured over seconds stays the same.
BURST_SECONDS = 0.01
LEAST_BURST_BYTES = 2 * 1514
THREAD_NAME = "softswitch"  # name of the threads that forward frames


def port_burst_bytes(mbps: float) -> int:
    """Return the token bucket in bytes of a switch's port of this rate."""
    return max(LEAST_BURST_BYTES, int(mbps * 1e6 / 8 * BURST_SECONDS))


def put_first(pid: int) -> None:
    """Give the switches' threads real-time priority, if this user may.

    Hardware switches do not wait for a processor. Where tens of agents share it, frames were lost only because
    softswitch was scheduled last.
    """
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().strip() == THREAD_NAME:
                os.sched_setscheduler(int(task.name), os.SCHED_RR, os.sched_param(1))


def launched(
    words: Sequence[str], log: Path, *, enter: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], str]:
    """Start `python -m softswitch` with these words, and return its process and the line with which it says that it is
    ready.

    Args:
        log: file of its output.
        enter: words before the command, such as those that enter a namespace.
        environment: variables of its environment; None: those of this process.

    Raises:
        EmulationError: it ends before it is ready; the message has the end of its log.
    """
    reader, writer = os.pipe()
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*enter, sys.executable, "-m", "softswitch", *words, "--ready-fd", str(writer)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[writer],
                env=environment,
                start_new_session=True,
                cwd=Path(__file__).resolve().parent.parent,
            )
    finally:
        os.close(writer)
    with os.fdopen(reader) as ready:
        line = ready.readline()  # The line is empty if the process ends before it is ready.
    if not line.startswith("READY "):
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        raise EmulationError(f"softswitch did not start: {last_words(log)}")
    return process, line


def ask(control: Path, command: str, timeout: float | None = CONTROL_SECONDS, **arguments: Any) -> Any:
    """Send one command over a control socket and return the answer. Raise EmulationError where it fails."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(control))
            connection.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            with connection.makefile("rb") as answers:
                answer = json.loads(answers.readline() or b'{"ok": false, "error": "no answer"}')
    except OSError as error:
        raise EmulationError(f"softswitch does not answer on its control socket: {error}") from error
    if not answer["ok"]:
        raise EmulationError(f"softswitch: {command}: {answer['error']}")
    return answer["result"]


def last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return "\n".join(lines[-8:]) or "it said nothing"


class Softswitch:
    """All switches as one softswitch process, with links in memory. Rate, delay and faults are those of the sending
    port.
    """

    kind = "softswitch"
    links_in_memory = True
    takes_offloads = True

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._topology: Topology | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = Path()

    def start(self, layout: Layout, environment: dict[str, str]) -> dict[str, SwitchAddress]:
        self._topology, self._directory = layout.topology, layout.directory
        file = self._directory / "fabric.json"
        file.write_text(json.dumps(self.description(layout), indent=1))
        self._process, line = launched(["fabric", str(file)], self._log, environment=environment)
        put_first(self._process.pid)
        address = dict(part.split("=", 1) for part in line.split()[1:])["grpc"]
        return {switch: SwitchAddress(switch, address, i) for i, switch in enumerate(layout.topology.devices, 1)}

    def description(self, layout: Layout) -> dict[str, Any]:
        """Return the content of the fabric file (softswitch/docs/guide.md)."""
        topology = layout.topology
        devices = []
        for device_id, switch in enumerate(topology.devices, 1):
            ports: list[dict[str, Any]] = []
            for neighbour in topology.neighbours(switch):
                port: dict[str, Any] = {"port": topology.port(switch, neighbour)}
                delay = topology.delay_ms(switch, neighbour)
                interface = layout.to_host(switch, neighbour)
                if interface is not None:
                    port["interface"] = interface
                    # A host cannot delay what it sends (no netem), so the delays of both directions are on the way to
                    # it.
                    delay += topology.delay_ms(neighbour, switch)
                else:
                    other = beyond(topology, switch, neighbour)
                    delay += topology.delay_ms(neighbour, other) if other != neighbour else 0.0
                    port["peer"] = {"device": other, "port": port_back(topology, switch, neighbour)}
                rate = topology.bandwidth_mbps(switch, neighbour)
                port["shape"] = {
                    "rate_mbps": rate,
                    "burst_bytes": port_burst_bytes(rate),
                    "queue_packets": QUEUE_PACKETS,
                }
                if delay:
                    port["shape"]["delay_ms"] = delay
                ports.append(port)
            devices.append({"id": device_id, "name": switch, "ports": ports})
        return {
            "grpc": "127.0.0.1:0",
            "control": str(self._control),
            "seed": self._seed,
            "devices": devices,
        }

    def shape(self, u: str, v: str, **faults: float) -> None:
        assert self._topology is not None
        if u not in self._topology.devices:
            raise EmulationError(f"{u} is a host: only what a switch sends can be shaped; shape {v} -> {u} instead")
        self._call("shape", device=u, port=self._topology.port(u, v), shape=faults)

    def reboot(self, switch: str) -> None:
        self._call("reboot", device=switch)

    def fail(self, switch: str, seconds: float) -> None:
        def off() -> None:
            with contextlib.suppress(EmulationError):  # The emulation ended in the meantime.
                self._call("reboot", timeout=None, device=switch, down_s=min(seconds, MOST_DOWN_SECONDS))

        threading.Thread(target=off, name=f"off-{switch}", daemon=True).start()

    def cut(self, u: str, v: str) -> None:
        self.shape(u, v, loss=1.0)
        self.shape(v, u, loss=1.0)

    def mend(self, u: str, v: str) -> None:
        self.shape(u, v, loss=0.0)
        self.shape(v, u, loss=0.0)

    def link_counters(self, switch: str | None = None) -> dict[tuple[str, str], InterfaceCounters]:
        assert self._topology is not None
        found = {}
        asked: dict[str, Any] = {} if switch is None else {"device": switch}
        for device in self._call("stats", **asked)["devices"].values():
            name = device["name"]
            for neighbour in self._topology.neighbours(name):
                port = device["ports"][str(self._topology.port(name, neighbour))]
                counted = port["rx_bytes"], port["rx_packets"], port["tx_bytes"], port["tx_packets"]
                found[name, neighbour] = InterfaceCounters(*counted)
        return found

    def queued_bytes(self, u: str, v: str) -> int:
        assert self._topology is not None
        (device,) = self._call("stats", device=u)["devices"].values()
        return int(device["ports"][str(self._topology.port(u, v))]["queued_bytes"])

    def drops(self) -> dict[str, dict[str, int]]:
        result: dict[str, dict[str, int]] = {}
        for device in self._call("stats")["devices"].values():
            total: dict[str, int] = {}
            for port in device["ports"].values():
                for reason, count in port["drops"].items():
                    total[reason] = total.get(reason, 0) + count
            result[device["name"]] = total
        return result

    def is_up(self, switch: str) -> bool:
        return all(each["p4runtime"]["up"] for each in self._call("stats", device=switch)["devices"].values())

    def corrupted(self) -> dict[str, int]:
        devices = self._call("stats")["devices"].values()
        return {each["name"]: sum(port["corrupted"] for port in each["ports"].values()) for each in devices}

    def flip(self, switch: str, registers: str, count: int, most_index: int) -> int:
        flipped = self._call("flip", device=switch, register=registers, count=count, most_index=most_index)
        return len(flipped)

    def check(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise EmulationError(f"softswitch ended with {self._process.returncode}: {last_words(self._log)}")

    def close(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()

    @property
    def _control(self) -> Path:
        return self._directory / "control"

    @property
    def _log(self) -> Path:
        return self._directory / "softswitch.log"

    def _call(self, command: str, timeout: float | None = CONTROL_SECONDS, **arguments: Any) -> Any:
        """Send one command, and return the answer. Raise EmulationError where it fails."""
        self.check()
        return ask(self._control, command, timeout, **arguments)
