"""Measures synchronisations across an emulated WAN beside simulated ones: `python -m evaluation.wan run`.

Each site is a namespace; links have the network's rates (scaled to the machine) and delays; P4 switches route IPv4, and
agents in the hosts use TCP. The same policies run on sockets and in the simulator.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from controlplane.planner.job import Job
from controlplane.planner.plan import Plan
from controlplane.planner.plan.framing import MTU
from controlplane.planner.plan.task import Sending, Task
from controlplane.planner.strategies.wan.netstorm.policy import NetStorm
from controlplane.planner.strategies.wan.policy import FollowPlan, Policy
from controlplane.planner.strategies.wan.tree_packing.strategy import wan
from controlplane.planner.topology import Topology
from controlplane.planner.wan_networks import overlay
from evaluation import commands
from evaluation.wan.networks import whole_job
from evaluation.wan.trials import HERE
from overlay.__main__ import amount
from overlay.core.systems import maker, planned
from overlay.core.tcp import MOST_CONNECTIONS, Connections
from overlay.net.coordinator import Coordinator
from overlay.sim.network import TcpSettings
from overlay.sim.simulation import Simulation
from topologies.load import LoadMonitor
from topologies.wan.networks import NETWORKS, TOTAL_MBPS, Wan, emulated, scaled, window_bytes
from topologies.zygote import Zygote

STRATEGIES = ("star", "balanced-tree", "tsengine", "netstorm", "netstorm-pro", "apsp", "crew", "wan")
ADAPTIVE = ("netstorm-pro",)
"""Systems that run as a whole, and not as one plan: they measure the network and replan."""

ROUND_SECONDS = 300.0
PROBE_VALUES = 256
"""Chunks of at least so many values tell a rate."""
WINDOW_CHUNKS = 64
"""Number of chunks of a tree that agents send ahead of their results."""

DRAWS = 5
"""Number of simulations where packets are lost; each draws other losses."""


@dataclass(frozen=True)
class Measured:
    """The result of one system on one network; seconds are of a synchronisation (median of the rounds)."""

    network: str
    strategy: str
    rounds: int
    measured_s: float
    simulated_s: float
    bound_s: float
    mbytes: float
    trees: int
    error: float
    cpu_idle: float
    per_round_s: tuple[float, ...]
    loss: float


def policy_of(plan: Plan, planned_on: Topology, chunk: int) -> FollowPlan:
    """Return the policy of a plan. Only `wan` keeps its plan's rates; the others send as fast as TCP lets them."""
    paced = plan.strategy == "wan"
    return FollowPlan(plan, planned_on, sending=Sending(paced=paced, chunk_values=chunk, window=WINDOW_CHUNKS))


class Site(Wan):
    """An emulated WAN that runs one policy after the other."""

    def run(
        self, policy: Policy, values: int, rounds: int, connections: Connections
    ) -> tuple[list[float], float, float]:
        """Return (seconds of each round, largest error of any agent's mean, idle fraction of the CPU)."""
        seconds: list[float] = []
        seeds = [str(k) for k in range(len(policy.nodes))]
        zygote = Zygote(self.emulation, [HERE])
        coordinator = Coordinator(
            policy,
            self.emulation.controller_host,
            log=lambda line: None,
            finished=partial(_append, seconds),
            probe_values=PROBE_VALUES if isinstance(policy, NetStorm) else None,
        )
        with zygote, coordinator:
            zygote.wait_ready()
            host, port = coordinator.address
            load = LoadMonitor(self.emulation)
            processes = {}
            config = self.emulation.directory / "site.toml"
            config.write_text(f"[overlay]\nconnections = {connections.least}\nmost_connections = {connections.most}\n")
            for k, node in enumerate(policy.nodes):
                words = [
                    "--coordinator", f"{host}:{port}", "--node", node,
                    "--listen", f"{self.topology.address(node)}:0", "--values", values, "--rounds", rounds,
                    "--config", config,
                    "--seed", k, "--seeds", *seeds, "--timeout", ROUND_SECONDS,
                ]  # fmt: skip
                processes[node] = zygote.spawn(node, f"{HERE}:agent", {"words": [str(word) for word in words]})
            errors = []
            for node, process in processes.items():
                found = process.receive(ROUND_SECONDS * rounds)
                lines = [json.loads(line) for line in found["lines"]]
                if found["status"] or len(lines) != rounds + 1:
                    said = process.log.read_text(errors="replace").strip()[-400:]
                    raise RuntimeError(f"the agent in {node} ended with {found['status']}: {said}")
                errors.append(max(line["error"] for line in lines[:-1]))
            idle = load.stop().idle
        return seconds, max(errors), idle


