"""A network as operators run it: `serve` over TLS, and agents that join two jobs by name with certificates."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.cli.certificates import Wanted, make
from controlplane.cli.controller import main as operate
from controlplane.planner.job import Job
from tests.emulation.rig import paper_testbed
from topologies import Emulation
from topologies.switches import switches_file

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120
JOBS = (Job("one", ("W1", "W2"), ("S1",), 1_000_000), Job("two", ("W2", "W3"), ("S2",), 1_000_000))


@pytest.fixture
def started():
    """Yield started(Popen), which ends that process at the end of the test."""
    processes: list[subprocess.Popen] = []

    def keep(process: subprocess.Popen) -> subprocess.Popen:
        processes.append(process)
        return process

    yield keep
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate()


@pytest.mark.timeout(400)
def test_two_jobs_with_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str], started: Callable) -> None:
    topology = paper_testbed(60.0)
    folder = tmp_path / "certificates"
    make(folder, Wanted(nodes=topology.servers, operators=("alice",)))
    switches = tmp_path / "switches.json"
    with Emulation(topology, "softswitch", seed=1) as emulation:
        switches.write_text(json.dumps(switches_file(emulation.switch_addresses)))
        command = [sys.executable, "-m", "inart", "serve", "--bmv2", "--switches", str(switches)]
        command += ["--topology", "testbed:switch=60,server=40,link=60", "--listen", f"{emulation.controller_host}:0"]
        command += ["--state", str(tmp_path / "state")]
        refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert refused.returncode == 1
        assert "leaves this machine: give --credentials DIR" in refused.stderr
        command += ["--credentials", str(folder / "controller")]
        log = (tmp_path / "log").open("w")
        server = started(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True))
        address = server.stdout.readline().removeprefix("controller serves on ").strip()

        def operator(*words: str, name: str = "operators/alice") -> int:
            return operate([*words, "--controller", address, "--credentials", str(folder / name)])

        for job in JOBS:
            file = tmp_path / f"{job.name}.json"
            file.write_text(json.dumps(job.to_json()))
            assert operator("job", "add", "--job", str(file), name="nodes/W1") == 1
            assert "node W1 may not add a job" in capsys.readouterr().err
            assert operator("job", "add", "--job", str(file)) == 0

        def agent(node: str, job: str, module: str, *words: str, credentials: str = "") -> subprocess.Popen:
            own = folder / "nodes" / (credentials or node)
            line = [
                sys.executable,
                "-m",
                module,
                *words,
                "--controller",
                address,
                "--credentials",
                str(own),
                "--job",
                job,
            ]
            return started(
                emulation.popen(node, line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )

        # A certificate of another node does not make a host that node, whatever addresses it has.
        stranger = agent("W3", "one", "worker_agent", "allreduce", "--node", "W1")
        assert stranger.wait(SECONDS) == 1
        assert "node W3 may not join as W1" in stranger.stderr.read()
        trial = ("allreduce", "--bytes", "100K", "--repeat", "2", "--json")
        workers = []
        for job in JOBS:
            for node in job.parameter_servers:
                agent(node, job.name, "ps_server")
            workers += [agent(node, job.name, "worker_agent", *trial) for node in job.workers]
        for worker in workers:
            out, err = worker.communicate(timeout=SECONDS)
            assert worker.returncode == 0, err
            assert json.loads(out)["error"] <= json.loads(out)["error_bound"]
        assert operator("job", "remove", "one", name="nodes/W2") == 1
        assert operator("job", "remove", "one") == 0
        capsys.readouterr()
        assert operator("job", "list") == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["job", "two"]
        log.close()
        assert "denied" in (tmp_path / "log").read_text()
