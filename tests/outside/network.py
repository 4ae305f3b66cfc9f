"""Nodes with an agent each, one parameter server and a software switch between them, for other projects' test suites.

The ranks of a suite run outside the namespaces and talk gloo over loopback; each reaches "its" node's agent over a Unix
socket, and the agents' packets go through the switch.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from evaluation.hosts.network import StarNetwork
from evaluation.hosts.star import TreeShape, star
from tests.hook.conftest import ROOT, Network
from tests.support.star_switch import Switch
from tests.support.waiting import wait_until

VALUES_PER_PACKET = 256
RATE_MBPS = 400


class Nodes:
    """Nodes w0, w1, ... with agents that listen, and a parameter server; closing it ends all of them.

    Attributes:
        agents: where each node's agent listens ("unix:/path"), for `BackendOptions(agent=...)` or $INART_AGENT.
        network: the switch and the controller, for tests that look at them.
    """

    def __init__(self, number: int = 4) -> None:
        job = star(number, 1, [TreeShape(0, 1.0, True)], rate_mbps=RATE_MBPS, gathers=True)
        hosts = (*job.workers, *job.servers)
        self._processes: list[subprocess.Popen] = []
        self._folder = tempfile.TemporaryDirectory(prefix="inart-outside-")
        self._namespaces = StarNetwork("inart-to", [host.node for host in hosts], [host.address for host in hosts])
        try:
            self._switch = Switch(self._namespaces.middle, self._namespaces.ports(), VALUES_PER_PACKET)
            self.network = Network(Path(self._folder.name), job, self._namespaces, self._switch)
            self._start("s0", "ps_server", "--controller", self.network.address)
            self.agents = [self._start_agent(worker.node) for worker in job.workers]
            wait_until(lambda: all(Path(one.removeprefix("unix:")).exists() for one in self.agents), "agents listen")
        except BaseException:
            self.close()
            raise

    def _start_agent(self, node: str) -> str:
        path = f"{self._folder.name}/{node}.sock"
        self._start(node, "worker_agent", "serve", "--controller", self.network.address, "--socket", path)
        return f"unix:{path}"

    def _start(self, node: str, *command: str) -> None:
        """Start a module of ours on a node.

        Its output goes to a file, since a pipe that nobody reads fills up in a long run.
        """
        words = ["ip", "netns", "exec", self._namespaces.hosts[node], sys.executable, "-m", *command]
        with open(f"{self._folder.name}/{node}.log", "wb") as log:
            self._processes.append(subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT))

    def log(self) -> str:
        """Return the output of agents, parameter server and controller."""
        parts = [f"{path.name}: {path.read_text()}" for path in sorted(Path(self._folder.name).glob("*.log"))]
        return "\n".join([*parts, *self.network.log])

    def added(self) -> int:
        """Return how many chunks the switch has completed; a higher value than before means that data went through
        it.
        """
        return self._switch.verdicts()["completed"]

    def close(self) -> None:
        """End everything that was started; may be called again, or after a start that failed."""
        for process in self._processes:
            process.kill()
            process.wait()
        for name in ("network", "_switch", "_namespaces"):
            part = getattr(self, name, None)
            if part is not None:
                part.close()
        self._folder.cleanup()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
