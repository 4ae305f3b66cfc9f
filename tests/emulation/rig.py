"""A small network with a plan on it, its agents, and all-reduces that are checked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from controlplane.common.log_lines import calling
from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import testbed
from controlplane.planner.job import place_job
from controlplane.planner.plan import Plan
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology
from topologies import Emulation, hosts
from topologies.deployment import Fabric, Service
from topologies.zygote import HostProcess, Zygote

SECONDS = 90.0
SEED = 7
HERE = "topologies.hosts"
MODULES = ("numpy", "worker_agent", "ps_server.__main__", HERE)


@dataclass(frozen=True)
class Outcome:
    """The result of one all-reduce on all workers. resent, duplicates (of results): packets.

    seconds: from the first send to the last answer of the slowest worker. workers: the number of workers whose
    gradients are in the sums, as the workers report it.
    """

    digests: frozenset[str]
    error: float
    bound: float
    resent: int
    duplicates: int
    seconds: float
    workers: frozenset[int] = frozenset()

    def check(self) -> None:
        """Check that all results have the same bits and are within the error bound of the exact sum."""
        assert len(self.digests) == 1, "workers have different results"
        assert self.error <= self.bound


def paper_testbed(rate: float) -> Topology:
    """Return Fig. 1 of the paper: 2 switches, 6 workers, 2 parameter servers; links of `rate` Mbit/s."""
    return testbed(switch_mbps=rate, server_mbps=rate * 4 / 6, link_mbps=rate)


class Rig:
    """A context manager with a running, routed network and the plan's rules installed; no agent has joined yet.

    roots: number of parameter servers; None: every worker is one.
    """

    def __init__(
        self,
        kind: str,
        topology: Topology,
        strategy: str = "atp",
        workers: int = 6,
        roots: int | None = 2,
        *,
        answers_failures: bool = False,
        at_least: int | None = None,
    ) -> None:
        self.topology = topology
        self.answers_failures = answers_failures
        self.job = replace(place_job(topology, workers, roots, seed=SEED), at_least=at_least)
        self.plan: Plan = get_strategy(strategy)(topology, self.job, seed=SEED)
        assert self.plan.rate_mbps == evaluate(self.plan, topology).rate_mbps
        self.emulation = Emulation(topology, kind, seed=SEED)
        self.log: list[str] = []
        self.workers: dict[str, HostProcess] = {}
        self.roots: dict[str, HostProcess] = {}

    def __enter__(self) -> "Rig":
        self.emulation.start()
        try:
            self.zygote = Zygote(self.emulation, MODULES)
            self.fabric = Fabric(self.emulation, calling(self.log.append))
            self.service: Service = self.fabric.serve(self.plan, answers_failures=self.answers_failures)
        except BaseException:
            self.emulation.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            print("\n".join(self.log))  # pytest shows this.
        try:
            self.service.__exit__()
            self.fabric.__exit__()
        finally:
            self.emulation.stop()
            self.zygote.close()

    def start_roots(self) -> None:
        for node in self.job.parameter_servers:
            if node not in self.job.both_roles:
                self.start_root(node)

    def start_root(self, node: str) -> None:
        arguments = {"controller": self.service.address}
        self.roots[node] = self.zygote.spawn(node, f"{HERE}:parameter_server", arguments)

    def start_worker(self, node: str) -> None:
        arguments = {
            "controller": self.service.address,
            "interface": self.emulation.interface(node),
            "seed": SEED,
            "workers": len(self.job.workers),
            "check": node == self.job.workers[0],
        }
        self.workers[node] = self.zygote.spawn(node, f"{HERE}:allreduce", arguments)

    def start_all(self) -> None:
        """Start every agent; returns when they have done a first, small all-reduce."""
        self.start_roots()
        for node in self.job.workers:
            self.start_worker(node)
        self.ready()

    def ready(self) -> None:
        for process in self.workers.values():
            process.receive(SECONDS)

    def submit(self, size: int, **order: Any) -> None:
        for process in self.workers.values():
            process.send({"size": size, **order})

    def collect(self) -> Outcome:
        answers: list[Mapping[str, Any]] = [process.receive(SECONDS) for process in self.workers.values()]
        checked = next(answer for answer in answers if "error" in answer)
        return Outcome(
            digests=frozenset(answer["digest"] for answer in answers),
            error=checked["error"],
            bound=checked["bound"],
            resent=sum(answer["resent"] for answer in answers),
            duplicates=sum(answer["duplicates"] for answer in answers),
            seconds=max(answer["last_answer"] - answer["first_send"] for answer in answers),
            workers=frozenset(answer["workers"] for answer in answers),
        )

    def allreduce(self, size: int, **order: Any) -> Outcome:
        self.submit(size, **order)
        return self.collect()

    def shape_all(self, **faults: float) -> None:
        """Apply the faults to everything that switches send: in each direction between switches, and towards every
        host.
        """
        for switch in self.topology.switches:
            for neighbour in self.topology.neighbours(switch):
                self.emulation.shape(switch, neighbour, **faults)

    def verdicts(self) -> dict[str, int]:
        """Return the packets by verdict of the P4 program, over all switches."""
        total: dict[str, int] = {}
        for target in self.fabric.targets:
            for verdict, count in target.read_counters().verdicts.items():
                total[verdict] = total.get(verdict, 0) + count
        return total


__all__ = ["Outcome", "Rig", "hosts", "paper_testbed"]
