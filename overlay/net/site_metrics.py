"""Metrics of a coordinator of sites, for Prometheus: GET /metrics at its address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

Rows = Sequence[tuple[Sequence[str], float]]
"""Values of a metric, each with the values of its labels."""


def metrics_of(status: Mapping[str, Any], accept: str = "") -> tuple[str, bytes]:
    """Return the content type and the body, in the format that the scraper accepts.

    Args:
        status: a status as `SiteDesk.status` returns it.
        accept: the request's header "Accept".
    """
    registry = CollectorRegistry()
    registry.register(_Collector(status))
    encoder, content_type = choose_encoder(accept)
    return content_type, encoder(registry)


class _Collector:
    """Collects the metrics of one status."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Any]:
        """Yield the metric families."""
        status = self._status
        late = status["waits_for"]
        active = sum(site["takes_part"] for site in status["sites"].values())
        without = sum(len(task["without_result"]) for task in status["under_way"])
        for name, text, value in (
            ("joined", "Sites that are connected.", len(status["sites"])),
            ("active", "Sites that take part in the next round.", active),
            ("round", "The first round that is not done.", status["round"]),
            ("late", "Sites that the round under way waits for.", len(late)),
            ("without_result", "Sites that have no result yet of the round under way.", without),
        ):  # fmt: skip
            yield _family(GaugeMetricFamily, name, text, (), [((), value)])
        text = "1 for each site that the round under way waits for."
        yield _family(GaugeMetricFamily, "waited_for", text, ("site",), [((site,), 1) for site in late])
        for name, text, key in (
            ("rounds_done", "Rounds done since this coordinator was started.", "rounds_done"),
            ("busy_seconds", "Seconds in which rounds were on the network since this coordinator was started.",
             "busy_seconds"),
            ("lost", "Times that a site was lost since this coordinator was started.", "sites_lost"),
            ("changes_not_finite", "Changes that were left out because of values that are not finite.",
             "changes_not_finite"),
            ("changes_bounded", "Changes whose norm was reduced because it was much larger than the others'.",
             "changes_bounded"),
        ):  # fmt: skip
            yield _family(CounterMetricFamily, name, text, (), [((), status[key])])
        if status["last"]:
            text = "Seconds that the last round was on the network."
            yield _family(GaugeMetricFamily, "round_seconds", text, (), [((), status["last"]["seconds"])])
        ends = [((link["from"], link["to"]), link) for link in status["links"]]
        for name, text, key, unit in (
            ("link_mbps", "Measured rate of payload from a site to another one, in Mbit/s.", "mbps", 1.0),
            ("link_loss", "Fraction of the packets that was sent again recently.", "loss", 1.0),
            ("round_trip_seconds", "Minimum of the measured round trips, in seconds.", "round_trip_ms", 1e-3),
        ):
            rows = [(labels, link[key] * unit) for labels, link in ends]
            yield _family(GaugeMetricFamily, name, text, ("from", "to"), rows)


def _family(kind: type[Any], name: str, text: str, labels: Sequence[str], rows: Rows) -> Any:
    family = kind(f"inart_sites_{name}", text, labels=labels)
    for values, number in rows:
        family.add_metric(values, float(number))
    return family
