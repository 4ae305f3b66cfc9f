"""The alerts and the dashboard in examples/monitoring use metrics that the controller has, and say what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("bokeh", reason="the page's packages are not installed: pip install 'inart[web]'")

from prometheus_client.parser import text_string_to_metric_families

from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job
from controlplane.service.events import EventLog
from controlplane.service.measure import Measurements
from controlplane.service.snapshot import Snapshots
from controlplane.service.web.metrics import Metrics
from controlplane.targets.p4runtime.kind import P4RuntimeKind
from p4src.artifacts import find
from tests.deploy.memory_network import MemoryNetwork

FOLDER = Path(__file__).resolve().parents[2] / "examples/monitoring"
RULES = yaml.safe_load((FOLDER / "inart.rules.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((FOLDER / "inart.dashboard.json").read_text())
QUERIES = [rule["expr"] for rule in RULES] + [
    target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]
]


@pytest.fixture(scope="module")
def exposed(tmp_path_factory) -> Iterator[dict[str, set[str]]]:
    """Return the names and labels of the samples that a network with a planned job exposes."""
    folder = tmp_path_factory.mktemp("monitoring")
    topology = leaf_spine(2, 2, 3, 300.0)
    network = MemoryNetwork(folder, P4RuntimeKind(find("v1model", 256)), topology).network
    servers = topology.servers
    network.launch(Job("one", servers[:3], servers[3:4], model_bytes=1_000_000), "inart")
    snapshots = Snapshots(network, Measurements(network), EventLog())
    _, body = Metrics(snapshots).render("text/plain")
    names: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(body.decode()):
        names[family.name + ("_total" if family.type == "counter" else "")] = set()
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    network.close()
    yield names


def test_every_metric_that_is_asked_for_is_exposed(exposed: dict[str, set[str]]) -> None:
    asked = {name for query in QUERIES for name in re.findall(r"\binart_\w+", query)}
    assert len(asked) > 10
    assert asked <= set(exposed), f"nobody exposes {', '.join(sorted(asked - set(exposed)))}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_names_what_is_wrong_and_what_to_do(rule: dict[str, Any], exposed: dict[str, set[str]]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    words = rule["annotations"]["summary"] + rule["annotations"]["description"]
    named = set(re.findall(r"\$labels\.(\w+)", words))
    (metric,) = set(re.findall(r"\binart_\w+", rule["expr"].split(" and ")[0]))
    if exposed[metric]:  # A metric without events, like packets of a switch without traffic, has no sample yet.
        assert named <= exposed[metric], f"{metric} has no label {', '.join(sorted(named - exposed[metric]))}"
