"""A star of network namespaces around a label switch, with a controller; and waiting with a deadline."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.runtime.controller import Controller
from controlplane.runtime.epochs import EpochStore
from controlplane.runtime.jobs import PlanSummary, RunningJob
from controlplane.runtime.roster import Roster
from evaluation.hosts.hub import Hub, TreeShape, star
from evaluation.hosts.network import StarNetwork, inside
from p4src.protocol import VERSION

ROOT = Path(__file__).resolve().parents[2]


def wait_until(condition: Callable[[], object], what: str = "", seconds: float = 30.0) -> None:
    """Poll a condition; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


class Network:
    """Workers w0, w1 and parameter server s0 in namespaces, summed in the middle; a controller on a Unix socket."""

    def __init__(self, folder: Path) -> None:
        self.star = star(2, 1, [TreeShape(0, 1.0, True)], rate_mbps=400)
        self.configs = {config.node: config for config in (*self.star.workers, *self.star.servers)}
        self.folder = folder
        self.log: list[str] = []
        self.processes: list[subprocess.Popen] = []
        names = list(self.configs)
        self.namespaces = StarNetwork("inart-th", names, [config.address for config in self.configs.values()])
        with inside(self.namespaces.middle):
            self.hub = Hub(self.namespaces.ports(), 256)
        self.star.program(self.hub)
        self.hub.start()
        roster = Roster(self.configs, EpochStore(folder / "epoch"), VERSION, self.log.append, grace=0.5)
        self.controller = Controller(RunningJob(PlanSummary("star", "hub", 400.0), roster), log=self.log.append)
        self.address = f"unix:{folder}/controller.sock"
        self.controller.start(self.address)

    def run(self, node: str, *command: str, **options) -> subprocess.Popen:
        """A Python module as a process on a node."""
        words = ["ip", "netns", "exec", self.namespaces.hosts[node], sys.executable, "-m", *command]
        process = subprocess.Popen(
            words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
        )
        self.processes.append(process)
        return process

    def run_server(self) -> subprocess.Popen:
        return self.run("s0", "ps_server", "--controller", self.address)

    def joined(self, *nodes: str) -> bool:
        return set(nodes) <= set(self.controller.roster.members())

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.controller.stop()
        self.hub.close()
        self.namespaces.close()


@pytest.fixture
def network(tmp_path) -> Iterator[Network]:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces and raw sockets")
    made = Network(tmp_path)
    yield made
    made.close()
