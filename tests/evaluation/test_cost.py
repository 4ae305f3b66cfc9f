"""The output of `python -m evaluation.cost` for given measurements (the emulation itself is tested elsewhere)."""

from __future__ import annotations

import json

import pytest

from evaluation.cost import __main__ as cost

ROWS = [cost.Row(10_000, 0.01, 0.0103, 15, 0), cost.Row(1_000_000, 0.8, 0.79, 5, 2)]


@pytest.mark.parametrize(("measured", "status"), [(0.0103, 0), (0.0111, 3)])
def test_the_table_says_whether_the_model_holds(measured, status, monkeypatch, tmp_path, capsys):
    rows = [cost.Row(10_000, 0.01, measured, 15, 0), ROWS[1]]
    monkeypatch.setattr(cost, "measure", lambda *_, **__: cost.Measured(20.0, 11.6, 5, 0.4, 0.6, rows))
    assert cost.main(["--plot", str(tmp_path / "cost.png")]) == status
    printed = capsys.readouterr().out
    assert ("NOT within 5 %" in printed) == bool(status)
    assert (tmp_path / "cost.png").stat().st_size > 5_000
    assert cost.main(["--json"]) == status
    again = capsys.readouterr().out
    assert json.loads(again)[0]["rows"][0]["measured_s"] == measured
    (tmp_path / "one.json").write_text(again)
    monkeypatch.setattr(cost, "measure", lambda *_, **__: pytest.fail("nothing is to be measured"))
    assert cost.main(["--read", str(tmp_path / "one.json")]) == status
    assert capsys.readouterr().out.splitlines()[:3] == printed.splitlines()[:3]


@pytest.mark.parametrize("hosts_ms", [0.0, 0.4, 3.0, 20.0])
def test_the_hosts_overhead_is_derived_from_the_smallest_all_reduce(hosts_ms):
    def modelled(ms):  # Data waits for a token (9 ms) or for its exponents, whichever comes last.
        return (max(9.0, 1.0 + ms) + 1.0 + ms) / 1e3

    assert cost.hosts_part(modelled(hosts_ms), modelled) == pytest.approx(hosts_ms, abs=2e-3)
    assert cost.hosts_part(0.005, modelled) == 0


def test_text_that_no_run_printed_is_refused(tmp_path, capsys):
    (tmp_path / "one.json").write_text('[{"rows": []}]')
    assert cost.main(["--read", str(tmp_path / "one.json")]) == 1
    assert cost.main(["--read", str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().err.count("cost: ") == 2
