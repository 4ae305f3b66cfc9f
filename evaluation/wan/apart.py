"""Splits the time of a synchronisation by the bytes on each link while it ran, from the switches' counters.

A plan's bound counts payload (float32 values) over the rate of links. A run takes longer, on the links that the plan
fills, because of frames' headers and our own, acknowledgements of the other direction, the time until a link's first
bytes (the pipeline fills) and after its last (it drains), and idle time in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from controlplane.planner.plan.task import Task
from overlay.core.framing import FRAME_HEADERS
from overlay.core.message import HEADER_BYTES
from topologies.emulation import Emulation
from topologies.switches import InterfaceCounters

EVERY_SECONDS = 0.1
FILLED = 0.97
"""Links with at least this fraction of the fullest link's planned load are those on which the bound depends."""

BEGUN = 0.005
"""A link has not begun before, or is done after, this fraction of its bytes, so that greetings and stray frames do not
count.
"""

Link = tuple[str, str]
Sample = tuple[float, dict[Link, InterfaceCounters]]


class Sampler:
    """A thread that reads all links' counters repeatedly while the context is open."""

    def __init__(self, emulation: Emulation) -> None:
        self._emulation = emulation
        self.samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            before = time.monotonic()
            counted = self._emulation.switches.link_counters()
            self.samples.append(((before + time.monotonic()) / 2, counted))
            self._over.wait(EVERY_SECONDS)


@dataclass(frozen=True)
class Parts:
    """The parts of one link's capacity over one task; they sum to 1."""

    link: Link
    mbps: float
    planned: float  # payload of the task on the link, over that on the fullest link
    payload: float
    headers: float  # headers of frames and messages that carry payload
    rest: float  # acknowledgements of the other direction, and retransmissions
    fill: float  # time before its first bytes
    drain: float  # time after its last bytes
    idle: float  # idle time in between


def payload_bytes(task: Task) -> dict[Link, tuple[int, int]]:
    """Return (bytes of values, messages) that the task sends over each hop between agents."""
    found: dict[Link, tuple[int, int]] = {}
    for index, tree in enumerate(task.trees):
        for edge in (*tree.up, *tree.down):
            for hop in pairwise(edge.path):
                values, messages = found.get(hop, (0, 0))
                found[hop] = values + 4 * tree.count, messages + task.chunks(index)
    return found


def taken_apart(
    task: Task, span: tuple[float, float], samples: Sequence[Sample], mbps: dict[Link, float], segment: int
) -> list[Parts]:
    """Return the parts of the links that the plan fills, the fullest first.

    span: when the task began and ended, in time.monotonic(). mbps: rate of each link between sites (dcX, dcY). segment:
    payload bytes of a full frame.
    """
    began, ended = span
    carried = payload_bytes(task)
    load = {link: carried.get((f"h{link[0][2:]}", f"h{link[1][2:]}"), (0, 0)) for link in mbps}
    most = max(values / mbps[link] for link, (values, _) in load.items())
    during = [sample for sample in samples if began - EVERY_SECONDS <= sample[0] <= ended + EVERY_SECONDS]
    found: list[Parts] = []
    if len(during) < 2:  # the task was too short, or the machine too busy, for two samples
        return found
    for link, (values, messages) in load.items():
        planned = values / mbps[link] / most
        if planned < FILLED:
            continue
        first, last = during[0][1][link].tx_bytes, during[-1][1][link].tx_bytes
        total = last - first
        start = next((t for t, s in during if s[link].tx_bytes - first > BEGUN * total), ended)
        end = next(t for t, s in during if s[link].tx_bytes - first >= (1 - BEGUN) * total)
        capacity = mbps[link] * 1e6 / 8 * (ended - began)
        stream = values + messages * HEADER_BYTES
        headers = stream - values + -(-stream // segment) * FRAME_HEADERS
        fill, drain = (max(0.0, start - began) / (ended - began), max(0.0, ended - end) / (ended - began))
        used = total / capacity
        found.append(
            Parts(
                link, mbps[link], planned, values / capacity, headers / capacity, used - (values + headers) / capacity,
                fill, drain, 1 - used - fill - drain,
            )
        )  # fmt: skip
    return sorted(found, key=lambda parts: -parts.planned)


HEAD = f"{'link':<14} {'Mbit/s':>7} {'planned':>8} {'payload':>8} {'headers':>8} {'acks':>6} {'fill':>6} {'drain':>6} {'idle':>6}"  # noqa: E501


def line_of(parts: Parts) -> str:
    return (
        f"{'-'.join(parts.link):<14} {parts.mbps:>7.2f} {parts.planned:>8.3f} {parts.payload:>8.3f} "
        f"{parts.headers:>8.3f} {parts.rest:>6.3f} {parts.fill:>6.3f} {parts.drain:>6.3f} {parts.idle:>6.3f}"
    )
