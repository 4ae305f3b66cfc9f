"""torchft's Manager with its lighthouse over ProcessGroupInArt: two replica groups train, one dies and comes back.

    python -m tests.outside.torchft_manager [--json]       # as root

Each replica group is a process with the agent of a node of its own. Both do steps of torchft's DDP together; one kills
itself in the middle of a step, so that the other's sum cannot end; that one goes on alone; the first is started again,
gets the other's parameters from the Manager, and both go on together. torchft lies in the environment of
`python -m tests.outside.recipes --install`. The command ends with 1 when something is not as it should be.
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

from tests.outside import recipes
from tests.outside.network import Nodes
from topologies.ports import free_port

NEEDS = ("torchft",)
TOGETHER, ALONE, MOST_ROUNDS = 3, 3, 20
"""Steps of each part, and the most rounds that one may take, with those that do not count."""


class Replica:
    """A replica group of one rank."""

    def __init__(self, name: str, agent: str, lighthouse: str, folder: Path) -> None:
        self.name = name
        self._log = (folder / f"{name}.log").open("a")
        environment = os.environ | {
            "PYTHONPATH": str(recipes.ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo", "INART_AGENT": agent, "TORCHFT_LIGHTHOUSE": lighthouse, "RANK": "0",
            "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": name,
        }  # fmt: skip
        command = [recipes.interpreter(), "-m", "tests.outside.torchft_manager_rank", name]
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
def lighthouse() -> Iterator[str]:
    """torchft's lighthouse; its address."""
    code = (
        "from torchft.coordination import LighthouseServer as L\n"
        "s = L(bind='[::]:0', min_replicas=1, join_timeout_ms=2000)\n"
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


def run() -> dict[str, Any]:
    """Return the numbers of the last step of each part, and chunks that the switch added up in it."""
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        nodes = stack.enter_context(Nodes(2))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inart-torchft-")))
        address = stack.enter_context(lighthouse())

        def start(number: int) -> Replica:
            replica = Replica(str(number), nodes.agents[number], address, folder)
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
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    arguments = parser.parse_args()
    if why := recipes.missing(*NEEDS):
        parser.error(why)
    found = run()
    right = not found["lost"]["counted"] and all(found[name]["chunks"] for name in ("together", "together again"))
    print(json.dumps(found) if arguments.json else "\n".join(f"{name}: {what}" for name, what in found.items()))
    return int(not right)


if __name__ == "__main__":
    raise SystemExit(main())
