"""Starts the jobs of the day: through Slurm where it is installed, else by `inart run` on their nodes."""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.operate.day import DayJob
from topologies.emulation import Emulation
from topologies.slurm import Slurm

ROOT = Path(__file__).resolve().parents[2]
OVER = {"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY"}


def worker_command(job: DayJob, folder: Path) -> list[str]:
    """Return the command that a node of the job runs."""
    return [
        sys.executable, "-m", "evaluation.operate.worker", "--folder", str(folder), "--operations",
        str(job.operations), "--elements", str(job.elements), "--seed", str(job.seed),
    ]  # fmt: skip


class SlurmLauncher:
    """Starts jobs by `sbatch --comment inart:share`; Slurm chooses the nodes. It may use the hosts of `rack` only when
    these are in the network.
    """

    name = "Slurm (sbatch --comment inart:share)"

    def __init__(self, slurm: Slurm, rack: Sequence[str]) -> None:
        self._slurm, self._rack = slurm, list(rack)
        self._numbers: dict[str, int] = {}
        for node in self._rack:
            slurm.command(["scontrol", "update", f"nodename={node}", "state=drain", "reason=not-there-yet"])

    def start(self, job: DayJob, folder: Path) -> None:
        script = f"cd {ROOT} && srun {shlex.join(worker_command(job, folder))}"
        nodes = self._rack[: job.workers] if job.racked else job.workers
        self._numbers[job.name] = self._slurm.submit(script, nodes=nodes, comment="inart:share")

    def over(self, job: DayJob) -> bool:
        return self._slurm.state(self._numbers[job.name]) in OVER

    def network_name(self, job: DayJob) -> str:
        return f"slurm-{self._numbers[job.name]}"

    def words(self, job: DayJob) -> str:
        said = self._slurm.job(self._numbers[job.name])
        return (
            f"{said['JobState']}: {said.get('AdminComment', '')} {self._slurm.output(self._numbers[job.name])[-500:]}"
        )

    def rack_is_there(self) -> None:
        for node in self._rack:
            self._slurm.command(["scontrol", "update", f"nodename={node}", "state=resume"])


class RunLauncher:
    """Starts jobs by `inart run --share` on each node, on hosts that no other job has: `hosts`, or for some jobs those
    of `rack`.
    """

    name = "inart run"

    def __init__(self, emulation: Emulation, controller: str, hosts: Sequence[str], rack: Sequence[str]) -> None:
        self._emulation, self._controller = emulation, controller
        self._free, self._rack = list(hosts), list(rack)
        self._running: dict[str, list[subprocess.Popen[Any]]] = {}
        self._nodes: dict[str, list[str]] = {}
        self._logs: dict[str, list[Path]] = {}
        self._freed = threading.Condition()

    def start(self, job: DayJob, folder: Path) -> None:
        with self._freed:
            self._freed.wait_for(lambda: job.racked or len(self._free) >= job.workers)
            nodes = self._rack[: job.workers] if job.racked else self._free[: job.workers]
            self._free = [node for node in self._free if node not in nodes]
        given = [
            "--controller",
            self._controller,
            "--nodes",
            ",".join(nodes),
            "--job",
            f"name={job.name}",
            "--share",
            "--wait",
            "240",
        ]
        self._nodes[job.name], self._running[job.name], self._logs[job.name] = nodes, [], []
        for node in nodes:
            log = folder / f"{node}.log"
            self._logs[job.name].append(log)
            words = [sys.executable, "-m", "inart", "run", *given, "--node", node, "--"]
            words += [*worker_command(job, folder), "--nodes", ",".join(nodes)]
            with log.open("wb") as output:
                process = self._emulation.popen(
                    node, words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
            self._running[job.name].append(process)

    def over(self, job: DayJob) -> bool:
        if any(process.poll() is None for process in self._running[job.name]):
            return False
        with self._freed:
            self._free += [node for node in self._nodes[job.name] if node not in (*self._rack, *self._free)]
            self._freed.notify_all()
        return True

    def network_name(self, job: DayJob) -> str:
        return job.name

    def words(self, job: DayJob) -> str:
        return " | ".join(log.read_text(errors="replace").strip()[-300:] for log in self._logs[job.name])

    def rack_is_there(self) -> None:
        """Take note that the rack is in the network; its hosts need nothing more."""


Launcher = SlurmLauncher | RunLauncher
"""A launcher starts a job, and says whether it has ended."""
