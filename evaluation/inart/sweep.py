"""Plans for many instances, each computed once and kept in a file, and their means with spread."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from controlplane import planner
from controlplane.cli.plan.report import ps_ingress_bytes
from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import fattree, testbed
from controlplane.planner.job import Job, place_job
from controlplane.planner.plan import Plan
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology

SOURCE = (".", "plan", "strategies", "strategies/fabric")
"""Folders of the planner on whose files plans depend."""
STRATEGIES = ("inart", "inart-strict", "inart-paper", "r-inart", "atp", "atp-strict", "lbmm")
SCENARIOS = ("homogeneous", "heterogeneous")
MODELS = {"LSTM": 1_627_000, "VGG19": 548_000, "ResNet-50": 97_000}  # bytes, section 5.3.1
TESTBED_MODELS = {"VGG19": 548_000_000, "ResNet-50": 97_000_000}  # bytes, section 5.2.1
# The testbed's capacities are not printed. Fig. 1's, scaled so that LBMM sends the 15.4 Gbit/s that the paper measured
# with 6 workers, are the only reading that fits the example that the testbed is said to follow.
TESTBED_UNIT_MBPS = 15_400 / (4 / 3)


@dataclass(frozen=True)
class Case:
    """An instance.

    Attributes:
        scenario: homogeneous or heterogeneous (fat-tree with k = 6 and 4 parameter servers), or testbed.
    """

    scenario: str
    workers: int
    seed: int
    strategy: str

    @property
    def key(self) -> str:
        return f"{self.scenario}/{self.workers}/{self.seed}/{self.strategy}"


@dataclass(frozen=True)
class Result:
    """The numbers of one plan.

    Attributes:
        rate_mbps, bound_mbps: sending rate and bound.
        throughput_mbps: gradient traffic on all links.
        ps_streams: streams per unit of the model that enter the parameter servers; times the model's bytes this is
            their ingress traffic per iteration.
    """

    rate_mbps: float
    bound_mbps: float
    throughput_mbps: float
    ps_streams: float
    bottleneck: str
    trees: int


def instance(case: Case) -> tuple[Topology, Job]:
    if case.scenario == "testbed":
        unit = TESTBED_UNIT_MBPS
        topology = testbed(6 * unit, 4 * unit, 6 * unit)
        return topology, Job("testbed", tuple(f"W{i + 1}" for i in range(case.workers)), ("S1", "S2"), 1_000_000)
    links = (10.0, 30.0) if case.scenario == "heterogeneous" else None
    topology = fattree(6, heterogeneous=links, seed=case.seed)
    return topology, place_job(topology, case.workers, 4, seed=case.seed)


def measure(plan: Plan, topology: Topology) -> Result:
    evaluation = evaluate(plan, topology)
    hops = 0.0
    for tree in plan.trees:
        routes = [a.route for a in tree.assignments] + [r.route for r in tree.relays]
        hops += tree.share * sum(len(route) - 1 for route in routes)
    streams = ps_ingress_bytes(plan) / plan.job.model_bytes
    return Result(
        evaluation.rate_mbps,
        evaluation.bound_mbps,
        hops * evaluation.rate_mbps,
        streams,
        f"{evaluation.bottleneck.kind} {evaluation.bottleneck.name}",
        len(plan.trees),
    )


def compute(case: Case) -> tuple[Case, Result]:
    topology, job = instance(case)
    return case, measure(get_strategy(case.strategy)(topology, job, seed=case.seed), topology)


def planner_digest() -> str:
    """Return a digest of the planner's source, since results of other source are not used again."""
    package = Path(planner.__file__).parent
    files = [Path(__file__), *(file for folder in SOURCE for file in sorted((package / folder).glob("*.py")))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


class Sweep:
    """Results by case, kept in results/inart/plans-DIGEST.jsonl.

    Figures share them, and an interrupted run can continue, as long as the planner's source stays the same.
    """

    def __init__(self, directory: Path, jobs: int = 1) -> None:
        self.file = directory / f"plans-{planner_digest()}.jsonl"
        self.jobs = jobs
        self.results: dict[str, Result] = {}
        if self.file.exists():
            for line in self.file.read_text().splitlines():
                entry = json.loads(line)
                self.results[entry["key"]] = Result(**entry["result"])

    def ensure(self, cases: Iterable[Case]) -> None:
        """Compute the missing results."""
        missing = [case for case in dict.fromkeys(cases) if case.key not in self.results]
        if not missing:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as out:
            for done, (case, result) in enumerate(self._computed(missing), 1):
                self.results[case.key] = result
                out.write(json.dumps({"key": case.key, "result": asdict(result)}) + "\n")
                out.flush()
                if sys.stderr.isatty():
                    end = "\n" if done == len(missing) else ""
                    print(f"\r{done} of {len(missing)} plans", end=end, file=sys.stderr, flush=True)

    def _computed(self, cases: list[Case]) -> Iterator[tuple[Case, Result]]:
        if self.jobs == 1:
            yield from map(compute, cases)
            return
        with ProcessPoolExecutor(self.jobs) as pool:
            yield from pool.map(compute, cases)

    def get(self, case: Case) -> Result:
        return self.results[case.key]


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation (0 for one value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def seconds(model_bytes: int, rate_mbps: float) -> float:
    """Return the time to send a gradient at the rate."""
    return model_bytes * 8 / (rate_mbps * 1e6) if rate_mbps > 0 else math.inf
