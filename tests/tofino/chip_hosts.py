"""Real agents in namespaces around Intel's model of a chip: an all-reduce with loss, or training beside gloo.

    export INART_TOFINO_MODEL=... INART_TOFINO2_MODEL=...          (tests/tofino/chip.py)
    python -m tests.tofino.chip_hosts --bytes 64Ki --loss 0.01 [--tofino 2 [--artifacts t2na-128]] [--ours]
    python -m tests.tofino.chip_hosts --train 20 --loss 0.01 [--tofino 2] [--ours]

As root. One switch, workers and a parameter server; deploy, agents and frames are real, the driver is our BRI server
(standin.py). --ours: our own model of the program in the chip's place. --train: examples/train_digits.py as it is, the
same steps once through the switch and once over gloo; gloo itself has a network of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from controlplane.planner.topology import Topology
from p4src.tofino_install import GENERATIONS
from tests.support.config import config
from tests.support.waiting import wait_until
from tests.tofino.chip import missing
from tests.tofino.standin import add_program, program_of
from tests.tofino.test_system import sde
from topologies.tofino_model import Wiring

SWITCH, ROOT = "V1", "S1"
PREFIX, BRIDGE, BESIDE = "inart-c", "inart-cb", "172.29.0"
"""The prefix of the namespaces, the bridge of the network beside the switch, and the first three bytes of its
addresses.
"""
FINISHED = {"allreduce": 1800.0, "train": 3600.0}
"""Seconds after which a run is taken to hang; a model of a chip is slow."""
PATIENT = "import sys, worker_agent.__main__ as it; it.WAIT_SECONDS = 900.0; sys.exit(it.main(sys.argv[1:]))"
"""The worker's command, which waits for Intel's model of the chip."""


def network(workers: int, tofino: str) -> Topology:
    """Return a topology of workers and a parameter server on one switch."""
    speed = {"1": "100G", "2": "400G"}[tofino]
    servers = [*(f"W{number}" for number in range(1, workers + 1)), ROOT]
    nodes: dict[str, dict[str, Any]] = {SWITCH: {"kind": "switch", "fan_in": 31}}
    if tofino == "1":
        nodes[SWITCH]["loopback_ports"] = [{"front_panel": f"{len(servers) + 1}/0", "speed": speed}]
    links = []
    for number, server in enumerate(servers, 1):
        role = "parameter_server" if server == ROOT else "worker"
        nodes[server] = {"kind": "server", "role": role}
        panel = {"bandwidth_mbps": 1000.0, "front_panel": {SWITCH: f"{number}/0"}, "speed": speed, "fec": "rs"}
        links += [(server, SWITCH, panel), (SWITCH, server, panel)]
    return Topology(nodes, links, "around-a-chip")


class Around:
    """The namespaces and processes of a run. Must be used with ``with``; at its end nothing is left of them."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.topology = network(options.workers, options.tofino)
        self.wiring = Wiring(self.topology, folder, PREFIX, "10.77", options.tofino)
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.files: list[IO[str]] = []
        self.environment = {
            "SDE_INSTALL": sde(folder / "sde"),
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONPATH": os.getcwd(),
        }
        self.controller = f"unix:{folder}/controller"

    def __enter__(self) -> Around:
        self.wiring.make(self.options.mbps)
        self._beside()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
        for file in self.files:
            file.close()
        self.wiring.remove()
        subprocess.run(["ip", "link", "del", BRIDGE], check=False)

    def _beside(self) -> None:
        """Make a network of the hosts that does not go through the switch."""
        commands = [f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up"]
        for number, server in enumerate(self.topology.servers):
            space, end = f"{PREFIX}{server}", f"{BRIDGE}{number}"
            commands += [
                f"link add {end} type veth peer name beside netns {space}",
                f"link set {end} master {BRIDGE} up",
                f"-n {space} address add {self.beside(server)}/24 dev beside",
                f"-n {space} link set beside up",
            ]
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True)

    def beside(self, server: str) -> str:
        """Return a host's address on the network beside the switch."""
        return f"{BESIDE}.{self.topology.servers.index(server) + 1}"

    def start(self, name: str, *command: object, inside: bool = True, **environment: str) -> subprocess.Popen[str]:
        """Start a module with arguments in a node's namespace; its output goes to a file of its name."""
        words = [sys.executable, *map(str, command)]
        if inside:
            words = [*self.wiring.enter(name.partition(".")[0]).split(), *words]
        self.files.append((self.folder / f"{name}.log").open("w"))
        self.processes[name] = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=self.files[-1],
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.environment, **environment},
        )
        return self.processes[name]

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def until(self, name: str, text: str, seconds: float = 300.0) -> None:
        def said() -> bool:
            if text not in self.said(name) and self.processes[name].poll() is not None:
                raise SystemExit(f"{name} has ended and did not say {text!r}: {self.said(name)}")
            return text in self.said(name)

        wait_until(said, lambda: f"{name} says {text!r}: {self.said(name)}", seconds)

    def end(self, name: str, seconds: float) -> str:
        """Wait until a process has ended without error and return its output."""
        status = self.processes.pop(name).wait(seconds)
        if status:
            raise SystemExit(f"{name} ended with {status}: {self.said(name)[-3000:]}")
        return self.said(name)

    def deploy(self) -> None:
        """Start switch, controller and parameter server."""
        chip = [] if self.options.ours else ["--chip"]
        ports = self.folder / SWITCH / "ports.json"
        kind = ["--tofino", self.options.tofino]
        named = ["--artifacts", self.options.artifacts] if self.options.artifacts else []
        ours = ports, *kind, *named, *chip, "--loss", self.options.loss, "--seed", 1
        self.start(SWITCH, "-m", "tests.tofino.standin", *ours)
        self.until(SWITCH, "BRI on port")
        files = [f"--{name}={self.folder / name}.json" for name in ("switches", "topology")]
        served = ["--no-state", "--job", "name=job", "--listen", self.controller]
        if self.options.artifacts:
            served += config(self.folder, switches={"artifacts": self.options.artifacts})
        self.start("serve", "-m", "controlplane.cli.serve", *kind, *files, *served, inside=False)
        self.until("serve", "controller serves on")
        self.start(ROOT, "-m", "ps_server", "--controller", self.controller)

    def counted(self) -> dict[str, int]:
        """Return the switch's verdict counters; the switch process ends with that."""
        process = self.processes.pop(SWITCH)
        process.communicate(timeout=300)
        return json.loads(self.said(SWITCH).splitlines()[-1])

    @property
    def workers(self) -> list[str]:
        return [server for server in self.topology.servers if server != ROOT]

    def allreduce(self) -> None:
        """Run one all-reduce on every worker and return their outputs."""
        for worker in self.workers:
            self.start(
                worker, "-c", PATIENT, "allreduce", "--bytes", self.options.bytes, "--repeat", 1, "--json",
                "--controller", self.controller, "--node", worker,
            )  # fmt: skip
        for worker in self.workers:
            print(worker, self.end(worker, FINISHED["allreduce"]).splitlines()[-1], flush=True)

    def train(self, hook: str) -> dict[str, Any]:
        """Run the example over ``hook`` and return its report."""
        for rank, worker in enumerate(self.workers):
            self.start(
                f"{worker}.{hook}", "examples/train_digits.py", "--hook", hook, "--steps", self.options.train,
                "--width", 1, "--rate", 0.1, "--node", worker, "--output", self.folder / f"{hook}.json",
                RANK=str(rank), WORLD_SIZE=str(len(self.workers)), MASTER_ADDR=self.beside(self.workers[0]),
                MASTER_PORT=str(29600 + len(hook)), GLOO_SOCKET_IFNAME="beside", INART_CONTROLLER=self.controller,
            )  # fmt: skip
        for worker in self.workers:
            self.end(f"{worker}.{hook}", FINISHED["train"])
        return json.loads((self.folder / f"{hook}.json").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tofino.chip_hosts", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--tofino", choices=sorted(GENERATIONS), default="1", help="generation (default: %(default)s)")
    add_program(parser)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--bytes", default="64Ki", help="of a worker's tensor (default: %(default)s)")
    parser.add_argument("--train", type=int, default=0, metavar="STEPS", help="train so many steps instead")
    parser.add_argument("--loss", type=float, default=0.01, help="share of frames lost at each port, each way")
    parser.add_argument("--mbps", type=float, default=0.05, help="what links carry (default: %(default)s)")
    parser.add_argument("--ours", action="store_true", help="our own model of the program, no chip")
    options = parser.parse_args()
    reason = None if options.ours else missing(program_of(options))
    if os.geteuid():
        reason = "making network namespaces needs root"
    if reason:
        print(reason, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="inart-around-") as scratch, Around(Path(scratch), options) as around:
        around.deploy()
        print("deployed", flush=True)
        began = time.monotonic()
        if options.train:
            through, gloo = around.train("inart"), around.train("gloo")
            for step, (ours, theirs) in enumerate(zip(through["losses"], gloo["losses"], strict=True), 1):
                print(f"step {step}: loss {ours:.6f} through the switch, {theirs:.6f} over gloo")
            print(f"{through['parameters']} parameters, all in the network: {through['in_network']}")
        else:
            around.allreduce()
        print(f"{time.monotonic() - began:.0f} s; switch: {around.counted()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
