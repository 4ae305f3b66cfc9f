"""The processes of an emulated WAN: the controller, and one agent per site."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controlplane.planner.topology import Topology
from topologies.network import EmulationError
from topologies.zygote import HostProcess, Zygote

READY_SECONDS = 120.0


class CoordinatorProcess:
    """The process of the controller, which can be killed and started again at its address."""

    def __init__(self, host: str, arguments: dict[str, Any], log: Callable[[str], None]) -> None:
        self.arguments, self.log = arguments, log
        self.tasks: list[tuple[float, float]] = []  # (when it ended, duration in seconds) of each task
        self.address: tuple[str, int] = (host, 0)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process. Raise EmulationError if it does not start."""
        host, port = self.address
        given = self.arguments | {"host": host, "port": port}
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", "topologies.wan.controller", json.dumps(given)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[2],
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            if "address" in said:
                break
            self._heard(said)
        else:
            raise EmulationError("the controller did not start")
        self.address = (host, int(said["address"][1]))
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._heard(json.loads(line))

    def _heard(self, said: dict[str, Any]) -> None:
        if "task" in said:
            self.tasks.append((time.monotonic(), said["seconds"]))
        elif " joined (" not in said.get("log", " joined ("):
            self.log(f"controller: {said['log']}")

    def tell(self, sender: str, receiver: str, mbps: float) -> None:
        """Report the present rate of a link between two sites, in Mbit/s one way, to the controller."""
        process = self._process
        if process is not None and process.poll() is None and process.stdin is not None:
            process.stdin.write(json.dumps({"sender": sender, "receiver": receiver, "mbps": mbps}) + "\n")
            process.stdin.flush()

    def close(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Agents:
    """The agents' processes, one per site."""

    def __init__(
        self, zygote: Zygote, topology: Topology, controller: CoordinatorProcess, values: int, keys: Path | None = None
    ) -> None:
        """Prepare the agents; `keys` is the folder with the certificates of all sites (None: plaintext)."""
        self.zygote, self.topology, self.controller, self.values = zygote, topology, controller, values
        self.keys = keys
        self.sites = {node: k for k, node in enumerate(topology.servers)}
        self.processes: dict[str, HostProcess] = {}
        self.dead: set[str] = set()

    def start(self, node: str) -> None:
        self.processes[node] = self.zygote.spawn(
            node, "topologies.wan.hosts:synchronise",
            {"coordinator": self.controller.address, "node": node, "address": self.topology.address(node),
             "sites": self.sites, "values": self.values,
             "credentials": str(self.keys / "nodes" / node) if self.keys else None},
        )  # fmt: skip

    def begin(self, node: str) -> None:
        self.processes[node].receive(READY_SECONDS)
        self.processes[node].send("begin")

    def kill(self, node: str) -> None:
        self.dead.add(node)
        self.processes[node].kill()

    def restart(self, node: str) -> None:
        self.start(node)
        self.begin(node)
        self.dead.discard(node)

    def end(self) -> list[dict[str, Any]]:
        """End the agents that live, and return their reports (topologies/wan/hosts.py)."""
        reports = []
        for node, process in self.processes.items():
            if node not in self.dead:
                process.send("end")
        for node, process in self.processes.items():
            if node not in self.dead:
                reports.append(process.receive(READY_SECONDS))
        return reports
