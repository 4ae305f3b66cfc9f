"""Serves the agent's counters to Prometheus: `inart agent ... --metrics 0.0.0.0:9400`, then GET /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, Protocol

from worker_agent.engine_stats import EngineStats
from worker_agent.errors import AgentError

PER_TREE = ("chunks_sent", "answers", "duplicates", "refused", "resent_gap", "resent_timeout", "resent_recovery")


class Source(Protocol):
    """The object whose metrics are served: a Service, or the like."""

    @property
    def trainers(self) -> int: ...

    @property
    def agent(self) -> Any: ...


class Collector:
    """Reads the metrics at each scrape. Counters begin anew with the agent's engine, which Prometheus's rate() allows
    for.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator[Any]:
        """Yield Prometheus's metric families."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        agent = self._source.agent
        config = agent.config
        node = config.node if config is not None else ""

        def gauge(name: str, text: str, value: float) -> Any:
            family = GaugeMetricFamily(f"inart_{name}", text, labels=["node"])
            family.add_metric([node], value)
            return family

        yield gauge("ready", "1 while the job runs in the network.", float(agent.ready))
        yield gauge("trainers", "Trainers of this node that use the agent.", self._source.trainers)
        try:
            stats: EngineStats = agent.stats()
        except AgentError:
            return
        assert config is not None, "an engine runs"
        yield gauge("epoch", "The job's epoch.", config.epoch)
        yield gauge("workers", "Workers of the job.", len(config.workers))
        yield gauge("measured_mbps", "Wire Mbit/s while operations were under way, all trees.", stats.measured_mbps)
        planned = sum(tree.rate_mbps for tree in config.worker_trees)
        yield gauge("planned_mbps", "Wire Mbit/s that the plan allows, all trees.", planned)
        for field in fields(stats):
            value = getattr(stats, field.name)
            if isinstance(value, int | float):
                words = field.name.replace("_", " ")
                counter = CounterMetricFamily(f"inart_{field.name}", f"The engine's {words}.", labels=["node"])
                counter.add_metric([node], value)
                yield counter
        for name in PER_TREE:
            words = name.replace("_", " ")
            family = CounterMetricFamily(f"inart_tree_{name}", f"A tree's {words}.", labels=["node", "tree", "root"])
            for tree in stats.trees:
                family.add_metric([node, str(tree.tree), tree.root], getattr(tree, name))
            yield family


def serve_metrics(address: str, source: Source) -> tuple[int, Callable[[], None]]:
    """Serve /metrics on "host:port" ("0.0.0.0:9400"; port 0: any), and return the port and a function that ends it.
    Raise AgentError where that is impossible.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError:
        raise AgentError("--metrics needs prometheus-client: pip install 'inart[web]'") from None
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise AgentError(f"--metrics takes HOST:PORT, got {address!r}")
    registry = CollectorRegistry()
    registry.register(Collector(source))
    try:
        server, thread = start_http_server(int(port), host or "127.0.0.1", registry)
    except OSError as error:
        raise AgentError(f"cannot serve metrics on {address}: {error.strerror}") from None

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, close
