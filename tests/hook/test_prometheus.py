"""The agent's counters in the format that Prometheus reads."""

from __future__ import annotations

import urllib.request
from types import SimpleNamespace

import pytest

from worker_agent.engine_stats import EngineStats, TreeStats
from worker_agent.errors import AbortedError, AgentError
from worker_agent.prometheus import serve_metrics

prometheus_parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")


def statistics(**changes) -> EngineStats:
    values = dict.fromkeys(EngineStats.__dataclass_fields__, 0) | {"cpu_seconds": 1.5}
    numbers = dict.fromkeys(TreeStats.__dataclass_fields__, 0) | {"tree": 3, "root": "s0", "answers": 17}
    return EngineStats(**values | {"trees": (TreeStats(**numbers),)} | changes)


class Source:
    trainers = 2

    def __init__(self) -> None:
        tree = SimpleNamespace(rate_mbps=250.0)
        config = SimpleNamespace(node="w1", epoch=4, workers=("w0", "w1"), worker_trees=(tree, tree))
        self.agent = SimpleNamespace(ready=True, config=config, stats=lambda: statistics(packets_sent=99))


def scrape(port: int) -> dict[tuple[str, str], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    families = prometheus_parser.text_string_to_metric_families(text)
    return {
        (s.name, s.labels.get("tree", "")): s.value for f in families for s in f.samples if s.labels["node"] == "w1"
    }


def test_a_scrape_has_the_engine_and_its_trees():
    source = Source()
    port, close = serve_metrics("127.0.0.1:0", source)
    try:
        found = scrape(port)
        assert found["inart_packets_sent_total", ""] == 99
        assert found["inart_planned_mbps", ""] == 500
        assert found["inart_tree_answers_total", "3"] == 17
        assert found["inart_trainers", ""] == 2

        def closed() -> EngineStats:
            raise AbortedError("s0 is gone")

        source.agent.ready, source.agent.stats = False, closed
        found = scrape(port)
        assert found == {("inart_ready", ""): 0, ("inart_trainers", ""): 2}
        with pytest.raises(AgentError, match="cannot serve metrics"):
            serve_metrics(f"127.0.0.1:{port}", source)
    finally:
        close()


def test_an_address_without_a_port_says_so():
    with pytest.raises(AgentError, match="HOST:PORT"):
        serve_metrics("localhost", Source())
