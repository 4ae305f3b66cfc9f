"""The processes of an emulated WAN: a controller, its backup, and one agent per site."""

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


class Controllers:
    """The process of the controller, and that of its backup if there is one."""

    def __init__(self, host: str, arguments: dict[str, Any], log: Callable[[str], None]) -> None:
        self.host, self.arguments, self.log = host, arguments, log
        self.tasks: list[tuple[float, float]] = []  # (when it ended, duration in seconds) of each task
        self.addresses: list[tuple[str, int]] = []
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *, backs_up: tuple[str, int] | None = None, port: int = 0, number: int | None = None) -> None:
        given = self.arguments | {"host": self.host, "port": port, "backs_up": backs_up}
        process = subprocess.Popen(
            [sys.executable, "-m", "topologies.wan.controller", json.dumps(given)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[2],
        )  # fmt: skip
        if number is None:
            self.processes.append(process)
        else:
            self.processes[number] = process
        assert process.stdout is not None
        which = len(self.processes) - 1
        for line in process.stdout:  # a backup may have something to log before it says where it listens
            said = json.loads(line)
            if "address" in said:
                break
            self._heard(said, which)
        else:
            raise EmulationError("the controller did not start")
        if number is None:
            host, address = said["address"]
            self.addresses.append((host, address))
        threading.Thread(target=self._listen, args=(process, which), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str], number: int) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._heard(json.loads(line), number)

    def _heard(self, said: dict[str, Any], number: int) -> None:
        if "task" in said:
            self.tasks.append((time.monotonic(), said["seconds"]))
        elif " joined (" not in said.get("log", " joined ("):
            self.log(f"{'backup' if number else 'controller'}: {said['log']}")

    def tell(self, sender: str, receiver: str, mbps: float) -> None:
        """Report the present rate of a link between two sites, in Mbit/s one way, to all controllers."""
        for process in self.processes:
            if process.poll() is None and process.stdin is not None:
                process.stdin.write(json.dumps({"sender": sender, "receiver": receiver, "mbps": mbps}) + "\n")
                process.stdin.flush()

    def kill(self) -> None:
        self.processes[0].kill()
        self.processes[0].wait()

    def restart(self) -> None:
        """Start the first controller again, as the backup of the other if there is one."""
        other = self.addresses[1] if len(self.addresses) > 1 else None
        self.start(backs_up=other, port=self.addresses[0][1], number=0)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


class Agents:
    """The agents' processes, one per site."""

    def __init__(
        self, zygote: Zygote, topology: Topology, controllers: Controllers, values: int, keys: Path | None = None
    ) -> None:
        """Prepare the agents; `keys` is the folder with the certificates of all sites (None: plaintext)."""
        self.zygote, self.topology, self.controllers, self.values = zygote, topology, controllers, values
        self.keys = keys
        self.sites = {node: k for k, node in enumerate(topology.servers)}
        self.processes: dict[str, HostProcess] = {}
        self.dead: set[str] = set()

    def start(self, node: str) -> None:
        first, *backups = self.controllers.addresses
        self.processes[node] = self.zygote.spawn(
            node, "topologies.wan.hosts:synchronise",
            {"coordinator": first, "backups": backups, "node": node, "address": self.topology.address(node),
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
