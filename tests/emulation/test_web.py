"""The information that a controller shows under real traffic: loads, Prometheus's metrics, and the page in headless
Chromium.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from controlplane.cli.certificates import Wanted, make
from controlplane.common.access import Access
from controlplane.common.rpc.channels import open_channel
from controlplane.common.rpc.stubs import SERVICE
from controlplane.common.rpc.tls import credentials
from controlplane.common.tokens import load_tokens
from controlplane.service.journal import logger_of
from controlplane.service.measure import Measurements
from controlplane.service.snapshot import Snapshots
from controlplane.service.web.server import Site, Web
from tests.emulation.rig import Rig, paper_testbed
from tests.support.waiting import wait_until

SIZE = 400_000
SECONDS = 60.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig("softswitch", paper_testbed(40.0), "inart") as running:
        running.start_all()
        yield running


@pytest.fixture(scope="module")
def snapshots(rig: Rig) -> Iterator[Snapshots]:
    logger_of(rig.service.network.journal).info("job <b>one</b> lost & found")
    measurements = Measurements(rig.service.network)
    measurements.start()
    yield Snapshots(rig.service.network, measurements)
    measurements.close()


@pytest.fixture(scope="module")
def url(snapshots: Snapshots) -> Iterator[str]:
    web = Web("127.0.0.1:0")
    web.start(Site(snapshots))
    yield web.url
    web.close()


def get(url: str, headers: dict[str, str] | None = None, context: ssl.SSLContext | None = None) -> str:
    request = urllib.request.Request(url, headers=headers or {})
    with urllib.request.urlopen(request, timeout=SECONDS, context=context) as answer:
        return str(answer.read().decode())


def later(snapshots: Snapshots, before: float) -> dict[str, Any]:
    """Return a snapshot with a reading that is newer than `before`."""
    wait_until(lambda: snapshots.take()["measured_at"] > before, "a reading of the counters", SECONDS)
    return snapshots.take()


def totals(snapshots: Snapshots) -> dict[tuple[str, str], int]:
    links = snapshots.measurements.read().links
    return {link: sum(flow.total for flow in flows.values()) for link, flows in links.items()}


def test_every_byte_is_counted_where_it_went(rig: Rig, snapshots: Snapshots) -> None:
    first = later(snapshots, time.time())
    before = totals(snapshots)
    rig.allreduce(SIZE).check()
    now = later(snapshots, time.time())
    after = totals(snapshots)
    more = {link: count - before.get(link, 0) for link, count in after.items()}
    topology = rig.topology
    up = {worker: more[worker, topology.access_switch(worker)] for worker in rig.job.workers}
    assert min(up.values()) > 0.8 * max(up.values()), "all workers send the same, but for resends"
    assert min(up.values()) > SIZE
    down = [more[topology.access_switch(worker), worker] for worker in rig.job.workers]
    assert min(down) >= 0.9 * min(up.values()), "a result for every chunk"
    for link, count in more.items():
        if count and link[1] not in rig.job.parameter_servers:
            planned = next(one for one in now["links"] if (one["from"], one["to"]) == link)["planned_mbps"]
            assert planned > 0, f"{link} carries {count} bytes that nobody planned"
    assert {one["state"] for one in now["nodes"] if one["kind"] == "switch"} == {"connected"}
    assert first["jobs"][0]["bottleneck"]["name"]
    assert sum(tree["planned_mbps"] for tree in now["jobs"][0]["trees"]) == pytest.approx(rig.plan.rate_mbps)


def test_rates_are_measured_while_it_sums(rig: Rig, snapshots: Snapshots) -> None:
    seen: set[str] = set()
    for _ in range(100):
        rig.allreduce(SIZE).check()
        taken = snapshots.take()
        job = taken["jobs"][0]
        seen |= {"job"} if job["measured_mbps"] else set()
        seen |= {"trees"} if all(tree["measured_mbps"] for tree in job["trees"]) else set()
        seen |= {"links"} if any(link["measured_mbps"] for link in taken["links"]) else set()
        if len(seen) == 3:
            return
    pytest.fail(f"only of {seen} a rate was measured")


def test_metrics_are_what_prometheus_reads(rig: Rig, url: str) -> None:
    text = get(url + "metrics", {"Accept": "application/openmetrics-text"})
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name in ("jobs", "job_planned_mbps", "job_measured_mbps", "tree_planned_mbps", "tree_measured_mbps",
                 "link_planned_mbps", "link_measured_mbps", "link_bytes", "switch_slots_used", "verdicts", "events",
                 "agent_resent", "switch_connected"):  # fmt: skip
        assert f"inart_{name}" in families
    link = {(s.labels["from"], s.labels["to"]): s.value for s in families["inart_link_planned_mbps"].samples}
    assert set(link) == set(rig.topology.links)
    verdicts: dict[str, float] = {}
    for sample in families["inart_verdicts"].samples:
        verdicts[sample.labels["verdict"]] = verdicts.get(sample.labels["verdict"], 0) + sample.value
    now = rig.verdicts()
    assert 0 < verdicts["completed"] <= now["completed"]
    assert "# EOF" in text
    assert get(url + "metrics").startswith("# HELP"), "and in the old format"


def test_health(rig: Rig) -> None:
    with open_channel(rig.service.address) as channel:
        for service in ("", SERVICE):
            answer = HealthStub(channel).Check(HealthCheckRequest(service=service), timeout=SECONDS)
            assert answer.status == HealthCheckResponse.SERVING


def test_missing_pages_are_reported(url: str) -> None:
    for path in ("nothing", "static/../../page.py", "static/%2e%2e/server.py", "api/"):
        with pytest.raises(urllib.error.HTTPError) as error:
            get(url + path)
        assert error.value.code == 404
        assert "/api/snapshot" in error.value.read().decode()


def test_the_page_over_tls_requires_authentication(snapshots: Snapshots, tmp_path: Path) -> None:
    make(tmp_path, Wanted(nodes=("W1",), operators=("alice",)))
    make(tmp_path, Wanted(nodes=("W2",), viewers=("grafana",)), tokens=True)
    tls = credentials(tmp_path / "controller")
    web = Web("127.0.0.1:0", Access(load_tokens(tmp_path / "controller/tokens"), certificates=True), tls)
    web.start(Site(snapshots))

    def context(folder: str = "") -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(tmp_path / "controller/authority.pem"))
        if folder:
            made.load_cert_chain(tmp_path / folder / "certificate.pem", tmp_path / folder / "key.pem")
        return made

    try:
        token = (tmp_path / "viewers/grafana/token").read_text().strip()
        basic = base64.b64encode(f"anybody:{token}".encode()).decode()
        for headers in ({"Authorization": f"Bearer {token}"}, {"Authorization": f"Basic {basic}"}):
            assert json.loads(get(web.url + "api/snapshot", headers, context()))["jobs"]
        assert json.loads(get(web.url + "api/snapshot", {}, context("operators/alice")))["jobs"]
        node = (tmp_path / "nodes/W2/token").read_text().strip()
        for headers, folder in (({}, ""), ({"Authorization": "Bearer no"}, ""), ({"Authorization": "Basic %%"}, ""),
                                ({"Authorization": f"Bearer {node}"}, ""), ({}, "nodes/W1")):  # fmt: skip
            with pytest.raises(urllib.error.HTTPError) as error:
                get(web.url, headers, context(folder))
            assert error.value.code == 401
    finally:
        web.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (pip install playwright)"
    )
    if CHROMIUM is None:
        pytest.skip("there is no Chromium (apt-get install chromium)")
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_in_a_browser(rig: Rig, url: str, browser: Any, theme: str) -> None:
    """The page under real traffic loads nothing from other hosts and has no errors; it shows links, jobs, trees under
    the pointer, and events.
    """
    page = browser.new_page(viewport={"width": 1200, "height": 800}, color_scheme=theme)
    page.set_default_timeout(1e3 * SECONDS)
    errors: list[str] = []
    outside: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.on("request", lambda one: None if one.url.startswith((url, "data:")) else outside.append(one.url))
    try:
        page.goto(url)
        page.wait_for_selector("html[data-time]", state="attached")
        first = float(page.get_attribute("html", "data-time"))
        rig.allreduce(SIZE).check()
        page.wait_for_selector(f"html:not([data-time='{first}'])", state="attached")
        assert page.get_attribute("html", "data-theme") == theme
        name = rig.job.name
        summary = page.locator(f"[data-job='{name}'] > summary")
        assert re.search(r"[\d.]+ of [\d.]+ Mbit/s", summary.inner_text())
        assert "bottleneck" in summary.inner_text()
        source = "Bokeh.documents.flatMap((d) => [...d._all_models.values()]).find((m) => m.name === '%s').data"
        drawn = page.evaluate(f"{source % 'links'}.xs.length")
        assert drawn == len(rig.topology.links)
        summary.hover()
        lit = page.evaluate(f"{source % 'lit'}.xs.length")
        assert 0 < lit <= drawn
        tree = page.locator(f"[data-tree='{name}/0']")
        if not tree.is_visible():
            summary.click()
        tree.hover()
        assert 0 < page.evaluate(f"{source % 'lit'}.xs.length") <= lit
        page.mouse.move(5, 5)
        assert page.evaluate(f"{source % 'lit'}.xs.length") == 0
        assert page.locator("#events").inner_text().count("<b>one</b>") == 1, "words, and not HTML"
        shades = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", shades))) > 380) == (theme == "light")
        assert not outside
        assert not errors
    finally:
        page.close()
