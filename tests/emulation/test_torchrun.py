"""The real torchrun launcher in two emulated nodes, with the c10d rendezvous between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.planner.job import place_job
from tests.emulation.rig import SEED, paper_testbed
from topologies import Emulation
from topologies.deployment import Fabric

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300.0


@pytest.mark.timeout(600)  # Four processes import torch.
def test_torchrun_trains_through_the_switches(tmp_path):
    """`inart run` on both nodes adds the job and takes it off; the nodes are its parameter servers, too."""
    topology = paper_testbed(100.0)
    nodes = place_job(topology, 2, 1, seed=SEED).workers
    trainers: list[subprocess.Popen] = []
    with Emulation(topology, "softswitch", seed=SEED) as emulation:
        fabric = Fabric(emulation)
        with fabric, fabric.control() as service:
            try:
                for node in nodes:
                    environment = {
                        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                        "PYTHONPATH": str(ROOT),
                        "NODES": "2",
                        "RANKS": "1",
                        "MASTER": topology.address(nodes[0]),
                        "LOCAL_ADDR": topology.address(node),
                        "GLOO_SOCKET_IFNAME": emulation.interface(node),
                        "INART_CONTROLLER": service.address,
                        "OMP_NUM_THREADS": "1",
                    }
                    run = [sys.executable, "-m", "inart", "run", "--nodes", ",".join(nodes), "--"]
                    script = ["sh", "examples/launch/torchrun.sh", "--how", "hook", "--steps", "5", "--width", "32"]
                    script += ["--layers", "1", "--output", str(tmp_path / "run.json")]
                    log = (tmp_path / f"{node}.log").open("w")
                    trainers.append(
                        emulation.popen(
                            node, [*run, *script], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
                        )
                    )
                codes = [trainer.wait(SECONDS) for trainer in trainers]
                left = [job.name for job in service.network.jobs]
            finally:
                for process in trainers:
                    if process.poll() is None:
                        process.terminate()
                    process.wait(30)
    said = "\n".join((tmp_path / f"{node}.log").read_text()[-3000:] for node in nodes)
    assert codes == [0, 0], said
    assert f"parameter servers {', '.join(nodes)}" in said and not left
    report = json.loads((tmp_path / "run.json").read_text())
    assert report["world_size"] == 2
    assert report["in_network"], said
    assert report["metrics"]["steps_in_network"] == 5
