"""The content of the controller's page and who may see it, without a network."""

from __future__ import annotations

import http.client
from itertools import combinations, product
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

pytest.importorskip("bokeh", reason="the page's packages are not installed: pip install 'inart[web]'")


from controlplane.common.access import Access, Caller
from controlplane.service.web.page import (
    BOTTLENECK_COLOUR,
    JOB_COLOURS,
    OFF_COLOUR,
    STEPS,
    colour_of,
    history_seconds,
    slowest_hop,
)
from controlplane.service.web.server import Web, is_own_name

APART = 90.0
"""Two colours that are nearer than this (0 to 765) are confused on thin lines."""


def apart(one: str, other: str) -> float:
    """Return the perceived distance of two colours ("redmean"): 0 to 765."""
    (r1, g1, b1), (r2, g2, b2) = ([int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (one, other))
    red = (r1 + r2) / 2
    return (
        (2 + red / 256) * (r1 - r2) ** 2 + 4 * (g1 - g2) ** 2 + (2 + (255 - red) / 256) * (b1 - b2) ** 2
    ) ** 0.5  # fmt: skip


def test_a_jobs_colour_is_no_loads_colour():
    jobs = {colour_of(number) for number in range(1, 30)}
    loads = [colour for _, _, colour in STEPS]
    nearest = min((apart(one, other), one, other) for one, other in product(jobs, (*loads, OFF_COLOUR)))
    assert nearest[0] >= APART, nearest
    assert min(apart(one, BOTTLENECK_COLOUR) for one in jobs) >= APART
    assert len(jobs) == len(JOB_COLOURS)


def test_jobs_that_run_at_once_have_colours_of_their_own():
    """A job's number is the lowest that is free, so sixteen at a time are told apart."""
    colours = [colour_of(number) for number in range(1, 17)]
    nearest = min((apart(one, other), one, other) for one, other in combinations(colours, 2))
    assert nearest[0] >= APART, nearest


@pytest.mark.parametrize(("histories", "seconds"), [([], 60.0), ([[]], 60.0), ([[970.0]], 60.0),
                                                    ([[900.0, 950.0], [400.0]], 600.0)])  # fmt: skip
def test_the_rates_begin_where_there_is_something_to_show(histories, seconds):
    jobs = [{"history": [[when, 1.0] for when in times]} for times in histories]
    assert history_seconds({"time": 1000.0, "jobs": jobs}) == seconds


def test_the_slowest_hop_of_a_tree_is_that_with_least_of_its_plan():
    def link(planned: float, measured: float) -> dict[str, object]:
        return {"from": "e1", "to": "s1", "planned_mbps": planned, "measured_mbps": measured}

    links = {("e1", "s1"): link(10.0, 4.0), ("s1", "e2"): link(10.0, 9.0) | {"from": "s1", "to": "e2"}}
    links["e3", "s1"] = link(10.0, 1.0) | {"from": "e3"}
    tree = {"links": [("e1", "s1"), ("s1", "e2"), ("e2", "h4")]}
    assert slowest_hop(tree, links) == "e1 to s1, 40 %"
    assert slowest_hop(tree, {("e1", "s1"): link(10.0, 0.0)}) == "", "nothing has been measured"
    assert slowest_hop({"links": []}, links) == ""


@pytest.mark.parametrize(
    ("host", "taken"),
    [
        ("127.0.0.1:9680", True),
        ("10.1.0.1", True),
        ("[::1]:9680", True),
        ("localhost:9680", True),
        ("controller.example:9680", True),
        ("CONTROLLER.example", True),
        ("", True),
        ("evil.example:9680", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:80", False),
        ("[::1", False),
    ],
)
def test_only_a_host_header_that_names_this_machine_is_answered(host, taken):
    assert is_own_name(host, {"controller.example"}) is taken


def status(web: Web, host: str, path: str = "/api/snapshot") -> int:
    port = urlsplit(web.url).port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest("GET", path, skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("restricted", [False, True])
def test_page_of_another_site_cannot_read_the_snapshot_by_a_name_of_its_own(restricted):
    """Where callers are known, a browser sends no token to another site's name, and any name may be used."""
    access = Access({"0123456789abcdef": Caller("viewer", "grafana")}) if restricted else Access()
    web = Web("127.0.0.1:0", access)
    web.start(SimpleNamespace(answer=lambda path, accept: ("application/json", b"{}")))  # type: ignore[arg-type]
    try:
        assert status(web, "127.0.0.1:1") == (401 if restricted else 200)
        assert status(web, "evil.example") == (401 if restricted else 421)
        assert status(web, "127.0.0.1:1", "/healthz") == 200  # Probes have neither certificate nor token.
    finally:
        web.close()