def measure(arguments: argparse.Namespace) -> list[Measured]:
    found = []
    for network in arguments.network:
        graph, factor = scaled(NETWORKS[network](arguments.seed), arguments.total_mbps)
        topology, planned_on = emulated(graph, arguments.delay_ms), overlay(graph, arguments.delay_ms)
        values = arguments.values
        job: Job = whole_job(graph, 4 * values)
        say(f"{network}: {len(graph)} sites, {len(graph.edges)} directed links, rates times {factor:.3g}")
        connections = Connections(arguments.connections, max(arguments.connections, arguments.most_connections))
        plan_of = partial(
            planned, topology=planned_on, job=job, seed=arguments.seed, chunk=arguments.chunk, mtu=arguments.mtu,
            loss=arguments.loss, connections=connections,
        )  # fmt: skip
        makers: dict[str, Callable[[], Policy]] = {}
        trees: dict[str, int] = {}
        for name in arguments.strategies:
            if name in ADAPTIVE:
                system = makers[name] = maker(name, graph, values, p=0, chunk=arguments.chunk, seed=arguments.seed)
                trees[name] = len(getattr(system(), "trees", ()))
            else:
                plan = plan_of(name)
                makers[name] = partial(policy_of, plan, planned_on, arguments.chunk)
                trees[name] = len(plan.trees)
        bound = wan(planned_on, job).proven_mbps or float("nan")  # payload over the links' rates
        with Site(topology, arguments.loss, arguments.seed, mtu=arguments.mtu) as site:
            for name, make in makers.items():
                simulated: list[float] = []
                for draw in range(DRAWS if arguments.loss else 1):
                    Simulation(
                        make(), topology, values, finished=partial(_append, simulated),
                        tcp=TcpSettings(
                            connections, arguments.loss, draw,
                            window_bytes(topology, arguments.mtu, arguments.loss), arguments.mtu,
                        ),
                        probe_values=PROBE_VALUES if name in ADAPTIVE else None,
                    ).run(arguments.rounds)  # fmt: skip
                seconds, error, idle = site.run(make(), values, arguments.rounds, connections)
                found.append(
                    Measured(
                        network,
                        name,
                        arguments.rounds,
                        median(seconds),
                        median(simulated),
                        values * 32e-6 / bound,
                        values * 4e-6,
                        trees[name],
                        error,
                        idle,
                        tuple(seconds),
                        arguments.loss,
                    )
                )
                say(line_of(found[-1]))
    return found


def _append(seconds: list[float], task: Task, s: float) -> None:
    seconds.append(s)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def line_of(row: Measured) -> str:
    return (
        f"{row.network:<10} {row.strategy:<14} {row.measured_s:>10.2f} {row.simulated_s:>10.2f} "
        f"{row.measured_s / row.simulated_s:>6.2f} {row.bound_s:>8.2f} {row.measured_s / row.bound_s:>8.2f} "
        f"{row.trees:>6} {row.cpu_idle:>9.0%}"
    )


HEAD = (
    f"{'network':<10} {'system':<14} {'measured s':>10} {'simulated':>10} {'ratio':>6} {'bound s':>8} {'/ bound':>8} "
    f"{'trees':>6} {'CPU idle':>9}"
)


def draw(rows: Sequence[Measured], path: Path) -> None:
    """Draw measured beside simulated seconds of each system, a panel per network, with the bound as a line."""
    networks = list(dict.fromkeys(row.network for row in rows))
    with commands.drawing(path, 1, len(networks), figsize=(4.2 * len(networks), 3.6)) as (_, axes):
        for axis, network in zip(axes[0], networks, strict=True):
            own = [row for row in rows if row.network == network]
            places = range(len(own))
            axis.barh(
                [k - 0.2 for k in places], [row.measured_s for row in own], 0.4, label="measured", color="#1f6f8b"
            )
            axis.barh(
                [k + 0.2 for k in places], [row.simulated_s for row in own], 0.4, label="simulated", color="#c9c9c9"
            )
            axis.set_yticks(places, [row.strategy for row in own])
            axis.invert_yaxis()
            axis.axvline(own[0].bound_s, color="#b03a2e", linewidth=1, label="bound")
            axis.set_xlabel("seconds a synchronisation")
            axis.set_title(network)
        axes[0][0].legend(fontsize=8)


def main(argv: Sequence[str]) -> int:
    parser = commands.parser("wan run", __doc__)
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=["netstorm"])
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES, metavar="NAME", help=", ".join(STRATEGIES))
    parser.add_argument("--values", type=amount, default=1_000_000, help="float32 values of the model (default 1M)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunk", type=amount, default=8192, help="values of a chunk (default 8192)")
    parser.add_argument("--connections", type=int, default=1, help="TCP connections to each neighbour at the start")
    parser.add_argument("--most-connections", type=int, default=MOST_CONNECTIONS, metavar="N",
                        help="most connections where packets are lost (default: %(default)s)")  # fmt: skip
    parser.add_argument("--delay-ms", type=float, default=5.0, help="one way, of each link between sites (default 5)")
    parser.add_argument("--loss", type=float, default=0.0, help="fraction of packets that each link loses")
    parser.add_argument(
        "--total-mbps", type=float, default=TOTAL_MBPS, help="sum of all links' rates, which are scaled to it"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mtu", type=int, default=MTU, help=f"bytes of an IP packet on links (default {MTU})")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--plot", type=Path, metavar="PNG")
    arguments = parser.parse_args(argv)
    rows = measure(arguments)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print(HEAD)
        for row in rows:
            print(line_of(row))
    if arguments.plot:
        draw(rows, arguments.plot)
    return 0
