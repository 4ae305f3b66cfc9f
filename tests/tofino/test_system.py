"""The documented commands work on the wiring of a tofino-model, with our model of the switch in its place."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from controlplane.planner.frontpanel import FrontPanelPort
from controlplane.planner.generators import parse_topology
from tests.support.waiting import wait_until
from tests.tofino.conftest import TESTBED
from topologies import tofino_model
from topologies.tofino_model import ModelError, Wiring, device_port

SECONDS = 60.0
Start = Callable[..., subprocess.Popen[str]]


def test_device_ports_are_those_of_the_models_front_panel():
    """A few ports are compared with the table in the driver's source, and all are different."""
    known = {(1, 0): 60, (7, 0): 36, (16, 3): 3, (17, 0): 128, (32, 0): 188, (33, 0): 316, (48, 1): 257, (64, 0): 444}
    for (connector, channel), device in known.items():
        assert device_port(FrontPanelPort(connector, channel, "25G")) == device
    assert len({device_port(FrontPanelPort(c, n, "25G")) for c in range(1, 65) for n in range(4)}) == 256
    with pytest.raises(ModelError, match="no front-panel port 65/0"):
        device_port(FrontPanelPort(65, 0, "100G"))


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root")


@pytest.fixture
def wiring(tmp_path) -> Iterator[Wiring]:
    number = random.SystemRandom().randrange(1000)
    made = Wiring(parse_topology(TESTBED), tmp_path, f"inart-t{number}", f"10.{200 + number % 50}")
    yield made
    made.remove()


@pytest.fixture
def start(tmp_path) -> Iterator[Start]:
    """Yield start(name, command, ...), which starts a process whose output goes to a file of that name; it ends with
    the test.
    """
    running: list[subprocess.Popen[str]] = []
    files: list[IO[str]] = []

    def begin(name: str, *command: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        files.append((tmp_path / name).open("w"))
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=files[-1], stderr=subprocess.STDOUT, text=True, env=environment
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.terminate()
    for process in running:
        process.communicate(timeout=SECONDS)
    for file in files:
        file.close()


def says(file: Path, text: str) -> None:
    wait_until(lambda: text in file.read_text(), lambda: f"{file.name} says {text!r}: {file.read_text()}", SECONDS)


def sde(root: Path) -> str:
    """Return the folder of an SDE whose client is our own: the value of $SDE_INSTALL when nothing else sets it."""
    package = root / "lib/python3/site-packages/tofino/bfrt_grpc"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "client.py").write_text("from tests.tofino.wire.client import *\n")
    return str(root)


@needs_root
@pytest.mark.namespaces
def test_all_reduce_over_bri_real_agents_and_the_programs_model(wiring, start, tmp_path):
    """serve --tofino, agents, frames and recirculation work as documented, and deploy remove leaves nothing."""
    environment = {"SDE_INSTALL": sde(tmp_path / "sde"), **os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    try:
        wiring.make()
    except ModelError as error:
        if "tc " in str(error):
            pytest.skip(f"this kernel does not redirect packets: {error}")
        raise
    python = sys.executable, "-m"
    models = {}
    for switch in wiring.topology.switches:
        ports = str(tmp_path / switch / "ports.json")
        models[switch] = start(f"{switch}.log", *wiring.enter(switch).split(), *python, "tests.tofino.standin", ports)
    switches = "--switches", str(tmp_path / "switches.json")
    for switch in models:
        says(tmp_path / f"{switch}.log", "BRI on port")
    served = "--listen", f"unix:{tmp_path}/controller", "--topology", str(tmp_path / "topology.json")
    serve = *python, "controlplane.cli.serve", "--tofino", "--no-state", "--job", "name=job", "--strategy", "atp"
    controller = start("serve.log", *serve, *switches, *served, environment=environment)
    says(tmp_path / "serve.log", "controller serves on")
    agents = {}
    for server in wiring.topology.servers:
        what = ("ps_server",)
        if wiring.topology.role(server) == "worker":
            what = "worker_agent", "allreduce", "--bytes", "16000", "--repeat", "1", "--json"
        command = *wiring.enter(server).split(), *python, *what, "--controller", f"unix:{tmp_path}/controller"
        agents[server] = start(f"{server}.log", *command)
    for server, agent in agents.items():
        if wiring.topology.role(server) == "worker":
            assert agent.wait(SECONDS) == 0, (tmp_path / f"{server}.log").read_text()
    for model in models.values():
        print(file=model.stdin, flush=True)
    for switch in models:
        says(tmp_path / f"{switch}.log", "}\n")
    controller.terminate()
    assert controller.wait(SECONDS) == 0
    removed = subprocess.run(
        [*python, "controlplane.cli.deploy", "remove", "--tofino", *switches],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert "removed 72 entries from 2 switches" in removed.stderr
    for switch, model in models.items():
        model.communicate(timeout=SECONDS)
        # Resends of a busy machine may still be under way when the entries are removed: they are unknown then.
        before, counted = map(json.loads, (tmp_path / f"{switch}.log").read_text().splitlines()[-2:])
        # On a busy machine resends flush some sums, which then leave at once.
        most = counted["completed"] + counted.get("flushed", 0)
        assert 0 < counted["completed"] <= counted["went round"] <= most, counted
        assert "refused" not in counted and "unknown" not in before, (before, counted)


@needs_root
@pytest.mark.namespaces
def test_wiring_that_fails_in_the_middle_leaves_nothing(wiring, monkeypatch):
    real = tofino_model.run
    monkeypatch.setattr(tofino_model, "run", lambda command: real(command.replace("mirred", "no-such-action")))
    with pytest.raises(ModelError, match="no-such-action"):
        wiring.make()
    assert not list(Path("/run/netns").glob(f"{wiring.prefix}*"))


@needs_root
@pytest.mark.namespaces
def test_wiring_that_is_there_is_left_alone(wiring):
    subprocess.run(["ip", "netns", "add", f"{wiring.prefix}W2"], check=True)
    with pytest.raises(ModelError, match=f"there is a namespace {wiring.prefix}W2 already"):
        wiring.make()
    assert [path.name for path in Path("/run/netns").glob(f"{wiring.prefix}*")] == [f"{wiring.prefix}W2"]
