"""The jobs of a day: their sums, and the rates that they had."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from evaluation.chaos.findings import Findings

WIRE_BITS_A_VALUE = 1090 * 8 / 255
"""Bits that a float32 value takes on a link: a packet has 1090 bytes and 255 values (docs/protocol.md)."""


@dataclass
class JobReport:
    """Report of one job.

    Attributes:
        measured_mbps: rate at which a worker has sent while operations were under way.
        planned_mbps: mean of the rates that plans gave the job in the same time.
    """

    name: str
    workers: int
    sums: int = 0
    repeated: int = 0
    wrong: list[str] = field(default_factory=list)
    planned_mbps: float = 0.0
    measured_mbps: float = 0.0
    failure: str = ""

    @property
    def loss(self) -> float | None:
        if not self.planned_mbps or not self.measured_mbps:
            return None
        return max(0.0, 1 - self.measured_mbps / self.planned_mbps)

    def row(self) -> str:
        """Return its row of a table in Markdown."""
        loss = "" if self.loss is None else f"{self.loss:.0%}"
        measured = f"{self.measured_mbps:.2f}" if self.measured_mbps else ""
        return (
            f"| {self.name} | {self.workers} | {self.sums} | {self.repeated} | {self.planned_mbps:.2f} | {measured} | "
            f"{loss} |"
        )


def gather(report: JobReport, folder: Path, words: str) -> None:
    """Add to the report the results that the job's workers have left in their folder; `words` are its launcher's, where
    they left none.
    """
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("rank-*.json"))]
    report.sums = min((one["sums"] for one in found), default=0)
    report.repeated = max((one["repeated"] for one in found), default=0)
    report.wrong = [f"worker {one['rank']}: {wrong}" for one in found for wrong in one["wrong"]]
    seconds = max((one["seconds"] for one in found), default=0.0)
    if seconds:
        report.measured_mbps = max(one["elements"] for one in found) * WIRE_BITS_A_VALUE / seconds / 1e6
    failures = [one["failure"] for one in found if one["failure"]]
    if failures:
        report.failure = f"{failures[0]} ({words})"
    elif len(found) < report.workers:
        report.failure = f"{report.workers - len(found)} of {report.workers} workers have left nothing: {words}"


def add_jobs(findings: Findings, jobs: Iterable[JobReport]) -> None:
    """Add to the findings the sums, repeated operations and failures of jobs."""
    for job in jobs:
        findings.sums += job.sums
        findings.flagged += job.repeated
        findings.wrong += [f"{job.name}: {what}" for what in job.wrong]
        findings.failed += [f"{job.name}: {job.failure}"] if job.failure else []
