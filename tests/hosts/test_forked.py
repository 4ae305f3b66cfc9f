"""A process that is forked from an agent's process (a DataLoader's worker) keeps nothing of the agent and ends as any
other.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from evaluation.hosts.network import StarNetwork
from evaluation.hosts.star import star
from tests.support.examples import nightly

HERE = Path(__file__).resolve()


@pytest.mark.parametrize(
    ("what", "role"),
    [*product(["linger", "end"], ["worker", "server"]), ("loader", "worker"), nightly("loader", "server")],
)
def test_a_forked_process_leaves_the_agent_alone(network: StarNetwork, what: str, role: str) -> None:
    if what == "loader":
        pytest.importorskip("torch")
    job = star(2, 1, hosts=list(network.hosts))
    config = (job.workers if role == "worker" else job.servers)[0]
    command = [sys.executable, "-m", "tests.hosts.forking", what]
    done = subprocess.run(
        ["ip", "netns", "exec", network.hosts[config.node], *command],
        input=config.dumps(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=HERE.parents[2],
    )
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr
