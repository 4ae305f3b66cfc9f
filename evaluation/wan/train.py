"""Measures training across an emulated WAN: `python -m evaluation.SYSTEM run` (apsp, netstorm, crew, selmcast, or wan
for all).

Each site is a namespace; links have the network's rates, scaled to the machine, delay and loss, and are redrawn on a
schedule if asked for. Every site trains a PyTorch model on its own images; all systems get the same network, changes
and seconds. Beside each run there are two simulations with the same changes: the same policy with the compute times
that the sites had (rounds, seconds to an accuracy), and the same tasks at the same times (seconds of a task;
evaluation/wan/again.py).
"""

from __future__ import annotations

import argparse
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np

from controlplane.planner.plan.framing import MTU
from controlplane.planner.routing import ways
from controlplane.planner.strategies.wan.policy import Changed, Order, Policy
from controlplane.planner.topology import Topology
from evaluation import commands
from evaluation.wan.again import Recorded, seconds_again
from evaluation.wan.emulated import Site, say
from evaluation.wan.workloads import RUNTIMES
from overlay.core.systems import COPIES, PAPERS, LinkQuality, maker
from overlay.core.tcp import Connections
from overlay.net.coordinator import Coordinator
from overlay.sim.network import TcpSettings
from overlay.sim.simulation import Simulation
from topologies.load import LoadMonitor
from topologies.wan.networks import NETWORKS, TOTAL_MBPS, emulated, redrawn, scaled, window_bytes

if TYPE_CHECKING:
    from topologies.zygote import HostProcess

END_SECONDS = 120.0
LATE_SECONDS = 240.0
AFTER_SECONDS = 120.0
"""Longest time, in seconds, that a task may still take in the simulator when the time is over."""

Change = Callable[[int], dict[tuple[Any, Any], float]]


@dataclass(frozen=True)
class Result:
    """The results of one system.

    Attributes:
        rounds: rounds of a site, mean.
        round_s: seconds of a synchronisation (with waiting for the others), median.
        task_s: seconds from a task's announcement to its end, median.
        simulated_task_s: the same for the same tasks in the simulator, begun at the same times.
        simulated_rounds: rounds of the same policy in the simulator, with the sites' compute times.
        per_round_s, simulated_per_round_s: seconds of each task, measured and simulated.
        accuracy: (seconds, mean over the sites) over time.
        target_s: seconds until the accuracy `target`; None where it was not reached.
        simulated_target_s: seconds of the rounds that this took, at the simulator's pace.
        final_accuracy: accuracy at the end; None where not every site had a round.
        bytes: bytes that agents sent, by link between sites.
        receivers: receivers of a multicast, mean (0 for no multicasts).
        computing: fraction of the time in which sites computed.
    """

    network: str
    system: str
    seconds: float
    rounds: float
    simulated_rounds: float
    task_s: float
    simulated_task_s: float
    round_s: float
    target: float
    target_s: float | None
    simulated_target_s: float | None
    final_accuracy: float | None
    cpu_idle: float
    accuracy: tuple[tuple[float, float], ...]
    bytes: dict[str, int]
    per_round_s: tuple[float, ...]
    simulated_per_round_s: tuple[float, ...]
    receivers: float = 0.0
    computing: float = 0.0


def changes(graph: nx.DiGraph, factor: float, seed: int) -> Change:
    """Return a function that gives the k-th redraw of all links."""
    return partial(redrawn, graph, factor, seed)


def computed(report: dict[str, Any]) -> list[float]:
    """Return the seconds that a site computed before each of its rounds."""
    found, last = [], 0.0
    for point in report["points"]:
        found.append(point["at_s"] - point["synchronised_s"] - last)
        last = point["at_s"]
    return found


def simulate(
    policy: Policy,
    topology: Topology,
    values: int,
    arguments: argparse.Namespace,
    change: Change,
    *,
    reports: Sequence[dict[str, Any]] = (),
    length: float | None = None,
) -> list[tuple[float, float, float]]:
    """Return, for each task, (when it was over, its seconds, mean rounds of a site by then), in twice `length` seconds.

    Args:
        policy, topology, values: the system, the network and the number of values.
        arguments: arguments of the command line.
        change: gives the redraws of links.
        reports: reports of sites, whose compute times are used if they are known, because the groups and the
            sharing of links depend on them.
        length: seconds; None for arguments.seconds.
    """
    found: list[tuple[float, float, float]] = []
    length = length or arguments.seconds
    streams = {node: np.random.default_rng([arguments.seed, k]) for k, node in enumerate(policy.nodes)}
    measured = {report["node"]: iter(computed(report)) for report in reports}

    def compute(node: str) -> float:
        known = next(measured.get(node, iter(())), None)
        if known is not None:
            return known
        if not arguments.compute:
            return 0.02
        return float(RUNTIMES["lstm"].with_mean(streams[node], 1, arguments.compute)[0])

    def finished(task: Any, s: float) -> None:
        before = found[-1][-1] if found else 0.0
        found.append((run.sim.now, s, before + len(task.submitters) / len(policy.nodes)))

    run = Simulation(
        policy, topology, values, compute=compute, finished=finished,
        tcp=TcpSettings(
            Connections(), arguments.loss, arguments.seed, window_bytes(topology, MTU, arguments.loss)
        ),
        probe_values=arguments.chunk // 2,
    )  # fmt: skip
    weather(run, change, arguments.redraw)
    run.run(10**9, seconds=2 * length)
    while not found and run.sim.now < 100 * length:  # at least one task, as in the sites
        run.sim.run(run.sim.now + 0.1)
    return found


