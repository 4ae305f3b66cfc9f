"""Seconds that a round of DiLoCo is on the network, in virtual time: `inart.sites` beside PCCL's ring.

    python -m evaluation.sites rounds --network b4 internet2 --total-mbps 25

Ours is simulated (overlay/sim), scales and sums, with the links' rates known. The rings are bounds (rings.py), the best
ring and the median of random ones, as PCCL has where nothing optimises it. What both say to their coordinator is left
out. Training stands still for so long; the ratio of times to a loss is nearer to 1, the longer the steps between rounds
take: `--compute` seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from controlplane.planner.plan.task import Sending, Task, task_of
from controlplane.planner.strategies.wan.policy import Rounds
from controlplane.planner.topology import Topology
from evaluation import commands
from evaluation.sites.coordination import CHUNK_VALUES
from evaluation.sites.rings import Rings
from evaluation.sites.training import Lesson
from overlay.core.framing import tcp_framing
from overlay.core.site_network import SiteNetwork
from overlay.sim.simulation import Simulation
from overlay.sites.packing import BLOCK, word_values
from topologies.wan.networks import emulated, network_named, scaled

DELAY_MS = 5.0  # one way, of each link
NETWORKS = ("b4", "internet2", "aws", "netstorm", "topologies/data/geant.json")


@dataclass(frozen=True)
class Row:
    """Seconds of one round on one network.

    Attributes:
        network: its name.
        sites: their number.
        ours_8: `inart.sites` with `bits=8`.
        ours_4: the same with `bits=4`, which take about as many bits on the network as PCCL's 8.
        best: PCCL over the best ring, at least.
        usual: PCCL over a ring in random order, at least.
        ratio_8: the time between two rounds' beginnings with PCCL's best ring, over ours with 8 bits.
        ratio_4: the same with 4 bits.
        usual_ratio_8: the same with PCCL's usual ring and 8 bits.
    """

    network: str
    sites: int
    ours_8: float
    ours_4: float
    best: float
    usual: float
    ratio_8: float
    ratio_4: float
    usual_ratio_8: float


class Again(Rounds):
    """A policy that begins one and the same task."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.participants)
        self._task = task

    def task(self, number: int, values: int, now: float) -> Task:
        """Return the task, with this number."""
        return replace(self._task, number=number)


class Sites:
    """All sites of a topology of `emulated`, which have measured their links rightly."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._hosts = tuple(sorted(topology.servers))
        switch = {topology.neighbours(host)[0]: host for host in self._hosts}
        pairs = {(switch[u], switch[v]): (u, v) for u, v in topology.links if u in switch and v in switch}
        self._network = SiteNetwork(CHUNK_VALUES)
        headers = 1 + tcp_framing(CHUNK_VALUES, self._network.mtu).headers
        rates = {pair: topology.bandwidth_mbps(*link) / headers for pair, link in pairs.items()}
        trips = {pair: 2e-3 * topology.delay_ms(*link) for pair, link in pairs.items()}
        self._network.surveyed(rates, {}, trips)

    def seconds(self, values: int, bits: int) -> float:
        """Return the simulated time of a round of so many values, one of scales and one of sums."""
        scales = -(-values // BLOCK)
        return self._task_seconds(scales) + self._task_seconds(word_values(values, bits, len(self._hosts)))

    def _task_seconds(self, values: int) -> float:
        plan, topology = self._network.plan(self._hosts)
        chunk, window = self._network.chunks(self._hosts, values)
        way = replace(Sending(paced=True), chunk_values=chunk, window=window)
        task = task_of(plan, topology, values, number=1, round=0, op="sum", way=way)
        return Simulation(Again(task), self._topology, values).run(1)


def row_of(name: str, total_mbps: float, compute: float, seed: int) -> Row:
    """Return the figures of one network."""
    graph, _ = scaled(network_named(name, seed), total_mbps)
    topology = emulated(graph, DELAY_MS)
    values = sum(parameter.numel() for parameter in Lesson().model().parameters())
    sites, rings = Sites(topology), Rings(topology, values)
    ours_8, ours_4 = sites.seconds(values, 8), sites.seconds(values, 4)
    best, usual = rings.seconds(rings.best()), rings.usual()
    return Row(
        name, len(topology.servers), ours_8, ours_4, best, usual, (compute + best) / (compute + ours_8),
        (compute + best) / (compute + ours_4), (compute + usual) / (compute + ours_8),
    )  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Print the figures of each network, as a table or as JSON."""
    parser = commands.parser("sites rounds", __doc__)
    parser.add_argument("--network", nargs="+", default=NETWORKS, metavar="NAME", help="as of `evaluation.sites`")
    parser.add_argument("--total-mbps", type=float, default=25.0, help="of all links (default %(default)s)")
    parser.add_argument("--compute", type=float, default=0.0, help="s between two rounds (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="instead of the table")
    arguments = parser.parse_args(argv)
    rows = [row_of(name, arguments.total_mbps, arguments.compute, arguments.seed) for name in arguments.network]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    print(f"{'network':<28} sites  ours, 8 bits  4 bits  best ring  usual  best/8 bits  best/4  usual/8")
    for row in rows:
        print(f"{row.network:<28} {row.sites:>5} {row.ours_8:>13.2f} {row.ours_4:>7.2f} {row.best:>10.2f} "
              f"{row.usual:>6.2f} {row.ratio_8:>12.2f} {row.ratio_4:>7.2f} {row.usual_ratio_8:>8.2f}")  # fmt: skip
    return 0
