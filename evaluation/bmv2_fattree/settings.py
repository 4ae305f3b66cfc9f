"""The settings of one run of the experiment, and its command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from controlplane.common.inputs import parse_bytes
from controlplane.planner.generators import fattree
from controlplane.planner.job import Job, place_job
from controlplane.planner.plan import Plan
from controlplane.planner.plan.limits import Limits, limited
from controlplane.planner.strategies import STRATEGIES, get_strategy
from controlplane.planner.topology import Topology
from evaluation import commands
from topologies import Emulation
from topologies.command import Say
from topologies.deployment import Fabric
from topologies.scale import fitting, switched_packets
from topologies.zygote import Zygote

# The three gradients that the InArt paper (section 5.3.1) replays, a thousandth of the models' sizes.
MODEL_BYTES = {"LSTM": 1_627_000, "VGG19": 548_000, "ResNet-50": 97_000}
DEFAULT_STRATEGIES = ("lbmm", "atp", "equal", "inart")
# These are relative to the bandwidth of a link, as in the paper: 9 and 20 of 20 Mbit/s.
AGGREGATION_SHARE = 0.45
INGRESS_SHARE = 1.0
HETEROGENEOUS_SPREAD = 0.5
# Two cores cannot train with more processes with a torch each in reasonable time.
MOST_TRAINING_WORKERS = 16

USUAL_MBPS, FAST_MBPS = 20.0, 100.0  # two cores carry the latter through softswitch, with time to spare


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes:
        bandwidth: Mbit/s of each link before `scale`.
        ranks: number of ranks of each worker, in training.
        steps: steps of training; 0 for none.
        scale: factor on all rates and gradients (at most 1, see `scaled`).
        parameter_servers: their number; None where every worker's host is one.
        models: name and bytes of each gradient that is reduced.
    """

    k: int = 4
    workers: int = 8
    parameter_servers: int | None = 2
    bandwidth: float = USUAL_MBPS
    heterogeneous: bool = False
    seed: int = 0
    switch: str = "softswitch"
    strategies: tuple[str, ...] = DEFAULT_STRATEGIES[:3]
    ranks: int = 1
    steps: int = 60
    cifar100: Path | None = None
    output: Path = field(default=Path("results/bmv2-fattree"))
    scale: float = 1.0
    models: tuple[tuple[str, int], ...] = tuple(MODEL_BYTES.items())

    def scaled(self) -> "Settings":
        """Return these settings with a scale at which the busiest plan does not ask too much of the machine."""
        whole = replace(self, scale=1.0)
        topology = whole.topology()
        busiest = max(switched_packets(whole.plan(name), topology) for name in self.strategies)
        return replace(self, scale=fitting(self.switch, [busiest]))

    def job(self, topology: Topology, model: str = "") -> Job:
        """Return the job that trains a model ("" for the largest), with workers and servers that the seed places."""
        size = self.model_bytes[model or self.largest]
        return place_job(topology, self.workers, self.parameter_servers, seed=self.seed, model_bytes=size)

    def plan(self, strategy: str, model: str = "") -> Plan:
        """Return a strategy's plan for the job that trains a model ("" for the largest), as a deployment makes it:
        within the limits of the switches' program, and with its packets' size.
        """
        return _plan(self, strategy, model or self.largest)

    @property
    def largest(self) -> str:
        """The name of the largest model."""
        return max(self.model_bytes, key=lambda name: self.model_bytes[name])

    @property
    def model_bytes(self) -> dict[str, int]:
        """Bytes of float32 gradient per model, a whole number of values."""
        return {name: int(size * self.scale) // 4 * 4 for name, size in self.models}

    def to_json(self) -> dict[str, Any]:
        """Return the settings for summary.json."""
        return {
            "k": self.k,
            "workers": self.workers,
            "parameter_servers": self.parameter_servers,
            "bandwidth_mbps": self.bandwidth,
            "scale": self.scale,
            "heterogeneous": self.heterogeneous,
            "seed": self.seed,
            "steps": self.steps,
            "ranks": self.ranks,
            "model_bytes": self.model_bytes,
        }

    @property
    def trains(self) -> bool:
        return self.steps > 0 and self.workers * self.ranks <= MOST_TRAINING_WORKERS

    def topology(self) -> Topology:
        """Return the fat-tree with every rate scaled."""
        bandwidth = self.bandwidth * self.scale
        spread = (bandwidth * (1 - HETEROGENEOUS_SPREAD), bandwidth * (1 + HETEROGENEOUS_SPREAD))
        return fattree(
            self.k,
            bandwidth,
            aggregation_mbps=bandwidth * AGGREGATION_SHARE,
            ingress_mbps=bandwidth * INGRESS_SHARE,
            heterogeneous=spread if self.heterogeneous else None,
            seed=self.seed,
        )


@dataclass
class Setting:
    """The objects that the stages of a run share: the running network, its switches, and the zygote."""

    settings: Settings
    topology: Topology
    job: Job
    emulation: Emulation
    fabric: Fabric
    zygote: Zygote
    say: Say


@lru_cache(maxsize=32)
def _plan(settings: Settings, strategy: str, model: str) -> Plan:
    """Return the plan of `Settings.plan`, kept in memory, since the search for the scale and the run both need it."""
    topology = settings.topology()
    held = limited(topology, Limits.of_target("v1model"))
    return get_strategy(strategy)(held, settings.job(topology, model), seed=settings.seed)


def _parser(switch: str) -> argparse.ArgumentParser:
    """Return the parser; `switch` is the kind of switch if no option names one."""
    parser = commands.parser(
        "bmv2_fattree", "Train through P4 switches in an emulated fat-tree, beside gloo on the same network."
    )
    parser.add_argument("--k", type=int, default=4, help="ports of a switch: k^3/4 hosts, 5k^2/4 switches (4)")
    parser.add_argument("--workers", type=int, default=8, help="(%(default)s)")
    commands.add_servers(parser, 2)
    parser.add_argument("--ranks", type=int, default=1, help="ranks per worker in training, which share its agent (1)")
    parser.add_argument(
        "--bandwidth",
        type=float,
        help=f"Mbit/s of each link (default: {FAST_MBPS:g} with softswitch and up to {MOST_TRAINING_WORKERS} workers, "
        f"else {USUAL_MBPS:g})",
    )
    parser.add_argument("--heterogeneous", action="store_true", help="each link 0.5 to 1.5 times that, by --seed")
    parser.add_argument("--seed", type=int, default=0, help="random seed (%(default)s)")
    parser.add_argument("--strategies", default="", help=f"of {', '.join(STRATEGIES)} (default: lbmm atp equal inart)")
    parser.add_argument(
        "--sizes", default="", metavar="BYTES", help='gradients instead of the three models\', as in "64K 1M"'
    )
    parser.add_argument("--steps", type=int, default=60, help="training steps, 0: no training (%(default)s)")
    parser.add_argument(
        "--cifar100", type=Path, metavar="FOLDER", help="train on CIFAR-100 (python version) from there"
    )
    parser.add_argument(
        "--switch", choices=("bmv2", "softswitch"), default=switch, help="default: %(default)s, which this machine has"
    )
    parser.add_argument("--output", type=Path, default=Path("results/bmv2-fattree"), help="folder (%(default)s)")
    return parser


def parse(argv: Sequence[str] | None, switch: str) -> Settings:
    """Parse the command line; exit with a message on errors. `switch` is the kind of switch if no option names one."""
    parser = _parser(switch)
    arguments = parser.parse_args(argv)
    chosen = tuple(arguments.strategies.replace(",", " ").split())
    unknown = [name for name in chosen if name not in STRATEGIES]
    if unknown:
        parser.error(f"unknown strategies: {', '.join(unknown)}; there are {', '.join(STRATEGIES)}")
    hosts = arguments.k**3 // 4
    if arguments.k < 2 or arguments.k % 2:
        parser.error(f"--k {arguments.k}: must be even and at least 2")
    apart = 0 if arguments.ps is None else arguments.ps
    if arguments.workers < 1 or (arguments.ps is not None and apart < 1) or arguments.workers + apart > hosts:
        parser.error(
            f"{arguments.workers} workers and {apart} parameter servers do not fit the {hosts} hosts of "
            f"k={arguments.k}: name fewer (WORKERS=, PS=) or a larger K="
        )
    if arguments.cifar100 is not None and not arguments.cifar100.is_dir():
        parser.error(f"--cifar100 {arguments.cifar100} is not a folder")
    try:
        sizes = [(size, parse_bytes(size)) for size in arguments.sizes.replace(",", " ").split()]
    except ValueError as error:
        parser.error(f"--sizes: {error}")
    if arguments.ranks < 1:
        parser.error(f"--ranks {arguments.ranks}: a worker has at least one")
    if arguments.bandwidth is None:
        fast = arguments.switch == "softswitch" and arguments.workers <= MOST_TRAINING_WORKERS
        arguments.bandwidth = FAST_MBPS if fast else USUAL_MBPS
    if arguments.bandwidth <= 0 or arguments.steps < 0:
        parser.error("--bandwidth must be above 0 and --steps not below")
    return Settings(
        k=arguments.k,
        workers=arguments.workers,
        parameter_servers=arguments.ps,
        bandwidth=arguments.bandwidth,
        heterogeneous=arguments.heterogeneous,
        seed=arguments.seed,
        switch=arguments.switch,
        strategies=chosen or tuple(name for name in DEFAULT_STRATEGIES if name in STRATEGIES),
        ranks=arguments.ranks,
        steps=arguments.steps,
        cifar100=arguments.cifar100,
        output=arguments.output,
        models=tuple(dict(sizes).items()) or Settings.models,
    )
