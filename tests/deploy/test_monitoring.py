"""The alerts and the dashboard in examples/monitoring use metrics that the controller has, and say what to do."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

pytest.importorskip("bokeh", reason="the page's packages are not installed: pip install 'inart[web]'")

from prometheus_client.parser import text_string_to_metric_families

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.job import Job
from controlplane.service.measure import Measurements
from controlplane.service.snapshot import Snapshots
from controlplane.service.web.metrics import Metrics
from p4src.protocol import ENCODING
from tests.deploy.memory_network import RACKS, MemoryNetwork
from tests.support.waiting import wait_until
from topologies.ports import free_port

FOLDER = Path(__file__).resolve().parents[2] / "examples/monitoring"
RULES = yaml.safe_load((FOLDER / "inart.rules.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((FOLDER / "inart.dashboard.json").read_text())
QUERIES = [rule["expr"] for rule in RULES] + [
    target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]
]


@pytest.fixture(scope="module")
def network_metrics(tmp_path_factory) -> bytes:
    """Return what a network with a planned job exposes, of whose agents two have joined and reported."""
    folder = tmp_path_factory.mktemp("monitoring")
    network = MemoryNetwork(folder, values=256).network
    servers = RACKS.servers
    _, job, _ = network.launch(Job("one", servers[:3], servers[3:4], model_bytes=1_000_000), "inart")
    for node, role in ((servers[0], "worker"), (servers[3], "parameter_server")):
        job.roster.join(pb.JoinRequest(node=node, role=role, version=ENCODING))
        report = pb.ReportRequest(node=node, epoch=job.roster.epoch, statistics={"packets_sent": 1.0})
        job.roster.report(report)
    snapshots = Snapshots(network, Measurements(network))
    _, body = Metrics(snapshots).render("text/plain")
    network.close()
    return body


@pytest.fixture(scope="module")
def exposed(network_metrics: bytes) -> dict[str, set[str]]:
    """Return the names and labels of the samples that it exposes."""
    names: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(network_metrics.decode()):
        names[family.name + ("_total" if family.type == "counter" else "")] = set()
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


def test_only_a_job_whose_workers_wait_is_reported(rig: MemoryNetwork) -> None:
    """The alert was on for every job that had not begun yet, or had ended and not been removed."""
    job = rig.add(Job("one", RACKS.servers[:3], RACKS.servers[3:4], model_bytes=1_000_000))

    def waiting() -> float:
        _, body = Metrics(Snapshots(rig.network, Measurements(rig.network))).render("text/plain")
        (found,) = (
            one for one in text_string_to_metric_families(body.decode()) if one.name == "inart_job_workers_waiting"
        )
        return found.samples[0].value

    alert = next(rule["expr"] for rule in RULES if rule["alert"] == "InArtJobWaits")
    assert alert == "inart_job_workers_waiting > 0" and waiting() == 0
    agents = {node: job.roster.join(pb.JoinRequest(node=node, role=config.role, version=ENCODING, agent=node))
              for node, config in list(job.roster.configs.items())[:2]}  # fmt: skip
    assert waiting() == len(agents)
    for member in agents.values():
        job.roster.leave(member)
    assert waiting() == 0


def test_every_metric_that_is_asked_for_is_exposed(exposed: dict[str, set[str]]) -> None:
    asked = {name for query in QUERIES for name in re.findall(r"\binart_\w+", query)}
    assert len(asked) > 10
    assert asked <= set(exposed), f"nobody exposes {', '.join(sorted(asked - set(exposed)))}"


def documented() -> list[str]:
    """Return the metrics in the table of docs/deploy.md; `_name` there has the beginning of the one before."""
    page = (FOLDER.parents[1] / "docs" / "deploy.md").read_text()
    names: list[str] = []
    for row in re.findall(r"^\| (`inart_.*?`) \|", page, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", row):
            names.append(name if name.startswith("inart_") else "_".join(names[-1].split("_")[:2]) + name)
    return names


SPARSE = {
    "inart_tree_busy_mbps",
    "inart_kept_off",
    "inart_answers_total",
    "inart_verdicts_total",
    "inart_link_bytes_total",
}
"""Metrics with no sample while all is well and idle, or without switches that count."""


def test_every_documented_metric_has_a_sample(network_metrics: bytes) -> None:
    families = list(text_string_to_metric_families(network_metrics.decode()))
    sampled = {sample.name for family in families for sample in family.samples}
    there = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert len(documented()) > 30
    assert set(documented()) <= there, f"not exposed: {sorted(set(documented()) - there)}"
    assert set(documented()) - sampled <= SPARSE, f"no sample: {sorted(set(documented()) - sampled - SPARSE)}"
    assert there <= set(documented()), f"not documented: {sorted(there - set(documented()))}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_names_what_is_wrong_and_what_to_do(rule: dict[str, Any], exposed: dict[str, set[str]]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    words = rule["annotations"]["summary"] + rule["annotations"]["description"]
    named = set(re.findall(r"\$labels\.(\w+)", words))
    (metric,) = set(re.findall(r"\binart_\w+", rule["expr"].split(" and ")[0]))
    if exposed[metric]:  # A metric without events, like packets of a switch without traffic, has no sample yet.
        assert named <= exposed[metric], f"{metric} has no label {', '.join(sorted(named - exposed[metric]))}"


def test_grafanas_own_model_of_dashboards_reads_all_of_it() -> None:
    """What the model does not know is lost in it."""
    sdk = "grafana_foundation_sdk"
    models = pytest.importorskip(f"{sdk}.models.dashboard", reason="pip install grafana-foundation-sdk")
    plugins, encoder = (importlib.import_module(f"{sdk}.cog.{name}") for name in ("plugins", "encoder"))
    plugins.register_default_plugins()
    read = models.Dashboard.from_json(json.loads(json.dumps(DASHBOARD)))
    assert known(DASHBOARD, json.loads(json.dumps(read, cls=encoder.JSONEncoder)))


def known(given: Any, read: Any) -> bool:
    """Return whether all that was given is in what was read."""
    if isinstance(given, dict):
        return all(key in read and known(value, read[key]) for key, value in given.items())
    if isinstance(given, list):
        return len(given) == len(read) and all(map(known, given, read))
    return bool(given == read)


def test_prometheus_takes_the_rules_and_the_metrics(network_metrics: bytes) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    rules = subprocess.run(
        [promtool, "check", "rules", FOLDER / "inart.rules.yml"], capture_output=True, text=True, check=False
    )
    assert rules.returncode == 0 and f"{len(RULES)} rules found" in rules.stdout, rules.stderr
    metrics = subprocess.run([promtool, "check", "metrics"], input=network_metrics, capture_output=True, check=False)
    assert b"error" not in metrics.stderr.lower(), metrics.stderr.decode()


def test_a_real_prometheus_answers_every_query(network_metrics: bytes, tmp_path: Path) -> None:
    """Prometheus scrapes what the controller exposes; it takes each expression of the rules and of the dashboard,
    and the alerts on the job that waits and on what nobody has joined are pending."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")

    class Target(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(network_metrics)

        def log_message(self, format: str, *args: object) -> None:
            pass

    target = ThreadingHTTPServer(("127.0.0.1", 0), Target)
    threading.Thread(target=target.serve_forever, daemon=True).start()
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(FOLDER / "inart.rules.yml")],
        "scrape_configs": [{
            "job_name": "inart", "honor_labels": True,
            "static_configs": [{"targets": [f"127.0.0.1:{target.server_port}"]}],
        }],
    }  # fmt: skip
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [prometheus, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    with open(tmp_path / "log", "w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            wait_until(lambda: process.poll() is not None or ask(port, "query?query=inart_jobs")["result"], 60)
            for query in QUERIES:
                quoted = quote(query.replace("$__rate_interval", "1m").replace("$job", ".*"))
                ask(port, f"query?query={quoted}")
            wait_until(lambda: any(alert["labels"]["alertname"] == "InArtJobWaits" for alert in
                                 ask(port, "alerts")["alerts"]), 60)  # fmt: skip
        finally:
            process.terminate()
            target.shutdown()
            target.server_close()
            print((tmp_path / "log").read_text()[-2000:])


def ask(port: int, what: str) -> dict[str, Any]:
    """Return Prometheus' answer; nothing while it starts. An expression that it does not take is an HTTPError."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/{what}", timeout=30) as answer:
            return json.loads(answer.read())["data"]
    except HTTPError as error:
        if error.code == 503:
            return {"result": [], "alerts": []}
        raise AssertionError(f"{what}: {error.read().decode()}") from None
    except URLError:
        return {"result": [], "alerts": []}
