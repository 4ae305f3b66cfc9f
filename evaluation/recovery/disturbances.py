"""Disturbances of a network of agents, and the time until the agents are back at nine tenths of the planned rate."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evaluation.recovery.virtual import VirtualNetwork
from p4src.protocol import frame_bytes

KINDS = {
    "stop": "all agents stand still for 3 s (SIGSTOP)",
    "loss": "all packets are lost for 1 s",
    "burst": "30 % of all packets are lost for 5 s",
    "start": "workers begin one by one within 2 s, on processors so busy that each is up to 0.3 s late",
}
LENGTH = {"stop": 3.0, "loss": 1.0, "burst": 5.0, "start": 2.0}
LOSSES = {"loss": 1.0, "burst": 0.3}
"""Part of all packets that is lost, by kind."""
LATE_SECONDS = 0.3
SHARE = 0.9
"""Fraction of the planned rate at which a network counts as back."""
WINDOW = 1.0
"""Seconds over which a rate is measured."""
BEFORE, AFTER, STEP = 2.0, 8.0, 0.1


@dataclass(frozen=True)
class Recovery:
    """One disturbance and the recovery from it.

    Attributes:
        back_seconds: time from its end to the beginning of the first second in which SHARE of the planned rate was
            carried; None where there was none.
        rates: Mbit/s of each second after the end.
        chunks: number of chunks completed since the end.
        packets: number of packets that came to the parameter servers in the same time.
        packets_of_chunk: number of packets that come for each chunk when nothing is lost.
        unadded: number of packets that passed switches as they were.
        failed: number of operations that failed.
        meanwhile: part of the planned rate that was carried during the disturbance.
    """

    kind: str
    planned_mbps: float
    back_seconds: float | None
    rates: tuple[float, ...]
    chunks: int
    packets: int
    packets_of_chunk: float
    unadded: int
    questions: int
    resent: int
    failed: int
    meanwhile: float

    @property
    def excess(self) -> float:
        """Packets to the parameter servers, over those that the chunks needed."""
        return self.packets / max(self.chunks * self.packets_of_chunk, 1.0)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"excess": self.excess}


def back_after(samples: Sequence[tuple[float, int]], end: float, needed: float) -> float | None:
    """Return the time after `end` at which WINDOW seconds began in which `needed` chunks were completed; None where
    there were none. The samples are (time, completed).
    """
    for (time, count), (later, more) in itertools.product(samples, samples):
        if time >= end - 1e-6 and abs(later - time - WINDOW) < STEP / 2 and more - count >= needed * (later - time):
            return time - end
    return None


def rates_after(samples: Sequence[tuple[float, int]], end: float, frame_bits: int) -> tuple[float, ...]:
    """Return the Mbit/s of each whole second after `end`."""
    found = []
    for second in range(int(samples[-1][0] - end + 1e-6)):
        inside = [count for time, count in samples if end + second - 1e-6 <= time <= end + second + 1 + 1e-6]
        found.append((inside[-1] - inside[0]) * frame_bits / 1e6)
    return tuple(found)


class Played:
    """An all-reduce that outlasts a disturbance, on a network in virtual time."""

    def __init__(self, network: VirtualNetwork, kind: str, *, seconds: float, arrays: int = 4, seed: int = 1) -> None:
        """Prepare an all-reduce that takes so many seconds at the planned rate. `arrays` is the number of arrays of
        values, which workers share.
        """
        self.network, self.kind, self._random = network, kind, random.Random(seed)
        self.workers = network.plan.job.workers
        elements = int(seconds * network.plan.rate_mbps * 1e6 / 32)
        draw = np.random.default_rng(seed)
        self.given: list[npt.NDArray[np.float32]] = [
            draw.integers(-1000, 1000, elements).astype(np.float32) for _ in range(arrays)
        ]
        self.sums = [np.zeros(elements, np.float32) for _ in range(arrays)]
        self.samples: list[tuple[float, int]] = []
        self._before = 0  # chunks that were complete when the disturbance began

    def run(self, seconds: float = AFTER) -> Recovery:
        """Play the disturbance and so many seconds after it, and return the recovery."""
        network, begin = self.network, {"start": self._start}.get(self.kind, self._disturb)
        network.run(STEP)
        begin()
        end = network.now
        bits = frame_bytes(network.values) * 8
        meanwhile = (network.root_stats().completed - self._before) * bits / 1e6 / LENGTH[self.kind]
        roots, workers, verdicts = network.root_stats(), network.worker_stats(), network.verdicts()
        self._sample(seconds)
        after, passed = network.root_stats(), network.verdicts()
        sent = network.worker_stats()
        resent = [s.resent_gap + s.resent_timeout + s.resent_recovery for s in (workers, sent)]
        return Recovery(
            kind=self.kind,
            planned_mbps=network.plan.rate_mbps,
            back_seconds=back_after(self.samples, end, SHARE * network.plan.rate_mbps * 1e6 / bits),
            rates=rates_after(self.samples, end, bits),
            chunks=after.completed - roots.completed,
            packets=after.packets - roots.packets,
            packets_of_chunk=network.packets_of_chunk,
            unadded=sum(passed[name] - verdicts[name] for name in ("stale", "flushed")),
            questions=after.questions - roots.questions,
            resent=resent[1] - resent[0],
            failed=sent.operations_failed,
            meanwhile=meanwhile / network.plan.rate_mbps,
        )

    def begin(self) -> None:
        """Have all workers begin at once, without a disturbance."""
        for number in range(len(self.workers)):
            self._submit(number)

    def finish(self, seconds: float) -> bool:
        """Let the all-reduce end. Return whether it did so, and every sum is right."""
        until = self.network.now + seconds
        while self.network.worker_stats().operations_done < 1 and self.network.now < until:
            self.network.run(0.5)
        exact = sum(
            len(self.workers[i :: len(self.given)]) * values for i, values in enumerate(self.given)
        )  # whole numbers below 2^24: exact
        done = self.network.worker_stats().operations_done >= 1
        return done and all(np.array_equal(values, exact) for values in self.sums)

    def _submit(self, number: int) -> None:
        which = number % len(self.given)
        self.network.submit(self.workers[number], self.given[which], self.sums[which])

    def _sample(self, seconds: float) -> None:
        self.samples.append((self.network.now, self.network.root_stats().completed))
        for _ in range(round(seconds / STEP)):
            self.network.run(STEP)
            self.samples.append((self.network.now, self.network.root_stats().completed))

    def _start(self) -> None:
        self.network.faults(late_seconds=LATE_SECONDS)
        order = list(range(len(self.workers)))
        self._random.shuffle(order)
        for number in order:
            self._submit(number)
            self.network.run(LENGTH["start"] / len(order))
        self.network.faults()

    def _disturb(self) -> None:
        network = self.network
        self.begin()
        network.run(BEFORE)
        self._before = network.root_stats().completed
        if self.kind == "stop":
            network.stop((*self.workers, *network.plan.job.parameter_servers), LENGTH["stop"])
        else:
            network.faults(loss=LOSSES[self.kind])
        network.run(LENGTH[self.kind])
        network.faults()
