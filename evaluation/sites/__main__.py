"""Measures the time to a given loss across emulated sites, by DiLoCo over `inart.sites` and by gloo (root).

DiLoCo over PCCL is measured, too, where PCCL's Python package can be imported (evaluation/sites/with_pccl.py): `pccl`
as it is, `pccl-ring` with its sites in the order of the best ring of the emulated links (evaluation/sites/rings.py).

    python -m evaluation.sites --network aws netstorm --systems diloco gloo
    python -m evaluation.sites chaos --sites 20 --minutes 10               # everything fails: evaluation/sites/chaos.py
    python -m evaluation.sites bytes                                       # bytes a step: evaluation/sites/volume.py
    python -m evaluation.sites rounds                                      # in virtual time: evaluation/sites/rounds.py

Each site is a network namespace with PyTorch in it; links have the network's rates, scaled to what the machine carries
(--total-mbps). All sites train the example's GPT (examples/train_gpt.py) on random parts of Python's documentation, and
compute the loss on the same text that no site trains on. gloo trains synchronously. A step takes --compute seconds at
least, as on machines of the sites' own. The coordinator, at the first site as PCCL's master, is told nothing of the
network: the sites measure it, once, for about as many seconds as there are sites. Times and bytes count from when all
sites are ready and that measurement has ended.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from evaluation import commands
from evaluation.chaos import harness
from evaluation.sites import chaos, coordination, rounds, volume, with_pccl
from evaluation.sites.rings import Rings
from evaluation.sites.training import OPTIMISERS, Lesson
from topologies.load import LoadMonitor
from topologies.wan.networks import NETWORKS, TOTAL_MBPS, Wan, emulated, network_named, scaled
from topologies.zygote import HostFailure, HostProcess, Zygote

READY_SECONDS = 180.0
POLL_SECONDS = 0.02
SYSTEMS = ("gloo", "pccl", "pccl-ring", *OPTIMISERS)


@dataclass(frozen=True)
class Row:
    """One system on one network.

    Attributes:
        target_s: seconds until the common model's loss was at most `target`; None where it was not within the
            limit.
        loss: the last loss.
        steps: steps of a site until then.
        step_s: seconds of a step, with everything.
        bytes_a_step: bytes that left a site in a step, frames included, mean of the sites.
        waited_s: seconds in which training stood still for the network and for slower sites, mean of the sites (of
            systems that report it).
        least_s: the same of the site that waited least.
        busy: the part of the time in which a round was on the network (of `inart.sites`).
        cpu_idle: idle fraction of the machine's CPU time.
    """

    network: str
    sites: int
    system: str
    parameters: int
    target: float
    target_s: float | None
    loss: float
    steps: int
    step_s: float
    bytes_a_step: float
    waited_s: float
    least_s: float
    busy: float
    cpu_idle: float
    points: tuple[tuple[float, float], ...]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Emulated:
    """The sites of one emulated network, in which systems train one after the other."""

    def __init__(self, network: str, arguments: argparse.Namespace) -> None:
        whole = network_named(network, arguments.seed)
        part = whole.subgraph(list(whole)[: arguments.sites or len(whole)]).copy()
        graph, factor = scaled(part, arguments.total_mbps)
        self.network, self.arguments, self.topology = network, arguments, emulated(graph, arguments.delay_ms)
        self.lesson = Lesson(width=arguments.width, compute_s=arguments.compute, every=arguments.every,
                             bits=arguments.bits, seed=arguments.seed)  # fmt: skip
        self.hosts = self.topology.servers
        self.parameters = sum(parameter.numel() for parameter in self.lesson.model().parameters())
        say(f"{network}: {len(self.hosts)} sites, rates times {factor:.3g}")

    def run(self, systems: Sequence[str]) -> list[Row]:
        with ExitStack() as stack:
            self.wan = stack.enter_context(Wan(self.topology, 0.0, self.arguments.seed))
            preload = ["torch", "torch._dynamo", "evaluation.sites.training", "evaluation.sites.coordination"]
            self.zygote = stack.enter_context(Zygote(self.wan.emulation, preload=preload))
            self.zygote.wait_ready()
            rows = []
            for system in systems:
                missing = with_pccl.missing() if system.startswith("pccl") else ""
                if missing:
                    say(f"{system} is left out: {missing}")
                    continue
                rows.append(self._one(system))
                say(line_of(rows[-1]))
            return rows

    def _one(self, system: str) -> Row:
        if system == "gloo":
            return self.gloo()
        return self.pccl(system) if system.startswith("pccl") else self.ours(system)

    def ours(self, system: str) -> Row:
        first = self.topology.address(self.hosts[0])
        about = {"address": first, "sites": len(self.hosts), "probe_seconds": self.arguments.probe_seconds}
        coordinator = self.zygote.spawn(self.hosts[0], "evaluation.sites.coordination:coordinate", about)

        def status() -> dict[str, Any]:
            coordinator.send("")
            answer: dict[str, Any] = coordinator.receive(READY_SECONDS)
            return answer

        def measured() -> None:
            _wait(lambda: bool(status()["measured"]))
            say(coordinator.log.read_text().rstrip())

        try:
            coordinator.receive(READY_SECONDS)
            where = {"how": system, "coordinator": f"{first}:{coordination.PORT}"}
            return self._train(
                system, "evaluation.sites.training:by_sites", where, measured=measured,
                busy=lambda: float(status()["busy"]),
            )  # fmt: skip
        finally:
            coordinator.end()

    def gloo(self) -> Row:
        about = {"first": self.topology.address(self.hosts[0]), "sites": len(self.hosts)}
        return self._train("gloo", "evaluation.sites.training:by_gloo", about)

    def pccl(self, system: str) -> Row:
        about = {"master": f"{self.topology.address(self.hosts[0])}:{with_pccl.PORT}", "sites": len(self.hosts)}
        ring: Sequence[str] = self.hosts
        if system == "pccl-ring":
            rings = Rings(self.topology, self.parameters)  # a byte a value
            ring = rings.best()
            say(f"  ring {' '.join(ring)}: {rings.seconds(ring):.2f} s at least, a random one {rings.usual():.2f} s")
        return self._train(
            system, "evaluation.sites.with_pccl:by_pccl", about,
            joined=lambda processes: self.joined(processes, ring, in_order=system == "pccl-ring"),
        )  # fmt: skip

    def joined(self, processes: dict[str, HostProcess], ring: Sequence[str], *, in_order: bool) -> None:
        """Have the sites join PCCL's master one after the other. With `in_order`, PCCL's ring has to have the order of
        `ring`; raise HostFailure when it has another one.
        """
        for site in ring:
            processes[site].send("join")
            processes[site].receive(READY_SECONDS)
        peers = {site: processes[site].receive(READY_SECONDS)["peers"] for site in ring}
        for site, following in zip(ring, [*ring[1:], ring[0]], strict=True) if in_order else ():
            if self.topology.address(following) not in peers[site]:
                raise HostFailure(f"{site} has no connection to {following}: this PCCL's ring has not the order in "
                                  "which sites join (docs/results/wan.md describes a build that has it)")  # fmt: skip

    def _train(
        self,
        system: str,
        function: str,
        about: dict[str, Any],
        *,
        joined: Callable[[dict[str, HostProcess]], None] = lambda processes: None,
        measured: Callable[[], None] = lambda: None,
        busy: Callable[[], float] = lambda: 0.0,
    ) -> Row:
        """Train with one system, and return its row.

        Args:
            system: name of the system.
            function: the function of each site's process.
            about: its arguments.
            joined: has the sites join each other.
            measured: waits until the sites have measured their network, which happens once and does not count as
                training.
            busy: returns the seconds in which rounds were on the network.
        """
        processes: list[HostProcess] = []
        try:
            for site, host in enumerate(self.hosts):
                own = {"interface": self.wan.emulation.interface(host), "site": site, "lesson": asdict(self.lesson)}
                if system in OPTIMISERS:
                    own |= {"node": host, "address": self.topology.address(host)}
                processes.append(self.zygote.spawn(host, function, about | own))
            joined(dict(zip(self.hosts, processes, strict=True)))
            for process in processes:
                process.receive(READY_SECONDS)
            measured()
            load = LoadMonitor(self.wan.emulation)
            for process in processes:
                process.send("begin")
            began, before = time.monotonic(), busy()
            points, others = self._watch(processes)
            part = (busy() - before) / (time.monotonic() - began)
            idle = load.stop().idle
        finally:
            for process in processes:
                process.end()
        return self._row(system, points, others, part, idle)

    def _watch(self, processes: list[HostProcess]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the first site's points until the target or the limit, and one point of each other site."""
        points: list[dict[str, Any]] = []
        end = time.monotonic() + self.arguments.seconds
        while (left := end - time.monotonic()) > 0:
            try:
                points.append(processes[0].receive(left))
            except HostFailure:
                if time.monotonic() < end:
                    raise
                break
            say(f"  step {points[-1]['step']}: {points[-1]['at_s']:.1f} s, loss {points[-1]['loss']:.3f}")
            if points[-1]["loss"] <= self.arguments.target:
                break
        if not points:
            return [], []
        others = []
        for process in processes[1:]:
            point = process.receive(READY_SECONDS)
            while point["step"] < points[-1]["step"]:
                point = process.receive(READY_SECONDS)
            others.append(point)
        return points, others

    def _row(
        self, system: str, points: list[dict[str, Any]], others: list[dict[str, Any]], busy: float, idle: float
    ) -> Row:
        if not points:
            nan = float("nan")
            return Row(self.network, len(self.hosts), system, self.parameters, self.arguments.target, None, nan, 0, nan,
                       nan, nan, nan, busy, idle, ())  # fmt: skip
        last = points[-1]
        reached = last["loss"] <= self.arguments.target
        waited = [point["waited_s"] for point in (last, *others)]
        return Row(
            self.network, len(self.hosts), system, self.parameters, self.arguments.target,
            last["at_s"] if reached else None, last["loss"], last["step"], last["at_s"] / last["step"],
            mean(point["bytes"] / point["step"] for point in (last, *others)), mean(waited), min(waited), busy, idle,
            tuple((point["at_s"], point["loss"]) for point in points),
        )  # fmt: skip


