"""torchft's Manager with its lighthouse over ProcessGroupInArt: two replica groups train, one dies and comes back.

    python -m tests.outside.torchft_manager [--algorithm ddp|local|diloco] [--json]       # as root

Each replica group is a process with the agent of a node of its own. Both do steps of torchft's DDP together, or rounds
of its LocalSGD or DiLoCo (torchft.local_sgd); one kills itself in the middle of a step, so that the other's sum cannot
end; that one goes on alone; the first is started again, gets the other's parameters from the Manager, and both go on
together. The parameters after rounds of LocalSGD and DiLoCo are compared with those over gloo. torchft lies in the
environment of `python -m tests.outside.recipes --install`. The command ends with 1 when something is not as it should
be.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.outside import recipes
from tests.outside.network import Nodes
from topologies.ports import free_port

NEEDS = ("torchft",)
LARGEST = 1e-5
"""Parameters may differ so much from those over gloo, as a part of their change: switches add fixed-point numbers."""

TOGETHER, ALONE, MOST_ROUNDS = 3, 3, 20
"""Steps of each part, and the most rounds that one may take, with those that do not count."""


class Replica:
    """A replica group of one rank."""

    def __init__(
        self, name: str, agent: str, lighthouse: str, folder: Path, *, algorithm: str = "ddp", group: str = "inart"
    ) -> None:
        self.name = name
        self._log = (folder / f"{name}.log").open("a")
        environment = os.environ | {
            "PYTHONPATH": str(recipes.ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo", "INART_AGENT": agent, "TORCHFT_LIGHTHOUSE": lighthouse, "RANK": "0",
            "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": name,
        }  # fmt: skip
        command = [recipes.interpreter(), "-m", "tests.outside.torchft_manager_rank", name, algorithm, group]
        self.process = subprocess.Popen(
            command, env=environment, cwd=recipes.ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log,
        )  # fmt: skip

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None, "it is a pipe"
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Return the next object that it prints. Raises RuntimeError when it has ended."""
        assert self.process.stdout is not None, "it is a pipe"
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(
            f"replica {self.name} ended with {self.process.wait()}: {Path(self._log.name).read_text()[-4000:]}"
        )

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._log.close()


@contextmanager
def lighthouse(least: int = 1) -> Iterator[str]:
    """torchft's lighthouse; its address. least: replicas with which a step begins."""
    code = (
        "from torchft.coordination import LighthouseServer as L\n"
        f"s = L(bind='[::]:0', min_replicas={least}, join_timeout_ms=2000)\n"
        "print(s.address(), flush=True)\ninput()"
    )
    process = subprocess.Popen(
        [recipes.interpreter(), "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    try:
        assert process.stdout is not None, "it is a pipe"
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def one_round(replicas: list[Replica]) -> list[dict[str, Any]]:
    """Have each do a step; returns what each said last. Who has done one without the others does another while they
    have not answered: who comes back is let in only with another's next step."""
    said: dict[Replica, dict[str, Any]] = {}
    busy = list(replicas)
    for replica in replicas:
        replica.tell("go")
    while busy:
        streams = {replica.process.stdout: replica for replica in busy}
        for stream in select.select(list(streams), [], [])[0]:
            replica = streams[stream]
            said[replica] = replica.hear()
            if said[replica]["replicas"] < len(replicas) and len(busy) > 1:
                replica.tell("go")
            else:
                busy.remove(replica)
    return [said[replica] for replica in replicas]


def steps(replicas: list[Replica], wanted: int) -> list[dict[str, Any]]:
    """Have them do steps until so many in a row counted with just these replicas; returns what they said of the last.
    Raises RuntimeError when that takes too many, or when their parameters differ then."""
    row = 0
    for _ in range(MOST_ROUNDS):
        said = one_round(replicas)
        row = row + 1 if all(one["counted"] and one["replicas"] == len(replicas) for one in said) else 0
        if row == wanted:
            if len({(one["step"], one["digest"]) for one in said}) != 1:
                raise RuntimeError(f"the replicas' parameters differ: {said}")
            return said
    raise RuntimeError(f"no {wanted} steps of {len(replicas)} replicas in a row: {said}")


def beside_gloo(algorithm: str) -> float:
    """Return the largest difference of a parameter after the same rounds over our group and over gloo, as a part of the
    largest change of one."""
    found: dict[str, np.ndarray] = {}
    with ExitStack() as stack:
        nodes = stack.enter_context(Nodes(2))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inart-torchft-")))
        for group in ("inart", "gloo"):
            with lighthouse(2) as address, ExitStack() as running:
                replicas = []
                for name in ("0", "1"):
                    given = name, nodes.agents[int(name)], address, folder
                    replicas.append(Replica(*given, algorithm=algorithm, group=group))
                    running.callback(replicas[-1].close)
                for replica in replicas:
                    replica.hear()
                for when in ("before", "after"):
                    replicas[0].tell(f"save {folder}/{when}.npy")
                    replicas[0].hear()
                    if when == "before":
                        steps(replicas, TOGETHER)
                found[group] = np.load(folder / "after.npy")
            if not nodes.added():
                raise RuntimeError("the switch has added up nothing")
        change = np.abs(found["gloo"] - np.load(folder / "before.npy")).max()
    return float(np.abs(found["inart"] - found["gloo"]).max() / change)


def run(algorithm: str = "ddp") -> dict[str, Any]:
    """Return the numbers of the last step of each part, and chunks that the switch added up in it."""
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        nodes = stack.enter_context(Nodes(2))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inart-torchft-")))
        address = stack.enter_context(lighthouse())

        def start(number: int) -> Replica:
            replica = Replica(str(number), nodes.agents[number], address, folder, algorithm=algorithm)
            stack.callback(replica.close)
            return replica

        def part(name: str, replicas: list[Replica], wanted: int) -> None:
            before = nodes.added()
            said = steps(replicas, wanted)
            found[name] = {"step": said[0]["step"], "replicas": said[0]["replicas"], "chunks": nodes.added() - before}

        both = [start(0), start(1)]
        for replica in both:
            replica.hear()
        part("together", both, TOGETHER)
        both[0].tell("go")
        both[1].tell("die")
        both[1].process.wait()
        found["lost"] = both[0].hear()
        part("alone", both[:1], ALONE)
        both[1] = start(1)
        both[1].hear()
        part("together again", both, TOGETHER)
        for replica in both:
            replica.tell("end")
            replica.process.wait()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.torchft_manager", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--algorithm", choices=("ddp", "local", "diloco"), default="ddp", help="(default: ddp)")
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    arguments = parser.parse_args()
    if why := recipes.missing(*NEEDS):
        parser.error(why)
    found = run(arguments.algorithm)
    if arguments.algorithm != "ddp":
        found["beside gloo"] = beside_gloo(arguments.algorithm)
    right = found.get("beside gloo", 0.0) < LARGEST and not found["lost"]["counted"]
    right = right and all(found[name]["chunks"] for name in ("together", "together again"))
    print(json.dumps(found) if arguments.json else "\n".join(f"{name}: {what}" for name, what in found.items()))
    return int(not right)


if __name__ == "__main__":
    raise SystemExit(main())
