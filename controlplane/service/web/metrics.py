"""The controller's metrics for Prometheus: every scrape reads the switches' counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder

from controlplane.service.measure import Reading
from controlplane.service.snapshot import Snapshots

WORKER, PARAMETER_SERVER = frozenset(("worker",)), frozenset(("parameter_server",))
AGENT_COUNTERS = {
    "resent": (WORKER, "Packets that a worker has sent again."),
    "marked": (WORKER, "Answers that reported a long queue (ECN)."),
    "duplicates": (WORKER | PARAMETER_SERVER, "Packets that had arrived before."),
    "refused": (WORKER | PARAMETER_SERVER, "Packets that do not belong where they arrived."),
    "results_dropped": (PARAMETER_SERVER, "Results for which a parameter server had no room."),
    "malformed": (WORKER | PARAMETER_SERVER, "Packets that are no packets of InArt."),
    "kernel_drops": (WORKER | PARAMETER_SERVER, "Packets that the kernel dropped because a buffer was full."),
    "send_errors": (WORKER | PARAMETER_SERVER, "Packets that the kernel did not send."),
}
"""The counters of agents that are metrics, by their names in reports: the roles that have each, and a description.

Reports have no zeros, so a counter that is not in a report of such an agent is 0. A worker whose host is a parameter
server, too, reports both.
"""


class Collector:
    """Collects the metrics at each scrape. Counters of a switch that restarts, and of an agent in a new epoch, begin
    anew, which Prometheus's rate() allows for."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterator[Any]:
        """Yield Prometheus's metric families."""
        now = self._snapshots.take()
        yield from _of_jobs(now["jobs"])
        yield from _of_links(now["links"], self._snapshots.measurements.read())
        yield from _of_switches([node for node in now["nodes"] if node["kind"] == "switch"])
        yield from _of_agents(now["jobs"])
        yield _counter("events", "Events of the log.", (), [((), self._snapshots.network.journal.line_count)])
        yield _gauge("kept_off", "1 for what no plan uses.", ("name", "why"), [
            ((name, why), 1) for name, why in now["without"].items()
        ])  # fmt: skip
        yield _counter("answers", "What was done about failures.", ("what",), [
            ((what,), count) for what, count in now["answers"].items()
        ])  # fmt: skip


Rows = Sequence[tuple[Sequence[str], float]]
Object = Mapping[str, Any]
"""An object of a snapshot."""


def _of_jobs(jobs: Sequence[Object]) -> Iterator[Any]:
    yield _gauge("jobs", "Jobs on the network.", (), [((), len(jobs))])
    of_job = [((job["name"],), job) for job in jobs]
    for name, text, value in (
        ("planned_mbps", "Planned sending rate of each worker, Mbit/s.", lambda job: job["planned_mbps"]),
        ("measured_mbps", "What a worker sends on average, Mbit/s.", lambda job: job["measured_mbps"]),
        ("running", "1 while all agents are there.", lambda job: job["state"] == "running"),
        ("agents", "Agents that the job has.", lambda job: len(job["agents"])),
        ("agents_missing", "Agents that have not joined.", lambda job: len(job["missing"])),
        ("workers_waiting", "Workers that wait until all agents are there.", lambda job: job["workers_waiting"]),
        ("epoch", "The job's epoch.", lambda job: job["epoch"]),
        ("plan_version", "Version of the plan.", lambda job: job["version"]),
        ("bottleneck_ratio", "Planned load over capacity where it is fullest.", lambda job: job["bottleneck"]["used"]),
    ):  # fmt: skip
        yield _gauge(f"job_{name}", text, ("job",), [(labels, value(job)) for labels, job in of_job])
    trees = [((job["name"], str(tree["tree"]), tree["root"]), tree) for job in jobs for tree in job["trees"]]
    for name, text in (
        ("planned_mbps", "Planned rate of a worker on a tree, Mbit/s."),
        ("measured_mbps", "What a worker sends on a tree on average, Mbit/s."),
        ("waiting_seconds", "How long a tree's oldest chunk has lacked a worker."),
    ):
        yield _gauge(f"tree_{name}", text, ("job", "tree", "root"), [(labels, tree[name]) for labels, tree in trees])
    busy = [(labels, tree["busy_mbps"]) for labels, tree in trees if tree["busy_mbps"] is not None]
    text = "What a tree carries for a worker while all workers are busy there, Mbit/s; no sample while one is idle."
    yield _gauge("tree_busy_mbps", text, ("job", "tree", "root"), busy)


