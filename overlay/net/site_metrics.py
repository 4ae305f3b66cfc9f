"""Metrics of a coordinator of sites, for Prometheus: GET /metrics at its address."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def metrics_of(status: dict[str, Any]) -> str:
    """Return the metrics in Prometheus' text format, from a status as `SiteDesk.status` gives it."""
    taking = sum(site["takes_part"] for site in status["sites"].values())
    lines: list[str] = []

    def gauge(name: str, words: str, values: Iterable[tuple[str, float]], kind: str = "gauge") -> None:
        lines.extend([f"# HELP inart_sites_{name} {words}", f"# TYPE inart_sites_{name} {kind}"])
        lines.extend(f"inart_sites_{name}{labels} {value:.9g}" for labels, value in values)

    gauge("joined", "Sites that are connected.", [("", len(status["sites"]))])
    gauge("active", "Sites that take part in the next round.", [("", taking)])
    gauge("round", "The first round that is not done.", [("", status["round"])])
    gauge("late", "Sites that a round under way waits for.", [("", len(status["waits_for"]))])
    gauge("waited_for", "1 for each site that a round under way waits for.",
          [(f'{{site="{site}"}}', 1.0) for site in status["waits_for"]])  # fmt: skip
    gauge("without_result", "Sites that have no result yet of the round under way.",
          [("", sum(len(task["without_result"]) for task in status["under_way"]))])  # fmt: skip
    counts = (
        ("rounds_done", "Rounds done", "rounds_done"),
        ("busy_seconds", "Seconds in which rounds were on the network", "busy_seconds"),
        ("lost", "Times a site was lost", "sites_lost"),
    )
    for name, words, key in counts:
        gauge(f"{name}_total", f"{words} since this coordinator was started.", [("", status[key])], "counter")
    if status["last"]:
        gauge("round_seconds", "Of the last round, on the network.", [("", status["last"]["seconds"])])
    ends = [(f'{{from="{link["from"]}",to="{link["to"]}"}}', link) for link in status["links"]]
    gauge("link_mbps", "Measured, of payload.", [(labels, link["mbps"]) for labels, link in ends])
    gauge("link_loss", "Part of the packets that was sent again, lately.",
          [(labels, link["loss"]) for labels, link in ends])  # fmt: skip
    gauge("round_trip_seconds", "Least that was seen.",
          [(labels, link["round_trip_ms"] / 1000) for labels, link in ends])  # fmt: skip
    return "\n".join(lines) + "\n"
