"""What leaves a site by the agents' counters is what the format and the trees say, and the manual has those figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from evaluation.sites.__main__ import main
from evaluation.sites.volume import WAYS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sites.md").read_text()


def test_counters_say_what_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bytes", "--sites", "3", "--parameters", "400000", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["way"] for row in rows] == [way.name for way in WAYS]
    for row in rows:
        assert row["computed"] <= row["measured"] <= 1.02 * row["computed"], row
    assert rows[1]["factor"] == pytest.approx(100), "a round every 100 steps"
    assert rows[4]["at_once"] == pytest.approx(rows[3]["at_once"] / 4, rel=0.02), "a fragment at a time"


def test_the_manuals_table_is_what_is_computed() -> None:
    lines = re.findall(r"^\| .*? \| ([\d.]+) \(\d+\) \| ([\d.]+) \(\d+\) \| [\d.]+ \|$", PAGE, flags=re.M)
    assert len(lines) == len(WAYS)
    for way, cells in zip(WAYS, lines, strict=True):
        for sites, cell in zip((2, 8), cells, strict=True):
            assert float(cell) == pytest.approx(way.computed(sites, 1, 100), rel=0.01, abs=0.00006), way.name
