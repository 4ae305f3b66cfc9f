"""The command lines of APSP's and NetStorm's figures: tables, pictures and claims from made-up runs."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluation.apsp import figures as apsp
from evaluation.netstorm import figures as netstorm
from evaluation.wan.report import claim

NETSTORM = ("fig13", "fig14", "fig15", "fig16", "fig17", "fig18", "fig19a", "fig19b", "fig20")
APSP = ("table3", "fig4", "fig5", "fig6", "laws")
Speeds = dict[str, float]


def run(monkeypatch: pytest.MonkeyPatch, module: str, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(module, run_name="__main__")
    return int(stop.value.code or 0)


@pytest.mark.parametrize("system", ["apsp", "crew", "netstorm", "selmcast", "wan"])
def test_help_names_every_word(monkeypatch, capsys, system):
    assert run(monkeypatch, f"evaluation.{system}", "--help") == 0
    said = capsys.readouterr().out
    assert "headline" in said
    assert f"python -m evaluation.{system} run" in said


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> Speeds:
    """Return iterations per second from the parts of NetStorm: the factors of the parts that a setup has are
    multiplied. STAR from root 0 is slow, and whole tensors halve everything.
    """
    factors = {"STAR": 1.0, "BKT": 2.0, "MST": 3.0, "FAPT": 4.0, "auxiliary": 2.0}

    def speed(setup: Any, dynamic: bool, seed: int, *, nodes: int = 9, root: int | None = None) -> float:
        known = (1.5 if setup.full else 1.25) if setup.aware else 1.0
        result = factors[setup.topology] * known / (2 if setup.whole else 1)
        return result * (factors["auxiliary"] if setup.auxiliary else 1.0) * (0.5 if root == 0 else 1.0)

    monkeypatch.setattr(netstorm, "speed", speed)
    monkeypatch.setattr(netstorm, "spread", lambda work, items: [work(item) for item in items])
    return factors


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Speeds:
    seconds = {
        "random": 4.0, "most_connected": 3.0, "random_shortest": 5.0, "most_connected_shortest": 4.0,
        "apsp": 2.0, "shortest_routing": 3.0, "balanced_routing": 2.5,
    }  # fmt: skip
    monkeypatch.setattr(apsp, "spread", lambda work, items: [seconds for _ in items])
    return seconds


@pytest.mark.parametrize("figure", NETSTORM)
def test_netstorms_figures_are_printed_and_drawn(
    figure: str, speeds: Speeds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "new" / "figure.png"
    assert run(monkeypatch, "evaluation.netstorm", figure, "--trials", "2", "--json", "--plot", str(picture)) == 0
    rows = json.loads(capsys.readouterr().out)
    assert picture.stat().st_size > 1000
    assert all(row["seeds"] == 2 for row in rows)
    checks: dict[str, Callable[[dict[str, Any]], bool]] = {
        "fig13": lambda row: row["system"] != "NetStorm" or row["over_star"] == 4 * 1.25 * 2,
        "fig14": lambda row: row["over_star"] == speeds[row["topology"]] * (1.25 if row["topology"][1] in "SA" else 1),
        "fig15": lambda row: row["over_one"] == 1,
        "fig17": lambda row: row["gain_%"] == pytest.approx(100),
        "fig19b": lambda row: row["efficiency"] == pytest.approx(1) and row["throughput"] == row["nodes"] / 5,
    }
    assert all(checks.get(figure, lambda _: True)(row) for row in rows)


def test_netstorms_claims_are_held_against_the_worst_root_and_whole_tensors(
    speeds: Speeds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NetStorm has 10, STAR with whole tensors 0.25 from its worst root and 0.5 (8 + 0.5) / 9 on average over nine
    roots.
    """
    assert run(monkeypatch, "evaluation.netstorm", "headline", "--trials", "3", "--json") == 0
    claims = {c["claim"]: c for c in json.loads(capsys.readouterr().out)}
    worst = claims["times MXNET (tensors whole, worst root), dynamic"]
    assert (worst["ours"], worst["paper"], worst["met"], worst["seeds"]) == (40, "up to 6.5", True, 3)
    assert claims["times MXNET (tensors whole, average root), static"]["ours"] == pytest.approx(10 / (0.5 * 8.5 / 9))
    assert claims["% faster by passive awareness, dynamic"]["ours"] == pytest.approx(25)
    assert claims["% faster by auxiliary paths, dynamic"]["ours"] == pytest.approx(100)
    speeds["FAPT"] = 0.5
    assert run(monkeypatch, "evaluation.netstorm", "headline", "--trials", "3", "--json") == 1


@pytest.mark.parametrize("figure", APSP)
def test_apsps_figures_are_printed_and_drawn(
    figure: str, times: Speeds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "figure.png"
    assert run(monkeypatch, "evaluation.apsp", figure, "--trials", "2", "--json", "--plot", str(picture)) == 0
    rows = json.loads(capsys.readouterr().out)
    assert picture.stat().st_size > 1000
    if figure == "table3":
        assert all(row["less_than_random_%"].startswith("50.0") for row in rows)
    if figure == "fig4":
        assert next(row for row in rows if row["delay"] == "paper")["seconds"] == 14.88


def test_apsps_claims_need_the_papers_gain(
    times: Speeds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "evaluation.apsp", "headline", "--trials", "2", "--json") == 1
    claims = json.loads(capsys.readouterr().out)
    assert [(c["ours"], c["met"]) for c in claims] == [(50, False), (50, None), (50, True), (50, True)]
    times["random"] = 5.0
    assert run(monkeypatch, "evaluation.apsp", "headline", "--trials", "2") == 0


def test_a_claim_far_above_the_papers_range_is_unexplained_and_not_met() -> None:
    inside, above, far = (claim("x", "12 to 15", [mean], least=12, top=15) for mean in (13.0, 16.0, 27.6))
    assert [(c.met, c.unexplained) for c in (inside, above, far)] == [(True, False), (True, False), (None, True)]
