"""Training across emulated sites by one command: PyTorch in namespaces, links that the sites measure themselves."""

from __future__ import annotations

import json

import pytest

from evaluation.sites.__main__ import main

pytestmark = pytest.mark.namespaces


def test_sites_train_in_namespaces_beside_gloo(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sites", "4", "--width", "16", "--every", "4", "--compute", "0.02", "--target", "5.3", "--delay-ms", "6"]
    words += ["--total-mbps", "60", "--probe-seconds", "0.3", "--json"]
    assert main(words) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [row["system"] for row in rows] == ["diloco", "gloo"]
    assert all(row["target_s"] is not None and row["loss"] <= 5.3 and row["sites"] == 4 for row in rows)
    ours, gloo = rows
    assert ours["bytes_a_step"] < gloo["bytes_a_step"] / 4, "every fourth step, in fewer bits"
    assert "measured 8 of 12 pairs" in captured.err, "the fourth of NetStorm's sites has one link to the first three"
