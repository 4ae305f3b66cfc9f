"""An emulated network on whose hosts `mpirun` starts a program: one rank a host, and a job of all of them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from controlplane.planner.topology import Topology
from topologies import Emulation
from topologies.deployment import Fabric

ROOT = Path(__file__).resolve().parents[2]


def missing() -> str:
    """Return why MPI programs cannot run on this machine; empty where they can."""
    absent = [name for name in ("mpirun", "mpicc") if shutil.which(name) is None]
    if not absent:
        return ""
    return f"{' and '.join(absent)} not on PATH (Debian: apt-get install openmpi-bin libopenmpi-dev)"


def compiled(source: Path, folder: Path) -> Path:
    """Compile an MPI program. Raise RuntimeError with the compiler's message."""
    program = folder / source.stem
    words = ["mpicc", "-std=gnu11", "-O2", "-Wall", str(source), "-o", str(program), "-lm"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return program


class MpiNetwork:
    """Hosts and switches, a controller without any job, and a program that `mpirun` uses instead of ssh to start
    programs on the hosts. A context manager.
    """

    def __init__(self, topology: Topology, hosts: int) -> None:
        self.hosts = topology.servers[:hosts]
        self._topology = topology
        self.emulation = Emulation(topology, "softswitch")
        self._folder = tempfile.TemporaryDirectory(prefix="inart-mpi-")
        self.folder = Path(self._folder.name)

    def __enter__(self) -> MpiNetwork:
        with ExitStack() as stack:
            stack.enter_context(self._folder)
            stack.enter_context(self.emulation)
            self.service = stack.enter_context(stack.enter_context(Fabric(self.emulation)).control())
            self._stack = stack.pop_all()
        self._enter = self.folder / "enter"
        cases = [f"{host}) pid={self.emulation.net[host].pid} ;;" for host in self.hosts]
        words = ["#!/bin/sh", "host=$1; shift", "case $host in", *cases, "esac"]
        # mpirun passes words for a shell, as to ssh.
        words.append('exec mnexec -a "$pid" unshare --uts sh -c \'hostname "$0" && exec sh -c "$1"\' "$host" "$*"')
        self._enter.write_text("\n".join(words) + "\n")
        self._enter.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def command(self, program: Sequence[str]) -> list[str]:
        """Return the command line that runs the program, a rank on each host, over the network, in the job "mpi"."""
        inart = [sys.executable, "-m", "inart"]
        nodes = ",".join(reversed(self.hosts))  # MPI's ranks need not have the order of the job's workers.
        return self.plain([*inart, "run", "--nodes", nodes, "--job", "name=mpi", "--", *inart, "mpi", "--", *program])

    def plain(self, program: Sequence[str]) -> list[str]:
        """Return the command line that runs the program with a rank on each host, by Open MPI alone."""
        network = self._topology.address(self.hosts[0]).rsplit(".", 2)[0] + ".0.0/16"
        settings = {
            "plm_rsh_agent": str(self._enter), "plm_rsh_no_tree_spawn": "1", "btl": "tcp,self", "pml": "ob1",
            "btl_tcp_if_include": network, "oob_tcp_if_include": network, "hwloc_base_binding_policy": "none",
            "mpi_yield_when_idle": "1", "orte_tmpdir_base": str(self.folder),
        }  # fmt: skip
        words = ["mpirun", "--allow-run-as-root", "-H", ",".join(self.hosts), "-np", str(len(self.hosts))]
        for name, value in settings.items():
            words += ["--mca", name, value]
        return [*words, "-x", "PYTHONPATH", "-x", "INART_CONTROLLER", "-x", "INART_MPI_REPORT", *map(str, program)]

    def run(
        self, words: Sequence[str], seconds: float, more: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one of these command lines from the first host, to its end. Raise subprocess.TimeoutExpired."""
        environment = {
            "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root"), "PYTHONPATH": str(ROOT),
            "INART_CONTROLLER": self.service.address, "INART_MPI_REPORT": "1", **(more or {}),
        }  # fmt: skip
        first = self.hosts[0]
        named = ["unshare", "--uts", "sh", "-c", f"hostname {first} && exec {shlex.join(words)}"]
        process = self.emulation.popen(
            first, named, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            output, errors = process.communicate(timeout=seconds)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(words, process.returncode, output, errors)
