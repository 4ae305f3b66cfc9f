"""The outcome of a run beside foreign traffic: rates, the fairness index and the queue, as a table and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evaluation import commands

TCP_WIRE = 1514 / 1448
"""Bytes on an Ethernet link for a byte of TCP, in full segments with timestamps."""
Samples = Sequence[tuple[float, float]]
"""(time in seconds, a value at that time)."""


def jain(rates: Sequence[float]) -> float:
    """Return Jain's fairness index of rates: 1 where all are equal, 1 / their number where one flow has everything."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 1.0


def wire_mbps(samples: Samples, begin: float, end: float) -> float:
    """Return what a TCP flow took of a link between two times, in Mbit/s. `samples` are of the bytes that it has
    delivered.
    """

    def at(when: float) -> float:
        before, after = None, None
        for time, value in samples:
            if time <= when:
                before = time, value
            else:
                after = time, value
                break
        if before is None:
            return 0.0
        if after is None:
            return before[1]
        return before[1] + (after[1] - before[1]) * (when - before[0]) / (after[0] - before[0])

    return (at(end) - at(begin)) * 8 * TCP_WIRE / (end - begin) / 1e6


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value below which this part of the values is; 0 for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


@dataclass
class Share:
    """The outcome of one run.

    Attributes:
        case: which way TCP goes.
        plan: what the plan was made for.
        link_mbps: rate of the narrow links.
        planned_mbps: rate at which a worker is to send.
        job_mbps: rate at which a worker has sent, from its first packet to its last answer.
        tcp_mbps: rate of each foreign flow on the link in the same time.
        back_mbps: rate of each foreign flow against the sums.
        queue: (seconds since the beginning, bytes that wait for the link).
        queue_full: frames that switches have dropped because a queue was full.
        resent: packets that agents have sent again.
        right: every sum is right.
        idle: fraction of the processors' time that was idle.
        ecn: number of packets that wait for a link, from which on switches mark others; 0 for no marks.
        links: number of narrow links that the job takes.
        flow_links: number of narrow links that each foreign flow takes.
        share_mbps: the job's equal share of its narrow links, each divided equally; 0 where it takes one link.
    """

    case: str
    plan: str
    link_mbps: float
    planned_mbps: float
    job_mbps: float
    tcp_mbps: list[float]
    back_mbps: list[float] = field(default_factory=list)
    queue: list[tuple[float, float]] = field(default_factory=list)
    queue_full: int = 0
    resent: int = 0
    right: bool = True
    idle: float = 1.0
    ecn: int = 0
    links: int = 1
    flow_links: int = 1
    share_mbps: float = 0.0

    @property
    def equal_mbps(self) -> float:
        """An equal share of the links."""
        return self.share_mbps or self.link_mbps / (1 + len(self.tcp_mbps or self.back_mbps))

    @property
    def fairness(self) -> float:
        """Jain's index of the rates on a link, of the job and of the flows that go the way of its sums, or where there
        are none, those of its results."""
        flows = [rate / self.flow_links for rate in self.tcp_mbps or self.back_mbps]
        return jain([self.job_mbps / self.links, *flows])

    @property
    def job_part(self) -> float:
        """The job's rate, as a fraction of an equal share of the links."""
        return self.job_mbps / self.equal_mbps

    def queue_ms(self, part: float) -> float:
        """Return the length of the queue, as the milliseconds in which the link sends it, that it did not exceed for
        this part of the time.
        """
        return quantile([waits for _, waits in self.queue], part) * 8e-3 / self.link_mbps

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "fairness": self.fairness, "job_part": self.job_part,
            "queue_ms": {"half": self.queue_ms(0.5), "99%": self.queue_ms(0.99), "most": self.queue_ms(1.0)},
        }  # fmt: skip


def table(shares: Sequence[Share]) -> str:
    """Return a table for people, and for a page of Markdown."""
    lines = [
        "| TCP | marks | the plan | planned | job, Mbit/s | of its share | TCP flows | against it | fairness | "
        "queue: half, 99 %, ms | dropped | resent | idle |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in shares:
        lines.append(
            f"| {one.case} | {one.ecn or ''} | {one.plan} | {one.planned_mbps:.2f} | {one.job_mbps:.2f} | "
            f"{one.job_part:.2f} | {_rates(one.tcp_mbps)} | {_rates(one.back_mbps)} | {one.fairness:.3f} | "
            f"{one.queue_ms(0.5):.1f}, {one.queue_ms(0.99):.1f} | {one.queue_full} | {one.resent} | {one.idle:.0%} |"
            + ("" if one.right else " WRONG")
        )
    return "\n".join(lines)


def _rates(rates: Sequence[float]) -> str:
    return f"{min(rates):.2f} to {max(rates):.2f}" if rates else ""


def draw(shares: Sequence[Share], path: Path) -> None:
    """Write the figure, two rows of panels for each case: what the job and each flow have, and the queue over time."""
    cases = {case: [one for one in shares if one.case == case] for case in dict.fromkeys(one.case for one in shares)}
    columns = max(len(group) for group in cases.values())
    size = (2.6 * columns + 1, 3.4 * len(cases) + 0.4)
    with commands.drawing(path, 2 * len(cases), columns, dpi=70, figsize=size, sharey="row") as (_, panels):
        for row, group in enumerate(cases.values()):
            for above, below in panels[2 * row : 2 * row + 2, len(group) :].T:
                above.set_axis_off()
                below.set_axis_off()
            for one, above, below in zip(group, panels[2 * row], panels[2 * row + 1], strict=False):
                _draw_rates(above, one)
                below.plot(
                    [at for at, _ in one.queue], [waits * 8e-3 / one.link_mbps for _, waits in one.queue], lw=0.6
                )
                below.set_xlabel("s")
            panels[2 * row][0].set_ylabel("Mbit/s")
            panels[2 * row + 1][0].set_ylabel("queue, ms")


def _draw_rates(panel: Any, one: Share) -> None:
    """Draw bars of the job and of the flows, one on the other; the dotted line is an equal share of the link."""
    groups = [("job", [one.job_mbps], "tab:blue")]
    groups += [("TCP", one.tcp_mbps, "tab:orange")] if one.tcp_mbps else []
    groups += [("TCP against", one.back_mbps, "tab:green")] if one.back_mbps else []
    for position, (_, rates, color) in enumerate(groups):
        bottom = 0.0
        for rate in rates:
            panel.bar(position, rate, bottom=bottom, color=color, edgecolor="white")
            bottom += rate
    panel.set_xticks(range(len(groups)), [name for name, _, _ in groups])
    panel.axhline(one.equal_mbps, color="grey", linestyle=":")
    marks = ", marks" if one.ecn else ""
    panel.set_title(f"{one.case}: {one.plan}{marks} (fairness {one.fairness:.2f})", fontsize="small")
