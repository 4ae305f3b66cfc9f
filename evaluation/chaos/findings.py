"""Findings of a run under chaos: the numbers of sums, the outages by kind of event, and the effect of each event."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evaluation.chaos.events import AFTER_SECONDS, Happening, Kind

QUIET = "nothing"
SHOWN = 20
"""Most findings of a kind in the table; the JSON has all."""
WORDS = {"sums": "sums checked on every worker", "wrong": "**wrong**", "flagged": "refused and repeated",
         "failed": "failed for good"}  # fmt: skip


class Findings:
    """All findings of a run. Each job adds from a thread of its own: texts to the lists, numbers by methods."""

    def __init__(self, happenings: Sequence[Happening], kinds: Mapping[str, Kind]) -> None:
        self.happenings, self.kinds = happenings, kinds
        self.sums = self.flagged = 0
        self.wrong: list[str] = []
        self.failed: list[str] = []
        self.errors: dict[str, int] = {}
        self.ended: Counter[str] = Counter()
        """Jobs that have come and gone, by how they ended."""
        self.turned_away = 0
        """Times that a job could not come: there was no room, or the switch of one of its hosts was disabled."""
        self.left: list[str] = []
        """Remains of jobs (entries, processes, ..) when all were gone, in words."""
        self.longest: dict[str, float] = {}
        self.began = time.monotonic()
        self.seconds = 0.0
        self.interrupted = False
        self.lock = threading.Lock()

    def since(self, moment: float) -> float:
        return moment - self.began

    def add_sums(self, count: int) -> None:
        with self.lock:
            self.sums += count

    def add_flagged(self, error: str, again: bool) -> None:
        """Take note that a worker's operation ended with an error; `again` means that this was noted of it before."""
        with self.lock:
            self.flagged += not again
            key = error[:100]
            self.errors[key] = self.errors.get(key, 0) + 1

    def add_ended(self, how: str) -> None:
        """Take note that a job has come and gone."""
        with self.lock:
            self.ended[how] += 1

    def add_turned_away(self) -> None:
        with self.lock:
            self.turned_away += 1

    def add_gap(self, job: str, start: float, end: float) -> None:
        """Take note that no all-reduce of this job was done from `start` to `end`, when one was. The events to which
        that may be due are noted, too.
        """
        with self.lock:
            felt = [each for each in self.happenings if each.felt(start, end)]
            waits = [min(each.ended, end) for each in felt if job in each.jobs or self._is_alone(each, felt)]
            outage = end - max([start, *waits])
            if outage <= 0:
                return
            # Events that were over, with their outages, before this gap began have nothing to do with it.
            kinds = sorted(each.event.kind for each in felt)
            key = " + ".join(kinds) or QUIET
            self.longest[key] = max(self.longest.get(key, 0.0), outage)
            for each in felt:
                each.outage = max(each.outage, outage)

    def _is_alone(self, away: Happening, felt: Sequence[Happening]) -> bool:
        """Return whether the controller is away because of this event while another event leaves something that only
        the controller recovers.
        """
        return self.kinds[away.event.kind].stops_controller and any(
            self.kinds[each.event.kind].needs_controller
            and each.began < away.ended
            and away.began < each.ended + AFTER_SECONDS
            for each in felt
        )

    # -- findings as text ----------------------------------------------------------------------------------------------

    @property
    def missed(self) -> list[Happening]:
        """Events that were begun and had no effect that was seen."""
        return [each for each in self.happenings if each.happened is False]

    @property
    def status(self) -> int:
        """Exit status of the run: 3 where a sum was wrong, 4 where an operation failed for good, an event did not
        happen, or something was left, else 0.
        """
        return 3 if self.wrong else 4 if self.failed or self.missed or self.left else 0

    def to_json(self, title: str = "") -> dict[str, Any]:
        """Return the findings as an object of JSON, with a title of the run for `--summary`."""
        return {
            "title": title,
            "sums": self.sums,
            "wrong": len(self.wrong),
            "flagged": self.flagged,
            "failed": len(self.failed),
            "seconds": round(self.seconds, 1),
            "interrupted": self.interrupted,
            "came_and_went": dict(self.ended),
            "turned_away": self.turned_away,
            "left": self.left,
            "longest_outage_seconds": {key: round(value, 2) for key, value in sorted(self.longest.items())},
            "kinds": {
                kind: {"times": times, "happened": seen, "outage_alone_seconds": alone, "outage_beside_seconds": beside}
                for kind, times, seen, alone, beside in self.rows()
            },
            "wrong_sums": self.wrong,
            "failures": self.failed,
            "flags": self.errors,
            "events": [self._event(each) for each in self.happenings if each.happened is not None],
        }

    def _event(self, each: Happening) -> dict[str, Any]:
        return {
            "number": each.event.number,
            "kind": each.event.kind,
            "target": each.event.target,
            "began_seconds": round(self.since(each.began), 2),
            "ended_seconds": round(self.since(each.ended), 2),
            "beside": [o.event.number for o in self.happenings if o is not each and _overlap(o, each)],
            "happened": each.happened,
            "evidence": each.evidence,
            "outage_seconds": round(each.outage, 2),
            "problem": each.problem,
        }

    def rows(self) -> list[tuple[str, int, int, float | None, float | None]]:
        """Return, by kind of event, how often it came, how often its effect was seen, and the longest outage by it
        alone and beside another event (None if there was none, or if outages are not measured).
        """
        rows = []
        for kind in self.kinds:
            came = [each for each in self.happenings if each.event.kind == kind and each.happened is not None]
            if not came:
                continue
            alone: list[float] = []
            beside: list[float] = []
            for each in came:
                others = any(o is not each and o.happened is not None and _near(o, each) for o in self.happenings)
                if self.longest:
                    (beside if others else alone).append(each.outage)
            seen = sum(each.happened is True for each in came)
            rows.append((kind, len(came), seen, max(alone, default=None), max(beside, default=None)))
        return rows

    def table(self, title: str) -> str:
        """Return a table for people, and for a page of Markdown."""
        verdict = f"**{len(self.wrong)} wrong**" if self.wrong else "0 wrong"
        lines = [
            f"{title}: {self.seconds / 60:.1f} minutes, {self.sums} sums checked on every worker, {verdict}, "
            f"{self.flagged} operations refused and repeated, {len(self.failed)} failed for good"
            + (" (interrupted)" if self.interrupted else ""),
            "",
        ]
        head, rule = "| event | times | seen to happen |", "|---|---:|---:|"
        if self.longest:
            head, rule = head + " longest outage alone, s | beside another, s |", rule + "---:|---:|"
        lines += [head, rule]
        for kind, times, seen, *outages in self.rows():
            shown = [f" {'' if outage is None else f'{outage:.1f}'} |" for outage in outages if self.longest]
            lines.append(f"| `{kind}` | {times} | {seen} |" + "".join(shown))
        quiet = self.longest.get(QUIET)
        if quiet is not None:
            lines.append(f"| none | | | {quiet:.1f} | |")
        if self.ended:
            how = ", ".join(f"{count} {how}" for how, count in sorted(self.ended.items()))
            lines += [
                "",
                f"{self.ended.total()} jobs came and went ({how}); {self.turned_away} times there was no room",
            ]
        lines += ["", *(f"WRONG: {what}" for what in self.wrong[:SHOWN])]
        lines += [f"FAILED: {what}" for what in self.failed[:SHOWN]]
        lines += [f"DID NOT HAPPEN: {each.event}: {each.problem or each.evidence}" for each in self.missed]
        lines += [f"LEFT: {what}" for what in self.left[:SHOWN]]
        return "\n".join(lines).rstrip()


