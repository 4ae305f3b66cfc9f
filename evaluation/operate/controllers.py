"""The pair of controllers of the day: two processes that share an etcd, of which one leads."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from controlplane.cli.pair import LOST_STATUS
from controlplane.common.rpc.client import ControllerError, fetch_status
from controlplane.planner.topology import Topology
from p4src.artifacts import ARTIFACTS
from topologies.emulation import Emulation
from topologies.etcd import Etcd
from topologies.network import EmulationError
from topologies.ports import free_ports
from topologies.switches import switches_file

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "v1model-256"
NAMES = ("a", "b")
START_SECONDS = 120.0
LOOK_SECONDS = 0.3
VERB_SECONDS = 240.0
TAKE_OVER_SECONDS = "15"
"""Seconds of the leader's silence after which the other controller takes over: on a busy machine a living leader is
silent for seconds.
"""


class Controllers:
    """Both controllers, and their etcd. Raises EmulationError if etcd is not installed.

    Attributes:
        address: the addresses of both, as agents and commands take them.
    """

    def __init__(self, emulation: Emulation) -> None:
        self._emulation = emulation
        self._folder = emulation.directory / "controllers"
        self._folder.mkdir()
        self._switches, self._topology = self._folder / "switches.json", self._folder / "network.json"
        self._addresses = switches_file(emulation.switch_addresses)
        self._artifacts = PROGRAM
        self._ports = dict(zip(NAMES, free_ports(2), strict=True))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._builds = 0
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="controllers", daemon=True)
        self._etcd = Etcd(self._folder / "etcd", emulation.environment)
        self.address = ",".join(f"{emulation.controller_host}:{port}" for port in self._ports.values())

    def know(self, topology: Topology) -> None:
        """Write the files that both read."""
        self._topology.write_text(json.dumps(topology.to_json()))
        self._switches.write_text(json.dumps({name: self._addresses[name] for name in topology.switches}))

    def start(self) -> None:
        """Start both controllers, and return when one leads and the other waits. Raise EmulationError."""
        self._start(NAMES[0])
        self._leads(NAMES[0], 1)
        self._start(NAMES[1])
        self._says(NAMES[1], "waiting: ")
        self._keeper.start()

    def verb(self, *words: str) -> str:
        """Run a verb of `inart`, and return its output. Raise EmulationError when it fails."""
        command = [sys.executable, "-m", "inart", *words, "--controller", self.address]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=self._emulation.environment, capture_output=True, text=True, check=False,
                timeout=VERB_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise EmulationError(f"inart {words[0]} has not ended after {VERB_SECONDS:.0f} s") from None
        if done.returncode:
            raise EmulationError(f"inart {' '.join(words)}: {done.stderr.strip()[-500:]}")
        return done.stdout.strip()

    def kill_leader(self) -> str:
        """Kill the leader, and return when the other controller leads. `mend` starts the killed one again."""
        leader = self._leader()
        other = next(name for name in NAMES if name != leader)
        before = self._led(other)
        self._processes[leader].kill()
        self._processes[leader].wait()
        self._leads(other, before + 1)
        return f"{other} leads instead of {leader}"

    def mend(self) -> None:
        """Start the controller that was killed again."""
        with self._lock:
            for name in NAMES:
                if self._processes[name].poll() is not None:
                    self._start(name)

    def _keep(self) -> None:
        """Start a controller again that has ended by itself because it leads no more, as a service manager does."""
        while not self._ended.wait(LOOK_SECONDS):
            with self._lock:
                for name in NAMES:
                    if self._processes[name].poll() == LOST_STATUS:
                        self._start(name)

    def upgrade(self) -> str:
        """Replace controller and program by another build, with jobs running (docs/operate.md, "Upgrades")."""
        self.mend()
        self._builds += 1
        build = self._folder / f"build-{self._builds}"
        shutil.copytree(ARTIFACTS / PROGRAM, build)
        with (build / "inart.json").open("a") as file:
            file.write("\n" * self._builds)  # Switches know a program by its digest: to them this is another one.
        self._artifacts = str(build)
        leader = self._leader()
        other = next(name for name in NAMES if name != leader)
        self._processes[other].terminate()
        self._processes[other].wait()
        waits = self._said(other).count("waiting: ")
        self._start(other)
        self._says(other, "waiting: ", waits + 1)
        before = self._led(other)
        self._processes[leader].terminate()
        self._processes[leader].wait()
        self._leads(other, before + 1)
        self._start(leader)
        loaded = [line for line in self._said(other).splitlines() if "program loaded on" in line]
        return loaded[-1].partition("program")[2].strip() if loaded else ""

    def close(self) -> None:
        self._ended.set()
        if self._keeper.is_alive():
            self._keeper.join()
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL)
            process.wait()
        self._etcd.close()

    def last_words(self) -> str:
        return "\n".join(f"-- {name}\n{self._said(name)[-1500:]}" for name in self._processes)

    def _start(self, name: str) -> None:
        command = [
            sys.executable, "-m", "inart", "serve", "--topology", str(self._topology), "--bmv2",
            "--switches", str(self._switches), "--insecure", "--config", str(self._config(name)),
            "--listen", f"{self._emulation.controller_host}:{self._ports[name]}",
            "--state", str(self._folder / name),
        ]  # fmt: skip
        environment = self._emulation.environment | {"PYTHONUNBUFFERED": "1"}
        with (self._folder / f"{name}.log").open("a") as log:
            self._processes[name] = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _config(self, name: str) -> Path:
        """Write the settings of a controller to a file; return its path."""
        file = self._folder / f"{name}.toml"
        file.write_text(
            f'[switches]\nartifacts = "{self._artifacts}"\n[controller]\nname = "{name}"\n'
            f'store = "etcd://{self._etcd.address}/day"\ntakeover_after = {TAKE_OVER_SECONDS}\n'
        )
        return file

    def _said(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _led(self, name: str) -> int:
        """Return how often this controller has begun to lead."""
        return self._said(name).count("controller serves on")

    def _leads(self, name: str, times: int) -> None:
        self._says(name, "controller serves on", times)

    def _says(self, name: str, words: str, times: int = 1) -> None:
        until = time.monotonic() + START_SECONDS
        while self._said(name).count(words) < times:
            self._emulation.switches.check()
            ended = self._processes[name].poll()
            if ended not in (None, LOST_STATUS):
                raise EmulationError(f"controller {name} has ended with {ended}:\n{self.last_words()}")
            if time.monotonic() > until:
                raise EmulationError(f"controller {name} does not say {words!r}:\n{self.last_words()}")
            time.sleep(0.05)

    def _leader(self) -> str:
        """Return the name of the controller that answers."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            self.mend()
            for name, port in self._ports.items():
                try:
                    fetch_status(f"{self._emulation.controller_host}:{port}", timeout=5.0)
                except ControllerError:
                    continue
                return name
            time.sleep(0.2)
        raise EmulationError(f"no controller leads:\n{self.last_words()}")
