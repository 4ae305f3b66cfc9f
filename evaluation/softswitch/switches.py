"""The two switches under measurement, each with ports on given interfaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from evaluation.softswitch.client import Client
from evaluation.softswitch.workloads import Workload
from softswitch import Fabric, Program
from topologies.load import process_seconds

BMV2 = "simple_switch_grpc"
BATCH = 500  # entries in a request


class Switch(Protocol):
    """A switch that runs a workload's program."""

    name: str

    def cpu_seconds(self) -> float:
        """Return the CPU time that its threads have used so far."""

    def threads(self) -> list[int]:
        """Return the thread ids of its data plane, at least."""

    def close(self) -> None:
        """Stop the switch."""


def threads_of(pid: int | str) -> list[int]:
    """Return the thread ids of a process."""
    return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]


def resident_bytes(pid: int | str) -> int:
    """Return the private memory of a process, which no other process shares."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if ":" in line
    )
    return sum(int(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty")) * 1024


class Softswitch:
    """softswitch in this process: so many ``devices`` of it in a row, joined by links in memory."""

    def __init__(self, workload: Workload, interfaces: Sequence[str], devices: int = 1) -> None:
        self.name = "softswitch"
        self.fabric = Fabric()
        try:
            program = Program.load(workload.program.read_bytes())
            row = [self.fabric.add_device(n) for n in range(1, devices + 1)]
            for device in row:
                device.load(program)
                for entry in workload.rows:
                    device.insert(entry.table, entry.match, entry.action, entry.params, entry.priority)
            self.device = row[0]
            row[0].add_port(1, interfaces[0])
            row[-1].add_port(2, interfaces[1])
            for n in range(1, devices):
                self.fabric.connect((n, 2), (n + 1, 1))
            self.fabric.start()
        except BaseException:
            self.fabric.close()
            raise

    def cpu_seconds(self) -> float:
        return process_seconds("self")

    def threads(self) -> list[int]:
        return threads_of("self")

    def close(self) -> None:
        self.fabric.close()


class Process:
    """A switch in a process of its own, without program or with a workload's, filled over P4Runtime."""

    name: str

    def __init__(self, command: Sequence[str], interfaces: Sequence[str], environment: dict[str, str] | None = None):
        self.directory = tempfile.TemporaryDirectory(prefix="softswitch-bench-")
        self.address = f"unix:{self.directory.name}/grpc"
        self.process: subprocess.Popen[bytes] | None = None
        self.client: Client | None = None
        arguments = [*command, "--no-p4", "--device-id", "1"]
        for port, interface in enumerate(interfaces, 1):
            arguments += ["-i", f"{port}@{interface}"]
        null = subprocess.DEVNULL
        try:
            self.process = subprocess.Popen(
                [*arguments, "--", "--grpc-server-addr", self.address], stdin=null, stdout=null, stderr=null,
                env=None if environment is None else {**os.environ, **environment},
            )  # fmt: skip
            self.client = Client(self.address)
        except BaseException:
            self.close()
            raise

    def fill(self, workload: Workload) -> None:
        """Load the workload's program and entries."""
        assert self.client is not None
        self.client.load(workload)
        self.client.send(self.client.requests(workload.rows, BATCH))

    def cpu_seconds(self) -> float:
        assert self.process is not None
        return process_seconds(self.process.pid)

    def threads(self) -> list[int]:
        assert self.process is not None
        return threads_of(self.process.pid)

    def resident_bytes(self) -> int:
        assert self.process is not None
        return resident_bytes(self.process.pid)

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self.directory.cleanup()


class SoftswitchProcess(Process):
    """A process with ``python -m softswitch``; ``environment`` is added to this process's."""

    def __init__(self, interfaces: Sequence[str] = (), environment: dict[str, str] | None = None) -> None:
        self.name = "softswitch"
        super().__init__([sys.executable, "-m", "softswitch"], interfaces, environment)


class Bmv2(Process):
    """A process with ``simple_switch_grpc`` from PATH."""

    def __init__(self, workload: Workload | None = None, interfaces: Sequence[str] = ()) -> None:
        self.name = "bmv2"
        super().__init__([BMV2], interfaces)
        if workload is not None:
            try:
                self.fill(workload)
            except BaseException:
                self.close()
                raise

    @staticmethod
    def missing() -> str | None:
        """Return why bmv2 cannot be measured; None if it can."""
        return None if shutil.which(BMV2) else f"{BMV2} is not on PATH"


def is_root() -> bool:
    return os.geteuid() == 0
