"""The same disturbances on real network namespaces: agents in processes of their own, softswitch, real seconds.

How busy the machine is makes a difference in these figures: the commands print how much of the processors was idle.
"""

from __future__ import annotations

import os
import signal
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from controlplane.planner.plan import Plan
from controlplane.planner.topology import Topology
from evaluation.recovery.disturbances import BEFORE, LENGTH, LOSSES, SHARE, STEP, back_after, rates_after
from evaluation.recovery.processes import HERE, NOTED
from p4src.protocol import frame_bytes
from topologies.deployment import Fabric
from topologies.emulation import Emulation
from topologies.zygote import HostProcess, Zygote

KINDS = ("stop", "loss", "burst")
MODULES = ("numpy", "worker_agent", "ps_server.__main__", HERE)
ANSWER_SECONDS = 180.0
PREPARE_SECONDS = 0.5
SEED = 1


@dataclass(frozen=True)
class Measured:
    """One disturbance, as measured. The fields are those of `disturbances.Recovery`, except for these.

    Attributes:
        excess: packets to the parameter servers since its end, over those that came for each chunk before it.
        right: whether every sum is right on every worker.
        idle: part of the processors' time that was idle.
    """

    kind: str
    planned_mbps: float
    back_seconds: float | None
    rates: tuple[float, ...]
    excess: float
    right: bool
    idle: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        back = "not" if self.back_seconds is None else f"{self.back_seconds:.1f} s"
        rates = " ".join(f"{rate / self.planned_mbps:.2f}" for rate in self.rates)
        return (
            f"{self.kind:6} back after {back:6}  of the plan in each second: {rates}  packets to the parameter "
            f"servers: {self.excess:.2f} of needed, processors idle {self.idle:.0%}, "
            f"{'sums right' if self.right else 'WRONG OR NOT DONE'}"
        )


class Hosts:
    """A job's agents in the hosts of an emulated network, with a controller that does not react to failures: the
    measurement is of what the agents do by themselves.

    Args:
        seconds: time that an all-reduce takes at the planned rate.
    """

    def __init__(self, topology: Topology, plan: Plan) -> None:
        self.topology, self.plan = topology, plan
        self.workers: dict[str, HostProcess] = {}
        self.roots: dict[str, HostProcess] = {}

    @contextmanager
    def running(self) -> Iterator[Hosts]:
        """Yield when all agents have joined. Raise EmulationError, HostFailure."""
        with ExitStack() as stack:
            self.emulation = stack.enter_context(Emulation(self.topology, "softswitch", seed=SEED))
            zygote = stack.enter_context(Zygote(self.emulation, MODULES))
            fabric = stack.enter_context(Fabric(self.emulation, lambda line: None))
            service = stack.enter_context(fabric.serve(self.plan))
            zygote.wait_ready()
            common, job = {"controller": service.address, "job": ""}, self.plan.job
            for node in job.parameter_servers:
                self.roots[node] = zygote.spawn(node, f"{HERE}:root", {**common, "interval": STEP / 5})
            for node in job.workers:
                self.workers[node] = zygote.spawn(node, f"{HERE}:worker", {**common, "seed": SEED, "check": True})
            for process in (*self.roots.values(), *self.workers.values()):
                process.receive(ANSWER_SECONDS)
            self.values = service.roster.configs[job.workers[0]].values_per_packet
            yield self

    def disturbed(self, kind: str, after: float) -> tuple[float, float, list[dict[str, Any]], float]:
        """Run one all-reduce that outlasts a disturbance by `after` seconds at the planned rate. Return when the
        disturbance began and ended, the workers' answers, and how idle the processors were.
        """
        seconds = BEFORE + after + (LENGTH[kind] if kind == "burst" else 0.0)  # of a burst something comes through
        elements = int(seconds * self.plan.rate_mbps * 1e6 / 32)
        for process in self.workers.values():
            process.send({"elements": elements, "seconds": ANSWER_SECONDS})
        for process in self.workers.values():
            process.receive(ANSWER_SECONDS)
        at, busy = time.monotonic() + PREPARE_SECONDS, _idle_seconds()
        for process in self.workers.values():
            process.send({"at": at})
        time.sleep(max(0.0, at + BEFORE - time.monotonic()))
        began = time.monotonic()
        begin, end = self._ways(kind)
        begin()
        time.sleep(max(0.0, began + LENGTH[kind] - time.monotonic()))
        end()
        ended = time.monotonic()
        answers = [process.receive(ANSWER_SECONDS) for process in self.workers.values()]
        lasted = time.monotonic() - at
        return began, ended, answers, (_idle_seconds() - busy) / lasted / (os.cpu_count() or 1)

    def _ways(self, kind: str) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return the functions that begin and end a disturbance."""

        def tell(number: signal.Signals) -> None:
            for process in (*self.workers.values(), *self.roots.values()):
                process.signal(number)

        def lose(share: float) -> None:
            for switch in self.topology.switches:
                for other in self.topology.neighbours(switch):
                    self.emulation.shape(switch, other, loss=share)

        if kind == "stop":
            return partial(tell, signal.SIGSTOP), partial(tell, signal.SIGCONT)
        return partial(lose, LOSSES[kind]), partial(lose, 0.0)

    def samples(self) -> list[list[list[float]]]:
        """End the parameter servers, and return what each of them has counted."""
        for process in self.roots.values():
            process.send(None)
        return [process.receive(ANSWER_SECONDS) for process in self.roots.values()]


def measure(topology: Topology, plan: Plan, kinds: Sequence[str], after: float) -> list[Measured]:
    """Measure the disturbances one after the other, each in an all-reduce of its own, with `after` seconds after each.
    Raise EmulationError, HostFailure.
    """
    found = []
    with Hosts(topology, plan).running() as hosts:
        played = [(kind, *hosts.disturbed(kind, after)) for kind in kinds]
        counted, values = hosts.samples(), hosts.values
    bits = frame_bytes(values) * 8
    for kind, began, ended, answers, idle in played:
        times = [ended + STEP * step for step in range(round(after / STEP) + 1)]
        samples = [(time - ended, _at(counted, time, "completed")) for time in times]
        last = max(answer["last_answer"] for answer in answers)
        until = min(last, times[-1])
        needed = _each(counted, began - BEFORE / 2, began)
        found.append(
            Measured(
                kind=kind,
                planned_mbps=plan.rate_mbps,
                back_seconds=back_after(samples, 0.0, SHARE * plan.rate_mbps * 1e6 / bits),
                rates=rates_after(samples, 0.0, bits),
                excess=_each(counted, ended, until) / max(needed, 1e-9),
                right=len({a["digest"] for a in answers}) == 1 and not any(a.get("wrong") for a in answers),
                idle=idle,
            )
        )
    return found


def _at(counted: Sequence[Sequence[Sequence[float]]], moment: float, name: str) -> int:
    """Return the value of a counter of all parameter servers together at a moment."""
    column = 1 + NOTED.index(name)
    total = 0.0
    for samples in counted:
        index = bisect_right(samples, moment, key=lambda sample: sample[0])
        total += samples[index - 1][column] if index else 0.0
    return int(total)


def _each(counted: Sequence[Sequence[Sequence[float]]], begin: float, end: float) -> float:
    """Return the packets that came to the parameter servers for each chunk that was completed between two times."""
    packets, completed = (_at(counted, end, name) - _at(counted, begin, name) for name in ("packets", "completed"))
    return packets / max(completed, 1)


def _idle_seconds() -> float:
    """Return the idle seconds of all processors since the machine began."""
    with open("/proc/stat") as lines:
        fields = lines.readline().split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
