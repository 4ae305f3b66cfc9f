"""The report of a day: its jobs, its sums, and how long each verb took."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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


@dataclass
class VerbReport:
    """Report of an operator's order, or of a failure.

    Attributes:
        outcome: the last line of its output, or why it did not work.
    """

    verb: str
    target: str
    at: float
    seconds: float
    done: bool
    outcome: str


@dataclass
class Report:
    """Report of the whole day.

    Attributes:
        launcher: how jobs were started.
        flows_mbps: rate of foreign TCP, by pair of hosts.
    """

    launcher: str
    seed: int
    jobs: list[JobReport] = field(default_factory=list)
    verbs: list[VerbReport] = field(default_factory=list)
    flows_mbps: dict[str, float] = field(default_factory=dict)
    most_at_once: int = 0
    seconds: float = 0.0

    @property
    def failed(self) -> list[str]:
        return [f"{job.name}: {job.failure}" for job in self.jobs if job.failure]

    @property
    def wrong(self) -> list[str]:
        return [f"{job.name}: {what}" for job in self.jobs for what in job.wrong]

    @property
    def undone(self) -> list[str]:
        return [f"{verb.verb} {verb.target}".rstrip() + f": {verb.outcome}" for verb in self.verbs if not verb.done]

    @property
    def status(self) -> int:
        """Exit status: 3 when a sum was wrong, 4 when a job has failed, 5 when a verb could not be done, else 0."""
        return 3 if self.wrong else 4 if self.failed else 5 if self.undone else 0

    def to_json(self) -> dict[str, Any]:
        jobs = [asdict(job) | {"loss": job.loss} for job in self.jobs]
        sums = sum(job.sums for job in self.jobs)
        return {
            "launcher": self.launcher, "seed": self.seed, "seconds": round(self.seconds, 1), "sums": sums,
            "wrong": len(self.wrong), "failed": len(self.failed), "undone": len(self.undone),
            "most_at_once": self.most_at_once, "jobs": jobs,
            "verbs": [asdict(verb) for verb in self.verbs], "flows_mbps": self.flows_mbps,
        }  # fmt: skip

    def table(self) -> str:
        """Return a table for people, and for a page of Markdown."""
        sums = sum(job.sums for job in self.jobs)
        lines = [
            f"{len(self.jobs)} jobs through {self.launcher} in {self.seconds / 60:.1f} minutes, at most "
            f"{self.most_at_once} at a time; {sums} sums checked on every worker, {len(self.wrong)} wrong, "
            f"{len(self.failed)} jobs failed",
            "", "| verb | on | at, s | took, s | |", "|---|---|---:|---:|---|",
        ]  # fmt: skip
        for verb in self.verbs:
            outcome = verb.outcome if verb.done else f"NOT DONE: {verb.outcome}"
            lines.append(f"| {verb.verb} | {verb.target} | {verb.at:.0f} | {verb.seconds:.1f} | {outcome} |")
        lines += ["", "| job | workers | sums | repeated | planned, Mbit/s | measured | loss of rate |"]
        lines.append("|---|---:|---:|---:|---:|---:|---:|")
        for job in self.jobs:
            loss = "" if job.loss is None else f"{job.loss:.0%}"
            measured = f"{job.measured_mbps:.2f}" if job.measured_mbps else ""
            lines.append(
                f"| {job.name} | {job.workers} | {job.sums} | {job.repeated} | {job.planned_mbps:.2f} | {measured} | "
                f"{loss} |"
            )
        if self.flows_mbps:
            rates = sorted(self.flows_mbps.values())
            lines += ["", f"foreign TCP: {len(rates)} flows, {rates[0]:.2f} to {rates[-1]:.2f} Mbit/s"]
        lines += [f"WRONG: {what}" for what in self.wrong] + [f"FAILED: {what}" for what in self.failed]
        lines += [f"NOT DONE: {what}" for what in self.undone]
        return "\n".join(lines)


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
