"""A Slurm cluster on an emulated network: munged, slurmctld, and in each host a slurmd of its own.

    with Emulation(topology) as emulation, Slurm(emulation, controller="172.31.0.1:9600") as slurm:
        number = slurm.submit("srun inart allreduce --bytes 1M", nodes=3, comment="inart")
        slurm.wait(number, {"COMPLETED"})

They are Slurm's own daemons, with keys, ports, state and logs in the emulation's folder. They talk over the management
network, as in a cluster, on which this lets hosts reach each other; gradients go over the emulated one. Nodes have the
names of the topology's servers. Prolog, epilog and task prolog are those of examples/slurm/.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from topologies.emulation import Emulation
from topologies.lifetime import MANAGEMENT_ROOT
from topologies.network import MANAGEMENT_INTERFACE, EmulationError
from topologies.ports import free_port

COMMANDS = {
    "slurmctld": "slurmctld", "slurmd": "slurmd", "munged": "munge", "sbatch": "slurm-client",
    "scontrol": "slurm-client", "sinfo": "slurm-client", "scancel": "slurm-client", "srun": "slurm-client",
}  # fmt: skip
"""Programs that have to be installed, and the package of Debian that has each."""
ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "examples" / "slurm"
READY_SECONDS = 90.0
END_SECONDS = 10.0
NODE_PORT = 6818
CONFIGURATION = """\
ClusterName=inart
SlurmctldHost={machine}({root})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/builtin
ReturnToService=2
TreeWidth=65533
KillWait=2
SlurmdTimeout=300
PrologSlurmctld={folder}/prolog
EpilogSlurmctld={folder}/epilog
TaskProlog={folder}/task
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return in words the programs that have to be installed for Slurm; empty when none have to."""
    absent = {package for command, package in COMMANDS.items() if shutil.which(command, path=_path()) is None}
    return " ".join(sorted(absent))


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class Slurm:
    """The cluster, as a context manager. It raises EmulationError when the cluster does not start.

    Args:
        emulation: the network.
        nodes: the hosts that it has (None: all).
        controller: address of InArt's controller.
        settings: more lines of examples/slurm/settings.
    """

    def __init__(
        self,
        emulation: Emulation,
        controller: str,
        nodes: Sequence[str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = emulation.directory / "slurm"
        self._emulation, self._controller = emulation, controller
        self._settings = settings or {}
        self._nodes = list(emulation.topology.servers if nodes is None else nodes)
        self._daemons: dict[str, subprocess.Popen[Any]] = {}
        path = f"{self.folder / 'bin'}{os.pathsep}{_path()}"
        self.environment = emulation.environment | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}
        """The environment of the daemons, and of the jobs, in which `inart` is this checkout's."""

    def __enter__(self) -> Slurm:
        if absent := missing():
            raise EmulationError(f"Slurm is not installed: apt-get install {absent}")
        try:
            self._configure()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the daemons and all processes that they have started."""
        for process in self._daemons.values():
            process.terminate()
        until = time.monotonic() + END_SECONDS
        for process in self._daemons.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for number in _processes_of(self.environment["SLURM_CONF"]):
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._daemons = {}

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def submit(self, script: str, *, nodes: int | Sequence[str], comment: str = "", options: Sequence[str] = ()) -> int:
        """Hand in a batch script (sh), and return the job's number. Raise EmulationError where Slurm refuses it.

        `nodes` says how many nodes, or which.
        """
        wanted = ["-N", str(nodes)] if isinstance(nodes, int) else ["-N", str(len(nodes)), "-w", ",".join(nodes)]
        words = ["sbatch", "--parsable", *wanted, "--ntasks-per-node=1", f"--output={self.folder}/job-%j.out"]
        words += ["--chdir", str(self.folder), *(["--comment", comment] if comment else []), *options]
        return int(self.command(words, f"#!/bin/sh\n{script}\n").split(";")[0])

    def output(self, number: int) -> str:
        """Return what a job has printed so far."""
        try:
            return (self.folder / f"job-{number}.out").read_text(errors="replace")
        except OSError:
            return ""

    def job(self, number: int) -> Mapping[str, str]:
        """Return Slurm's description of a job, by name (JobState, Comment, AdminComment, NodeList ...)."""
        text = self.command(["scontrol", "--oneliner", "show", "job", str(number)])
        return dict(_fields(text))

    def state(self, number: int) -> str:
        """Return a job's state: PENDING, RUNNING, COMPLETED ..."""
        return self.job(number)["JobState"]

    def wait(self, number: int, states: Collection[str], seconds: float = READY_SECONDS) -> str:
        """Return the job's state once it is one of these. Raise EmulationError after so many seconds."""
        self._emulation.wait(
            lambda: self.state(number) in states, f"job {number} is {' or '.join(sorted(states))}", seconds
        )
        return self.state(number)

    def command(self, words: Sequence[str], given: str = "") -> str:
        """Run one of Slurm's commands, and return its output. Raise EmulationError where it fails."""
        done = subprocess.run(
            list(words), env=self.environment, input=given, capture_output=True, text=True, check=False, timeout=60.0
        )
        if done.returncode:
            raise EmulationError(f"{words[0]}: {done.stderr.strip()}")
        return done.stdout

    def logs(self, lines: int = 30) -> str:
        """Return the last lines of the daemons' logs, for error messages."""
        found = []
        for file in sorted(self.folder.glob("*.log")):
            text = file.read_text(errors="replace").splitlines()[-lines:]
            found.append("\n".join([f"-- {file.name}", *text]))
        return "\n".join(found)

    # -- daemons ------------------------------------------------------------------------------------------------------

    def kill_node(self, node: str) -> None:
        """End a node's slurmd and all that it runs with SIGKILL, as a power failure would, and tell slurmctld."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        inside = os.stat(self._emulation.namespace(node)).st_ino
        for number in _processes_of(self.environment["SLURM_CONF"]):
            try:
                if os.stat(f"/proc/{number}/ns/net").st_ino == inside:
                    os.kill(number, signal.SIGKILL)
            except OSError:
                continue
        self.command(["scontrol", "update", f"nodename={node}", "state=down", "reason=killed"])

    def _configure(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in self._nodes)):
            (self.folder / name).mkdir(parents=True, mode=0o700)
        self.folder.chmod(0o755)
        lines = [f"NodeName={node} NodeAddr={self._open(node)} Port={NODE_PORT} CPUs=1" for node in self._nodes]
        text = CONFIGURATION.format(
            machine=socket.gethostname(), root=MANAGEMENT_ROOT, port=free_port(), folder=self.folder,
            nodes="\n".join(lines),
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for name in ("prolog", "epilog", "task"):
            shutil.copy(SCRIPTS / name, self.folder / name)
        (self.folder / "bin").mkdir()
        inart = self.folder / "bin" / "inart"
        inart.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m inart "$@"\n')
        inart.chmod(0o755)
        settings = {"INART_CONTROLLER": self._controller} | {n: self.environment[n] for n in ("PATH", "SLURM_CONF")}
        settings |= self._settings
        (self.folder / "settings").write_text("".join(f"export {name}={value}\n" for name, value in settings.items()))
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o400)

    def _open(self, node: str) -> str:
        """Let a host reach the others over the management network, and return its address there."""
        shown = self._emulation.run(node, ["ip", "-o", "-4", "address", "show", "dev", MANAGEMENT_INTERFACE]).stdout
        address = shown.split()[3].partition("/")[0]
        network = ".".join(MANAGEMENT_ROOT.split(".")[:2]) + ".0.0/16"
        route = ["ip", "route", "replace", network, "via", MANAGEMENT_ROOT, "dev", MANAGEMENT_INTERFACE, "onlink"]
        done = self._emulation.run(node, [*route, "src", address])
        if done.returncode:
            raise EmulationError(f"{node}: {done.stderr.strip()}")
        shown = subprocess.run(["ip", "-o", "route", "get", address], capture_output=True, text=True, check=True).stdout
        end = shown.split(" dev ")[1].split()[0]
        Path(f"/proc/sys/net/ipv4/conf/{end}/forwarding").write_text(
            "1"
        )  # only this interface, which belongs to the emulation
        return address

    def _start(self) -> None:
        where = [f"--{name}-file={self.folder}/munge.{name.split('-')[0]}" for name in ("key", "pid", "log", "seed")]
        munged = ["munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *where]
        self._daemons["munged"] = self._popen(munged, "munged")
        self._emulation.wait(lambda: (self.folder / "munge.socket").exists(), f"munged answers\n{self.logs()}")
        self._daemons["slurmctld"] = self._popen(["slurmctld", "-D", "-i"], "slurmctld")
        for node in self._nodes:
            self._daemons[node] = self._emulation.popen(
                node, ["slurmd", "-D", "-N", node], env=self.environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=(self.folder / f"slurmd-{node}.err").open("wb"),
            )  # fmt: skip
        self._emulation.wait(self._ready, f"all nodes of Slurm are idle\n{self.logs()}", READY_SECONDS)

    def _popen(self, words: Sequence[str], name: str) -> subprocess.Popen[Any]:
        return subprocess.Popen(
            list(words), env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=(self.folder / f"{name}.err").open("wb"), start_new_session=True, cwd=self.folder,
        )  # fmt: skip

    def _ready(self) -> bool:
        for name, process in self._daemons.items():
            if process.poll() is not None:
                words = (self.folder / f"{'slurmd-' if name in self._nodes else ''}{name}.err").read_text()
                raise EmulationError(f"{name} has ended with {process.returncode}: {words}\n{self.logs()}")
        try:
            shown = self.command(["sinfo", "--noheader", "--Node", "--format=%T"])
        except EmulationError:
            return False
        return shown.split() == ["idle"] * len(self._nodes)


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """Return the names and values in a line of `scontrol --oneliner`; values may have spaces in them."""
    name, words = "", [""]
    for word in text.split(" "):
        before, equals, after = word.partition("=")
        if equals and before.isidentifier() and before[0].isupper():
            yield name, " ".join(words)
            name, words = before, [after]
        else:
            words.append(word)
    yield name, " ".join(words).strip()


def _processes_of(configuration: str) -> Iterator[int]:
    """Return the processes that were started with this configuration of Slurm in their environment."""
    needle = f"SLURM_CONF={configuration}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if needle in environment.split(b"\0"):
                yield int(entry.name)