def weather(run: Simulation, change: Change, every: float) -> None:
    """Redraw all links of the simulation every so many seconds (0 for never)."""

    def redraw(k: int) -> None:
        for (u, v), mbps in change(k).items():
            run.set_rate(f"dc{u}", f"dc{v}", mbps)
            run.tell(Changed(f"h{u}", f"h{v}", mbps))
        run.sim.after(every, partial(redraw, k + 1))

    if every:
        run.sim.after(every, partial(redraw, 1))


@dataclass(frozen=True)
class Trained:
    """Result of one system in the emulated sites.

    Attributes:
        reports: report of each site.
        tasks: seconds of each task, by its number.
        orders: orders, with the seconds after the start at which they were given.
        idle: idle fraction of the CPU time.
        seconds: how long it trained.
        receivers: receivers of a multicast, mean (0 for no multicasts).
    """

    reports: list[dict[str, Any]]
    tasks: dict[int, float]
    orders: list[tuple[float, Order]]
    idle: float
    seconds: float
    receivers: float


class _Progress:
    """Progress of the coordinator while the sites train.

    Attributes:
        over: the time is over, and later messages of agents are left out.
    """

    def __init__(self) -> None:
        self.tasks: dict[int, float] = {}
        self.scales: list[int] = []
        self.submitted = 0
        self.over = threading.Event()

    def log(self, line: str) -> None:
        if not self.over.is_set() and " joined (" not in line:  # at the end all agents leave, in any order
            say(line)

    def finished(self, task: Any, s: float) -> None:
        self.tasks[task.number] = s
        self.submitted += len(task.submitters)
        if task.op in ("mix", "copy"):
            self.scales.extend(len(tree.receivers) for tree in task.trees)


class Sites:
    """Trains one system after the other in the emulated sites; processes are forked from one that has imported
    PyTorch.
    """

    def __init__(self, site: Site, graph: nx.DiGraph, arguments: argparse.Namespace, change: Change) -> None:
        from topologies.zygote import Zygote

        self.site, self.graph, self.arguments, self.change = site, graph, arguments, change
        # An optimizer imports torch._dynamo when it is made, which would take 1.3 s of CPU in each of the sites.
        preload = ["torch", "torch._dynamo", "sklearn.datasets", "evaluation.wan.learning"]
        self.zygote = Zygote(site.emulation, preload=preload)
        self.zygote.wait_ready()

    def run(self, policy: Policy, lesson: dict[str, Any]) -> Trained:
        """Train with one system."""
        recorded, progress = Recorded(policy), _Progress()
        with Coordinator(
            recorded,
            self.site.emulation.controller_host,
            log=progress.log,
            probe_values=self.arguments.chunk // 2,
            replication=self.site.replication(),
            finished=progress.finished,
        ) as coordinator:
            processes = self._processes(coordinator, policy, lesson)
            try:
                for process in processes:
                    process.receive(END_SECONDS)
                load = LoadMonitor(self.site.emulation)
                weather = threading.Thread(target=self._redraw, args=(coordinator, progress.over))
                weather.start()
                began = time.monotonic()
                for process in processes:
                    process.send("begin")
                self._wait(progress, len(processes), began)
                progress.over.set()
                length = time.monotonic() - began
                for process in processes:
                    process.send("end")
                reports = [process.receive(END_SECONDS) for process in processes]
                idle = load.stop().idle
                weather.join()
            finally:
                for process in processes:
                    process.end()
        orders = [(at - began, order) for at, order in recorded.orders]
        receivers = float(np.mean(progress.scales)) if progress.scales else 0.0
        return Trained(reports, progress.tasks, orders, idle, length, receivers)

    def _processes(self, coordinator: Coordinator, policy: Policy, lesson: dict[str, Any]) -> list[HostProcess]:
        """Start a process at each site."""
        given = {"coordinator": list(coordinator.address), "sites": len(policy.nodes), "lesson": lesson}
        return [
            self.zygote.spawn(
                node,
                "evaluation.wan.learning:in_host",
                {**given, "node": node, "address": self.site.topology.address(node), "site": k},
            )
            for k, node in enumerate(policy.nodes)
        ]

    def _wait(self, progress: _Progress, sites: int, began: float) -> None:
        """Wait until the sites have had their rounds or their time; on a busy machine, for at least one round."""
        enough = sites * (self.arguments.rounds or math.inf)
        while progress.submitted < enough and time.monotonic() < began + self.arguments.seconds:
            time.sleep(0.1)
        late = time.monotonic() + LATE_SECONDS
        while progress.submitted < sites and time.monotonic() < late:
            time.sleep(0.1)

    def _redraw(self, coordinator: Coordinator, over: threading.Event) -> None:
        k = 0
        while self.arguments.redraw and not over.wait(self.arguments.redraw):
            k += 1
            self._set(self.change(k), coordinator)

    def _set(self, rates: dict[tuple[Any, Any], float], coordinator: Coordinator | None = None) -> None:
        for (u, v), mbps in rates.items():
            self.site.emulation.shape(f"dc{u}", f"dc{v}", rate_mbps=mbps)
            if coordinator is not None:
                coordinator.tell(Changed(f"h{u}", f"h{v}", mbps))

    def restore(self) -> None:
        """Reset all rates to those at the start."""
        self._set({(u, v): data["mbps"] for u, v, data in self.graph.edges(data=True)})

    def close(self) -> None:
        self.zygote.close()


