"""Fixtures: a star of network namespaces around a switch with a controller."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from controlplane.common.log_lines import calling
from controlplane.service.controller import Controller
from controlplane.service.network import Settings
from evaluation.hosts.network import StarNetwork
from evaluation.hosts.star import Star, TreeShape, star
from tests.support.served import serve
from tests.support.star_switch import Switch

ROOT = Path(__file__).resolve().parents[2]


class Network:
    """Workers w0, w1 and parameter server s0 in namespaces with a switch between them, and a controller on a Unix
    socket.
    """

    def __init__(self, folder: Path, job: Star, namespaces: StarNetwork, switch: Switch) -> None:
        self.star, self.namespaces, self.switch = job, namespaces, switch
        self.configs = {config.node: config for config in (*self.star.workers, *self.star.servers)}
        self.folder = folder
        self.log: list[str] = []
        self.processes: list[subprocess.Popen] = []
        switch.renew(job.rules, 256)
        self.began = time.monotonic()
        log = calling(self.note)
        network = serve(self.configs, folder, log, Settings(grace=0.5, patience=0.5))
        self.controller = Controller(network, log=log)
        self.address = f"unix:{folder}/controller.sock"
        self.controller.start(self.address)

    def note(self, line: str) -> None:
        """The status of the controller, and the time of each change."""
        self.log.append(f"{time.monotonic() - self.began:7.2f} s  {line}")

    def run(self, node: str, *command: str, before: Sequence[str] = (), **options) -> subprocess.Popen:
        """Start a Python module as a process on a node; `before`: the command that runs it."""
        words = ["ip", "netns", "exec", self.namespaces.hosts[node], *before, sys.executable, "-m", *command]
        process = subprocess.Popen(
            words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
        )
        self.processes.append(process)
        return process

    def run_server(self) -> subprocess.Popen:
        return self.run("s0", "ps_server", "--controller", self.address)

    @property
    def roster(self):
        """The roster of the only job."""
        return self.controller.jobs.get().roster

    def joined(self, *nodes: str) -> bool:
        return set(nodes) <= set(self.roster.members())

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            said = process.communicate()[1] or ""
            words = [str(word) for word in process.args]  # type: ignore[union-attr]
            self.log += [f"{' '.join(words[-4:])}: {line}" for line in said.splitlines()[-10:]]
        self.controller.stop()


@pytest.fixture(scope="session")
def middle() -> Iterator[tuple[Star, StarNetwork, Switch]]:
    """The job, its hosts and the switch between them, for all tests."""
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    job = star(2, 1, [TreeShape(0, 1.0, True)], rate_mbps=400, gathers=True).beside()
    agents = (*job.workers, *job.servers)
    with (
        StarNetwork("inart-th", [a.node for a in agents], [a.address for a in agents]) as namespaces,
        Switch(namespaces.middle, namespaces.ports(), 256) as switch,
    ):
        yield job, namespaces, switch


@pytest.fixture
def network(tmp_path, middle: tuple[Star, StarNetwork, Switch]) -> Iterator[Network]:
    made = Network(tmp_path, *middle)
    yield made
    made.close()
    print(*made.log[-80:], sep="\n")
