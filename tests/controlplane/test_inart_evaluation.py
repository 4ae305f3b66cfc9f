"""The evaluation's arithmetic, on instances small enough for a test."""

from __future__ import annotations

import json

import pytest

from evaluation.inart.__main__ import main
from evaluation.inart.sweep import Case, Sweep, compute


def test_lbmm_under_the_papers_settings():
    _, result = compute(Case("homogeneous", 40, 0, "lbmm"))
    assert result.rate_mbps == pytest.approx(2.0)
    assert result.ps_streams * 548_000 / 1e6 == pytest.approx(21.92)  # the paper's 22 MB in Fig. 13


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