def _overlap(a: Happening, b: Happening) -> bool:
    return a.began < b.ended and b.began < a.ended


def _near(a: Happening, b: Happening) -> bool:
    """Return whether the outage of one event may be due to the other."""
    return a.began < b.ended + AFTER_SECONDS and b.began < a.ended + AFTER_SECONDS


def compared(reports: Sequence[Mapping[str, Any]], kinds: Iterable[str]) -> str:
    """Return a table with a column for each report: totals, then by kind of event the longest outage alone and beside
    another event, in seconds.
    """
    lines = ["| | " + " | ".join(report["title"] for report in reports) + " |", "|---|" + "---:|" * len(reports)]
    lines.append("| minutes | " + " | ".join(f"{report['seconds'] / 60:.1f}" for report in reports) + " |")
    for total, words in WORDS.items():
        lines.append(f"| {words} | " + " | ".join(f"{report[total]:,}" for report in reports) + " |")
    lines.append("| events | " + " | ".join(str(len(report["events"])) for report in reports) + " |")
    for kind in kinds:
        cells = [_cell(report["kinds"].get(kind)) for report in reports]
        if any(cells):
            lines.append(f"| `{kind}` | " + " | ".join(cells) + " |")
    quiet = [report["longest_outage_seconds"].get(QUIET) for report in reports]
    lines.append("| undisturbed | " + " | ".join("" if each is None else f"{each:.1f}" for each in quiet) + " |")
    return "\n".join(lines)


def _cell(kind: Mapping[str, Any] | None) -> str:
    if kind is None:
        return ""
    alone, beside = kind["outage_alone_seconds"], kind["outage_beside_seconds"]
    return " / ".join("–" if each is None else f"{each:.1f}" for each in (alone, beside))
