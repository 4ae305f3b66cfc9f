"""Rounds of sites in virtual time, beside what links and rings allow."""

from __future__ import annotations

import json

import pytest

from evaluation.sites.__main__ import main
from evaluation.sites.rounds import Sites
from overlay.sites.packing import bits_a_value
from topologies.wan.networks import emulated, network_named


def test_a_round_takes_little_more_than_the_links_need() -> None:
    graph = network_named("aws", 0).subgraph(range(3)).copy()
    for *_, data in graph.edges(data=True):
        data["mbps"] = 4.0
    values = 500_000
    found = Sites(emulated(graph, 5.0)).seconds(values, 8)
    least = 4 / 3 * values * bits_a_value(8, 3) / 8e6  # each site sends 4/3 of the words at 8 Mbit/s, as in any ring
    assert least < found < 1.15 * least


def test_figures_are_printed_for_each_network(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["rounds", "--network", "netstorm", "--total-mbps"]
    assert main([*words, "50", "--json"]) == main([*words, "25", "--json", "--compute", "100"]) == 0
    fast, slow = (json.loads(part)[0] for part in capsys.readouterr().out.replace("]\n[", "]\0[").split("\0"))
    assert fast["ours_4"] < fast["ours_8"] < fast["best"] < fast["usual"]
    assert slow["ours_8"] == pytest.approx(2 * fast["ours_8"], rel=0.1)
    assert slow["ratio_4"] == pytest.approx((100 + slow["best"]) / (100 + slow["ours_4"]))
    assert main(words[:-1]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["netstorm", "9"]
