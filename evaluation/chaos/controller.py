"""The controller under chaos: a process of its own, which is killed, stopped, given a wrong clock and a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from evaluation.chaos.skewed import Clock
from topologies.emulation import Emulation
from topologies.network import EmulationError
from topologies.switches import switches_file

ROOT = Path(__file__).resolve().parents[2]
DISK = "size=2m,mode=700"
START_SECONDS = 60.0
AGAIN_SECONDS = 1.0
"""Seconds after which a controller that has ended by itself is started again, as a service manager would do."""
SAYS = "controller serves on "


class ControllerProcess:
    """A process `inart serve`, with its state on a small disk of its own (a tmpfs in a mount namespace
    that is removed with the emulation) and a clock of its own (see `skewed`). While it is wanted it is started again
    whenever it ends.
    """

    def __init__(self, emulation: Emulation, topology: Path) -> None:
        self._emulation, self._topology = emulation, topology
        self._directory = emulation.directory / "controller"
        self._directory.mkdir()
        self.clock = Clock(emulation.directory / "clock")
        self._log = (emulation.directory / "controller.log").open("wb")
        self._keeper = self._mount()
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._over = threading.Event()
        self._ready = threading.Event()
        self.address = f"{emulation.controller_host}:0"
        self.starts = 0
        self.ended: list[str] = []
        """Last lines of the controller's log, for each time that it ended by itself."""
        self._thread = threading.Thread(target=self._supervise, name="controller", daemon=True)
        self._thread.start()

    def start(self, seconds: float = START_SECONDS) -> None:
        """Start the controller, and return when it serves. Raise EmulationError where it does not within so many
        seconds.
        """
        self._wanted.set()
        if not self._ready.wait(seconds):
            raise EmulationError(f"the controller does not serve after {seconds:.0f} s: {self.last_words()}")

    def kill(self) -> int:
        """Kill the controller (SIGKILL), and return its process id. It is not started again until `back`."""
        with self._lock:
            self._wanted.clear()
            process = self._process
            if process is None:
                return 0
            process.kill()
            process.wait()
            return process.pid

    def back(self) -> None:
        """Start the controller again, without waiting for it."""
        self._wanted.set()

    def send(self, number: signal.Signals) -> int:
        """Send a signal to the process that runs now. Return its id, or 0 where none runs."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                return 0
            self._process.send_signal(number)
            return self._process.pid

    @property
    def disk(self) -> Path:
        """Path of its state, as this process reaches it."""
        return Path(f"/proc/{self._keeper.pid}/root{self._directory}")

    def fill_disk(self) -> int:
        """Fill the disk completely. Return how many bytes that took."""
        filled = 0
        with open(self.disk / "filler", "wb", buffering=0) as file, suppress(OSError):
            while True:
                filled += file.write(bytes(4096))
        return filled

    def free_disk(self) -> None:
        (self.disk / "filler").unlink(missing_ok=True)

    def agents(self) -> dict[str, Any]:
        """Return the configurations of agents in the controller's state, by job and node; empty where the state cannot
        be read.
        """
        try:
            kept = json.loads((self.disk / "jobs.json").read_text())
        except (OSError, ValueError):
            return {}
        return {entry["job"]["name"]: entry["agents"] for entry in kept["jobs"]}

    def last_words(self, lines: int = 8) -> str:
        text = (self._emulation.directory / "controller.log").read_text(errors="replace").strip()
        return "\n".join(text.splitlines()[-lines:]) or "it said nothing"

    def close(self) -> None:
        self._over.set()
        self._wanted.set()
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
        self._thread.join(10.0)
        self._keeper.kill()
        self._keeper.wait()
        self._log.close()

    def _mount(self) -> subprocess.Popen[bytes]:
        """Start a process that only keeps the mount namespace."""
        words = f"mount -t tmpfs -o {DISK} chaos {self._directory} && echo mounted && exec sleep infinity"
        keeper = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", words],
            env=self._emulation.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert keeper.stdout is not None
        if keeper.stdout.readline() != b"mounted\n":
            raise EmulationError("the controller's disk cannot be made: this machine lets root mount no tmpfs")
        return keeper

    def _supervise(self) -> None:
        while not self._over.is_set():
            self._wanted.wait()
            if self._over.is_set():
                return
            with self._lock:
                if not self._wanted.is_set():
                    continue
                process = self._process = self._popen()
            assert process.stdout is not None
            self._serve(process.stdout)
            process.wait()
            self._ready.clear()
            if self._wanted.is_set() and not self._over.is_set():
                self.ended.append(f"ended by itself with {process.returncode}: {self.last_words(3)}")
                self._over.wait(AGAIN_SECONDS)

    def _serve(self, output: IO[str]) -> None:
        for line in output:
            if line.startswith(SAYS):
                self.address = line.removeprefix(SAYS).strip()
                self.starts += 1
                self._ready.set()

    def _popen(self) -> subprocess.Popen[str]:
        switches = self._emulation.directory / "switches.json"
        switches.write_text(json.dumps(switches_file(self._emulation.switch_addresses)))
        command = [
            "nsenter", f"--target={self._keeper.pid}", "--mount", sys.executable, "-m", "evaluation.chaos.skewed",
            str(self.clock.file), "controlplane.cli.serve", "--bmv2", "--switches", str(switches),
            "--topology", str(self._topology), "--listen", self.address, "--insecure",
            "--state", str(self._directory),
        ]  # fmt: skip
        environment = self._emulation.environment | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log,
            text=True, start_new_session=True,
        )  # fmt: skip


def process_state(pid: int | None) -> str:
    """Return the state of a process, as the letter of /proc (T: stopped by a signal; Z or X: dead); X for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def stopped(pid: int | None) -> bool:
    """Return whether the process is stopped by a signal."""
    return process_state(pid) == "T"


def dead(pid: int | None) -> bool:
    return process_state(pid) in "ZX"


def eventually(condition: Any, seconds: float = 5.0) -> bool:
    """Return whether the condition holds within so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
