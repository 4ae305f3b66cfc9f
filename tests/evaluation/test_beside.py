"""A job beside TCP: what is said of rates and queues, and which plans are compared. The measurement itself needs root
(tests/emulation/test_beside.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.beside.__main__ import main
from evaluation.beside.run import CASES, Place, Settings
from evaluation.beside.shares import TCP_WIRE, Share, draw, jain, table, wire_mbps


def test_fairness_is_one_where_all_have_the_same() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([9.0, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert jain([8.0, 4.0]) == pytest.approx(0.9)
    assert jain([0.0, 0.0]) == 1.0


def test_a_flows_rate_is_that_of_the_time_asked_for() -> None:
    """1 MB a second from second 1 on, written down each half second."""
    samples = [(1.0 + i / 2, i * 5e5) for i in range(11)]
    assert wire_mbps(samples, 2.0, 4.0) == pytest.approx(8 * TCP_WIRE)
    assert wire_mbps(samples, 2.25, 2.75) == pytest.approx(8 * TCP_WIRE), "also between what was written down"
    assert wire_mbps(samples, 0.0, 2.0) == pytest.approx(4 * TCP_WIRE), "before its first bytes a flow had none"
    assert wire_mbps(samples, 6.0, 8.0) == 0.0, "nor after its last ones"
    assert wire_mbps([], 0.0, 1.0) == 0.0


@pytest.mark.parametrize("case", CASES)
def test_a_plan_for_a_share_has_what_tcp_leaves(case: str) -> None:
    place = Place(case, Settings(mbps=20.0, flows=4))
    shares = {"alone": 20.0, "ecmp": 2 * 20.0 / 3, "one way": 20.0 + 20.0 / 5, "sprayed": 2 * 20.0 / 5}
    share = shares.get(case, 20.0 / 5)
    assert place.planned("all", 20.0).rate_mbps == pytest.approx(20.0 * len(place.narrow))
    assert place.planned("a share", 20.0).rate_mbps == pytest.approx(share)
    assert place.share_mbps(20.0) == pytest.approx(share)
    pairs = place.with_sums + place.against + [(sender, end) for sender, ends in place.sprayed for end in ends]
    assert len({*place.job.workers, place.root, *(n for pair in pairs for n in pair)}) == (
        {"alone": 5, "incast": 9, "sprayed": 11, "one way": 11}.get(case, 13)
    ), "nobody of the job has TCP of its own, but who is flooded with it"


SHARE = Share("with", "all", 20.0, 20.0, 8.0, [4.0, 4.0], queue=[(0.0, 0.0), (0.1, 25e3), (0.2, 50e3)], queue_full=7)


def test_what_is_found_is_said_and_drawn(tmp_path: Path) -> None:
    found = SHARE.to_json()
    assert found["queue_ms"] == {"half": pytest.approx(10.0), "99%": pytest.approx(20.0), "most": pytest.approx(20.0)}
    assert found["fairness"] == pytest.approx(16**2 / (3 * 96)) and found["job_part"] == pytest.approx(1.2)
    json.dumps(found)
    against = Share("against", "all", 20.0, 20.0, 2.0, [], [6.0])
    assert against.fairness == pytest.approx(64 / 80) and against.job_part == pytest.approx(0.2)
    sprayed = Share("sprayed", "all", 20.0, 20.0, 8.0, [8.0, 8.0], links=2, flow_links=2, share_mbps=40.0 / 3)
    assert sprayed.fairness == 1.0 and sprayed.job_part == pytest.approx(0.6), "each has 4 Mbit/s on each link"
    assert (
        table([SHARE]).splitlines()[-1].startswith("| with |  | all | 20.00 | 8.00 | 1.20 | 4.00 to 4.00 |  | 0.889 |")
    )
    assert table([replace(SHARE, ecn=16)]).splitlines()[-1].startswith("| with | 16 | all | 20.00 ")
    wrong = Share("both", "all", 20.0, 20.0, 8.0, [4.0], [9.0, 2.0], right=False)
    assert table([wrong]).endswith("WRONG") and "2.00 to 9.00" in table([wrong])
    draw([SHARE, wrong], tmp_path / "beside.png")
    assert (tmp_path / "beside.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("words", [["--cases", "sideways"], ["--flows", "0"]])
def test_what_cannot_be_run_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert words[0] in capsys.readouterr().err