def mean_accuracy(reports: Sequence[dict[str, Any]]) -> tuple[tuple[float, float], ...]:
    """Return (seconds, mean of the sites' latest accuracy) whenever a site has a new one, once all have one."""
    events = sorted(
        (point["at_s"], k, point["accuracy"]) for k, report in enumerate(reports) for point in report["points"]
    )
    latest: dict[int, float] = {}
    found = []
    for at, k, value in events:
        latest[k] = value
        if len(latest) == len(reports):
            found.append((at, sum(latest.values()) / len(latest)))
    return tuple(found)


def link_bytes(reports: Sequence[dict[str, Any]], routes: dict[tuple[str, str], list[str]]) -> dict[str, int]:
    """Return the bytes that agents sent, over each link between sites, by the routes."""
    total: dict[str, int] = {}
    for report in reports:
        for link, count in report.get("bytes_copied", {}).items():
            if link.count("dc") == 2:
                total[link] = total.get(link, 0) + count
        for receiver, count in report["bytes_sent"].items():
            for u, v in pairwise(routes[report["node"], receiver]):
                if u.startswith("dc") and v.startswith("dc"):
                    total[f"{u}->{v}"] = total.get(f"{u}->{v}", 0) + count
    return total


def measure(systems: Sequence[str], arguments: argparse.Namespace) -> list[Result]:
    from evaluation.wan.learning import Lesson, parameters

    found = []
    for network in arguments.network:
        graph, factor = scaled(NETWORKS[network](arguments.seed), arguments.total_mbps)
        topology, change = emulated(graph, arguments.delay_ms), changes(graph, factor, arguments.seed)
        base = Lesson(
            arguments.width, arguments.steps, rate=arguments.rate, compute_s=arguments.compute, seed=arguments.seed
        )
        values = parameters(base)
        p = arguments.p or max(2, len(graph) // 2)
        say(
            f"{network}: {len(graph)} sites, rates times {factor:.3g}, a model of {values} parameters, groups of {p}"
            + (f", rates redrawn every {arguments.redraw:g} s" if arguments.redraw else "")
        )
        options = {"p": p, "chunk": arguments.chunk, "seed": arguments.seed}
        options["links"] = LinkQuality(arguments.loss, arguments.delay_ms)
        with Site(topology, arguments.loss, arguments.seed) as site:
            sites = Sites(site, graph, arguments, change)
            try:
                for name in systems:
                    make = maker(name, graph, values, **options)
                    lesson = asdict(base) | {"copies": name in COPIES}
                    trained = sites.run(make(), lesson)
                    length = trained.seconds
                    sites.restore()
                    paced = simulate(
                        make(), topology, values, arguments, change, reports=trained.reports, length=length
                    )
                    again = seconds_again(
                        trained.orders, tuple(topology.servers), topology, values, loss=arguments.loss,
                        window_bytes=window_bytes(topology, MTU, arguments.loss), until=length + AFTER_SECONDS,
                        weather=partial(weather, change=change, every=arguments.redraw),
                    )  # fmt: skip
                    # a task without seconds is a copy of which every receiver was dropped
                    both = [(s, again[number]) for number, s in trained.tasks.items() if s and again.get(number)]
                    found.append(
                        _result((network, name), arguments, trained, both=both, paced=paced, topology=topology)
                    )
                    say(line_of(found[-1]))
            finally:
                sites.close()
    return found


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else float("nan")


def _result(
    title: tuple[str, str],
    arguments: argparse.Namespace,
    trained: Trained,
    *,
    both: list[tuple[float, float]],
    paced: list[tuple[float, float, float]],
    topology: Topology,
) -> Result:
    """Return the results of a system.

    Args:
        title: the network and the system.
        arguments: arguments of the command line.
        trained: the result in the emulated sites.
        both: seconds of each task, measured and simulated.
        paced: the result of `simulate`.
        topology: the network.
    """
    reports, length = trained.reports, trained.seconds
    measured, simulated = [s for s, _ in both], [s for _, s in both]
    curve = mean_accuracy(reports)
    points = [point for report in reports for point in report["points"]]
    reached = next((at for at, value in curve if value >= arguments.target), None)
    rounds = len(points) / len(reports)
    pace = None
    if reached is not None:
        done = sum(point["at_s"] <= reached for point in points) / len(reports)
        pace = next((at for at, _, so_far in paced if so_far > done - 1e-6), None)
    return Result(
        *title,
        length,
        rounds,
        max((so_far for at, _, so_far in paced if at <= length), default=0.0),
        _median(measured),
        _median(simulated),
        _median([point["synchronised_s"] for point in points]),
        arguments.target,
        reached,
        pace,
        curve[-1][1] if curve else None,
        trained.idle,
        curve,
        link_bytes(reports, ways(topology)),
        tuple(measured),
        tuple(simulated),
        receivers=trained.receivers,
        computing=sum(sum(computed(report)) for report in reports) / len(reports) / length,
    )


HEAD = (
    f"{'network':<10} {'system':<15} {'rounds':>7} {'simulated':>9} {'ratio':>6} {'task s':>7} {'simulated':>9} "
    f"{'ratio':>6} {'to target s':>11} {'simulated':>9} {'accuracy':>8} {'CPU idle':>8}"
)


def line_of(row: Result) -> str:
    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    return (
        f"{row.network:<10} {row.system:<15} {row.rounds:>7.1f} {row.simulated_rounds:>9.1f} "
        f"{row.rounds / row.simulated_rounds if row.simulated_rounds else float('nan'):>6.2f} "
        f"{row.task_s:>7.3f} {row.simulated_task_s:>9.3f} {row.task_s / row.simulated_task_s:>6.2f} "
        f"{seconds(row.target_s):>11} {seconds(row.simulated_target_s):>9} "
        f"{'-' if row.final_accuracy is None else f'{row.final_accuracy:.1%}':>8} "
        f"{row.cpu_idle:>8.0%}"
    )


def main(paper: str, argv: Sequence[str]) -> int:
    """Run the command `python -m evaluation.PAPER run ...`."""
    parser = commands.parser(f"{paper} run", __doc__)
    known = list(dict.fromkeys(name for names in PAPERS.values() for name in names))
    parser.add_argument("--systems", nargs="+", choices=known, default=PAPERS[paper], metavar="NAME",
                        help=f"of {', '.join(known)} (default: {' '.join(PAPERS[paper])})")  # fmt: skip
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=["netstorm"], help="default: netstorm")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of training with each system (default 20)")
    parser.add_argument("--rounds", type=float, default=0.0, metavar="N",
                        help="mean rounds of the sites after which a system ends sooner")  # fmt: skip
    parser.add_argument(
        "--redraw", type=float, default=0.0, metavar="S", help="seconds after which all links get new rates"
    )
    parser.add_argument("--compute", type=float, default=0.3, help="mean s of a round's computing (default 0.3)")
    parser.add_argument("--steps", type=int, default=8, help="SGD steps in a round (default %(default)s)")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate (default %(default)s)")
    parser.add_argument("--width", type=int, default=16, help="width of the model (default 16: 49,265 parameters)")
    parser.add_argument("--p", type=int, help="sites in a group, receivers + 1 (default: half of the sites)")
    parser.add_argument("--target", type=float, default=0.85, help="accuracy whose time is given (default 0.85)")
    parser.add_argument("--chunk", type=int, default=2048, help="values of a chunk (default 2048)")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="one way, of each link between sites (default 5)")
    parser.add_argument("--loss", type=float, default=0.0, help="fraction of packets that each link loses")
    parser.add_argument(
        "--total-mbps", type=float, default=TOTAL_MBPS / 2, help="sum of all links' rates, which are scaled to it"
    )
    parser.add_argument("--seed", type=int, default=1, help="of network, data and model (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args(argv)
    rows = measure(arguments.systems, arguments)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print(HEAD)
        for row in rows:
            print(line_of(row))
    return 0