def _wait(over: Callable[[], bool]) -> None:
    """Wait until `over` returns True. Raise HostFailure when that takes more than READY_SECONDS."""
    end = time.monotonic() + READY_SECONDS
    while not over():
        if time.monotonic() > end:
            raise HostFailure(f"the sites have not measured their network within {READY_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


HEAD = (
    f"{'network':<10} {'sites':>5} {'system':<15} {'s to loss':>10} {'loss':>6} {'steps':>6} {'s a step':>9} "
    f"{'KB a step':>10} {'s waited':>9} {'least':>6} {'busy':>5} {'CPU idle':>9}"
)


def line_of(row: Row) -> str:
    target = "-" if row.target_s is None else f"{row.target_s:.1f}"
    waited, least = (f"{row.waited_s:.1f}", f"{row.least_s:.1f}") if row.system != "gloo" else ("-", "-")
    busy = f"{row.busy:.0%}" if row.system in OPTIMISERS else "-"
    return (
        f"{row.network:<10} {row.sites:>5} {row.system:<15} {target:>10} {row.loss:>6.3f} {row.steps:>6} "
        f"{row.step_s:>9.3f} {row.bytes_a_step / 1000:>10.1f} {waited:>9} {least:>6} {busy:>5} {row.cpu_idle:>9.0%}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["chaos"]:
        return harness.main(chaos.Sites, words[1:])
    for name, one in (("bytes", volume.main), ("rounds", rounds.main)):
        if words[:1] == [name]:
            return one(words[1:])
    parser = commands.parser("sites", __doc__)
    parser.add_argument("--network", nargs="+", default=["netstorm"], metavar="NAME",
                        help=f"of {', '.join(NETWORKS)}, or a file, as `topologies run --wan` takes")  # fmt: skip
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=["diloco", "gloo"])
    parser.add_argument("--sites", type=int, metavar="N", help="only the network's first N (default: all)")
    parser.add_argument("--target", type=float, default=2.8, help="loss, nats a byte (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=240.0, help="of a system at most (default %(default)s)")
    parser.add_argument("--width", type=int, default=64, help="of the model (default %(default)s)")
    parser.add_argument("--every", type=int, default=20, help="steps of a round of DiLoCo (default %(default)s)")
    parser.add_argument(
        "--bits", type=int, default=8, choices=(4, 8, 16, 32), help="of DiLoCo; PCCL has 8, or 32 (default %(default)s)"
    )
    parser.add_argument("--compute", type=float, default=0.1, help="s of a step at least (default %(default)s)")
    parser.add_argument("--probe-seconds", type=float, default=1.0, help="of a measurement (default %(default)s)")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="one way, of each link (default %(default)s)")
    parser.add_argument("--total-mbps", type=float, default=TOTAL_MBPS / 4, help="of all links (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="instead of the table")
    arguments = parser.parse_args(words)
    rows = [row for network in arguments.network for row in Emulated(network, arguments).run(arguments.systems)]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print("\n".join([HEAD, *map(line_of, rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
