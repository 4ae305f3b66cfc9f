"""Prints the reports of several runs as one table, for a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.chaos.kinds import KINDS

TOTALS = ("sums", "wrong", "flagged", "failed")
WORDS = {"sums": "sums checked on every worker", "wrong": "**wrong**", "flagged": "refused and repeated",
         "failed": "failed for good"}  # fmt: skip


def table(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a column for each report: totals, then by kind of event the longest outage alone and beside
    another event, in seconds.
    """
    lines = ["| | " + " | ".join(report["title"] for report in reports) + " |", "|---|" + "---:|" * len(reports)]
    lines.append("| minutes | " + " | ".join(f"{report['seconds'] / 60:.1f}" for report in reports) + " |")
    for total in TOTALS:
        lines.append(f"| {WORDS[total]} | " + " | ".join(f"{report[total]:,}" for report in reports) + " |")
    lines.append("| events | " + " | ".join(str(len(report["events"])) for report in reports) + " |")
    for kind in KINDS:
        cells = [_cell(report["kinds"].get(kind)) for report in reports]
        if any(cells):
            lines.append(f"| `{kind}` | " + " | ".join(cells) + " |")
    quiet = [report["longest_outage_seconds"].get("nothing") for report in reports]
    lines.append("| undisturbed | " + " | ".join("" if each is None else f"{each:.1f}" for each in quiet) + " |")
    return "\n".join(lines)


def _cell(kind: Mapping[str, Any] | None) -> str:
    if kind is None:
        return ""
    alone, beside = kind["outage_alone_seconds"], kind["outage_beside_seconds"]
    return " / ".join("–" if each is None else f"{each:.1f}" for each in (alone, beside))