def _of_links(links: Sequence[Object], reading: Reading) -> Iterator[Any]:
    ends = [((link["from"], link["to"]), link) for link in links]
    for name, text in (
        ("bandwidth_mbps", "A link's bandwidth, Mbit/s."),
        ("planned_mbps", "Planned load of a link, Mbit/s."),
        ("measured_mbps", "Aggregation traffic on a link, Mbit/s."),
        ("other_mbps", "Other traffic on a link, Mbit/s, where serve measures it (beside)."),
    ):
        yield _gauge(f"link_{name}", text, ("from", "to"), [(labels, link[name]) for labels, link in ends])
    yield _counter("link_bytes", "Aggregation traffic on a link.", ("from", "to"), [
        (link, sum(flow.total for flow in flows.values())) for link, flows in reading.links.items()
    ])  # fmt: skip


def _of_switches(switches: Sequence[Object]) -> Iterator[Any]:
    of_switch = [((node["name"],), node) for node in switches]
    for name, text, value in (
        ("connected", "1 while the switch answers.", lambda node: node["state"] == "connected"),
        ("slots_used", "Aggregation slots that jobs have.", lambda node: node["slots_used"]),
        ("slots", "Aggregation slots that there are.", lambda node: node["slots"]),
        ("labels", "Label entries of jobs.", lambda node: node["labels"]),
        ("planned_mbps", "Planned aggregation, Mbit/s of input.", lambda node: node["planned_mbps"]),
    ):
        values = [(labels, value(node)) for labels, node in of_switch]  # type: ignore[no-untyped-call]
        yield _gauge(f"switch_{name}", text, ("switch",), values)
    yield _counter("switch_refills", "How often a switch was filled again.", ("switch",), [
        (labels, node["refills"]) for labels, node in of_switch
    ])  # fmt: skip
    yield _counter("verdicts", "Packets by what the switch decided.", ("switch", "verdict"), [
        ((node["name"], verdict), count) for node in switches for verdict, count in node["verdicts"].items()
    ])  # fmt: skip


def _of_agents(jobs: Sequence[Object]) -> Iterator[Any]:
    agents = [((job["name"], node), agent) for job in jobs for node, agent in job["agents"].items()]
    reported = [(labels, agent["role"], agent["statistics"]) for labels, agent in agents if agent["statistics"]]
    for name, (roles, text) in AGENT_COUNTERS.items():
        rows = [
            (labels, numbers.get(name, 0.0)) for labels, role, numbers in reported if role in roles or name in numbers
        ]
        yield _counter(f"agent_{name}", text, ("job", "node"), rows)


def _gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> Any:
    family = GaugeMetricFamily(f"inart_{name}", text, labels=labels)
    for values, number in rows:
        family.add_metric(values, float(number))
    return family


def _counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> Any:
    family = CounterMetricFamily(f"inart_{name}", text, labels=labels)
    for values, number in rows:
        family.add_metric(values, float(number))
    return family


class Metrics:
    """The metrics of a network, which Prometheus finds at /metrics."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(Collector(snapshots))

    def render(self, accept: str) -> tuple[str, bytes]:
        """Return the content type and the body, in the format that the scraper asks for."""
        encoder, content_type = choose_encoder(accept)
        return content_type, encoder(self._registry)
