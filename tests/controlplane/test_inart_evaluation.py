"""The evaluation's arithmetic on instances that are small enough for a test."""

from __future__ import annotations

import json

import pytest

from evaluation.inart.__main__ import main
from evaluation.inart.few import Few, summary
from evaluation.inart.headline import headline
from evaluation.inart.sweep import Case, Result, Sweep, compute


def test_lbmm_under_the_papers_settings():
    _, result = compute(Case("homogeneous", 40, 0, "lbmm"))
    assert result.rate_mbps == pytest.approx(2.0)
    assert result.ps_streams * 548_000 / 1e6 == pytest.approx(21.92)  # The paper has 22 MB in Fig. 13.


def test_a_figure_and_its_plans_are_kept(tmp_path, capsys):
    assert main(["figure", "5", "--seeds", "1", "--json", "--output", str(tmp_path)]) == 0
    figure = json.loads(capsys.readouterr().out)
    last = {name: values[-1][0] for name, values in figure["panels"][0]["series"].items()}
    assert last["lbmm"] == pytest.approx(2 * 548e6 * 8 / 15.4e9)
    assert last["inart"] < last["inart-strict"] < last["atp"] < last["lbmm"]
    assert (tmp_path / "figure5.png").stat().st_size > 10_000
    again = Sweep(tmp_path)
    case = Case("testbed", 6, 0, "inart")
    assert again.get(case).rate_mbps == pytest.approx(3 * 11_550)


def test_times_and_sizes(capsys, monkeypatch):
    monkeypatch.setattr("evaluation.inart.times.TARGETS", ((4, 12, 2, 1.0),))
    assert main(["times", "--seeds", "1", "--json"]) == 0
    timings = json.loads(capsys.readouterr().out)["instances"]
    assert [t["scenario"] for t in timings] == ["homogeneous", "heterogeneous"]
    # Columns are a for 2 roots and 20 switches, d for 2 roots, and f; there is a row per switch, two per root and one
    # for f.
    assert {(t["columns"], t["rows"]) for t in timings} == {(43, 25)}
    assert all(t["rate_mbps"] == pytest.approx(t["bound_mbps"]) for t in timings)


def test_bounds_where_links_bind(capsys):
    assert main(["bounds", "--k", "4", "--seeds", "1", "--divisors", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(each["binding"] and each["gap"] + 1e-9 >= 0 and each["gap"] < 0.02 for each in found)
    assert all(each["limit_mbps"] < 0.7 * each["bound_mbps"] and each["what"].startswith("links") for each in found)


def test_claims_have_ours_and_a_reason_beside_them(tmp_path, monkeypatch):
    """Every plan has a rate of 8, 4, 2 or 1 Mbit/s here."""
    rates = {"inart": 8.0, "r-inart": 4.0, "atp": 2.0}

    def planned(_, case):
        return Result(rates.get(case.strategy, 1.0), 10.0, 0.0, 4.0, "", 1)

    monkeypatch.setattr(Sweep, "ensure", lambda *_: None)
    monkeypatch.setattr(Sweep, "get", planned)
    claims = {claim["claim"].split()[1].strip(":,"): claim for claim in headline(Sweep(tmp_path), 2)["claims"]}
    assert list(claims) == ["1", "2", "4", "5", "9", "8", "10", "11", "13", "12"]
    assert all(claim["why"] and set(claim["paper"]) <= set(claim["ours"]) for claim in claims.values())
    assert claims["1"]["ours"]["inart"] == pytest.approx(3)
    assert claims["9"]["ours"]["above_atp"] == pytest.approx(3) and claims["9"]["bound_mbps"] == 10
    assert claims["11"]["ours"]["below_lbmm"] == pytest.approx(7 / 8)
    assert claims["11"]["ours"]["inart"] == pytest.approx(1627 * 8 / 8000)
    assert claims["13"]["ours"]["below_atp"] == 0 and claims["13"]["ours"]["lbmm"] == pytest.approx(4 * 0.548)


def test_plans_of_another_planner_are_not_taken_up(tmp_path, monkeypatch):
    case = Case("testbed", 6, 0, "lbmm")
    sweep = Sweep(tmp_path)
    sweep.ensure([case])
    assert Sweep(tmp_path).get(case) == sweep.get(case)
    monkeypatch.setattr("evaluation.inart.sweep.SOURCE", ("plan",))
    assert not Sweep(tmp_path).results


def test_few_trees_beside_the_optimum_and_beside_fewer_servers(capsys):
    assert main(["trees", "--seed", "34", "--count", "1", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    rates, optima = found["rates_mbps"], found["exact_mbps"]
    assert len(rates) == 2 and all(len(row) == 3 for row in rates) and len(optima) == 2
    assert rates[-1][:2] == pytest.approx(optima, rel=0.01) and rates[-1][0] > 0
    assert main(["trees", "--seed", "34", "--count", "1"]) == 0
    assert "makes the plan worse: 0 []" in capsys.readouterr().out


def test_what_few_trees_lose_is_said():
    found = Few(3, "a network", ((5.0, 4.0), (4.5, 6.0)), (5.0, 6.0), 1.0)
    assert found.gap == pytest.approx(0.1)
    assert found.worse == (
        "1 servers: 5.0000 with 1 trees, 4.0000 with one more",
        "1 trees: 5.0000 with 1 servers, 4.5000 with one more",
    )
    below, worse = summary([found])
    assert "1 more than 1 % below exact [3], at most 10.00 %" in below and worse.endswith("worse: 1 [3]")
