"""The real torchrun launcher in two emulated nodes of two ranks, with the c10d rendezvous between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.planner.job import place_job
from controlplane.planner.strategies import get_strategy
from tests.emulation.rig import SEED, paper_testbed
from topologies import Emulation
from topologies.deployment import Fabric

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300.0


@pytest.mark.timeout(600)  # Six processes import torch.
def test_torchrun_trains_through_the_switches(tmp_path):
    topology = paper_testbed(100.0)
    job = place_job(topology, 2, 1, seed=SEED)
    plan = get_strategy("inart")(topology, job, seed=SEED)
    processes: list[subprocess.Popen] = []
    with Emulation(topology, "softswitch", seed=SEED) as emulation:
        fabric = Fabric(emulation)
        with fabric, fabric.serve(plan) as service:
            server = [sys.executable, "-m", "ps_server", "--controller", service.address]
            try:
                for node in job.parameter_servers:
                    processes.append(emulation.popen(node, server, cwd=ROOT, stdout=subprocess.DEVNULL))
                trainers = []
                for node in job.workers:
                    environment = {
                        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                        "PYTHONPATH": str(ROOT),
                        "NODES": "2",
                        "RANKS": "2",
                        "MASTER": topology.address(job.workers[0]),
                        "LOCAL_ADDR": topology.address(node),
                        "GLOO_SOCKET_IFNAME": emulation.interface(node),
                        "INART_CONTROLLER": service.address,
                        "OMP_NUM_THREADS": "1",
                    }
                    script = ["sh", "examples/launch/torchrun.sh", "--how", "hook", "--steps", "5", "--width", "32"]
                    script += ["--layers", "1", "--output", str(tmp_path / "run.json")]
                    log = (tmp_path / f"{node}.log").open("w")
                    trainers.append(
                        emulation.popen(node, script, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
                    )
                processes += trainers
                codes = [trainer.wait(SECONDS) for trainer in trainers]
            finally:
                for process in processes:
                    if process.poll() is None:
                        process.terminate()
                    process.wait(30)
    said = "\n".join((tmp_path / f"{node}.log").read_text()[-3000:] for node in job.workers)
    assert codes == [0, 0], said
    report = json.loads((tmp_path / "run.json").read_text())
    assert report["world_size"] == 4
    assert report["in_network"], said
    assert report["metrics"]["steps_in_network"] == 5
