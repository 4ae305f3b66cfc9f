"""A day in the life of a network: what is drawn, how its workers agree, and what is said of it.

The day itself runs with `python -m evaluation.operate` (docs/operate.md): it takes minutes.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from controlplane.planner.generators import parse_topology
from controlplane.planner.routing import next_hops
from controlplane.planner.topology import TopologyError
from evaluation.operate.__main__ import main
from evaluation.operate.day import draw
from evaluation.operate.report import JobReport, Report, VerbReport, gather
from evaluation.operate.worker import agreed

FATTREE = parse_topology("fattree:k=6,bandwidth=10")


def test_a_day_is_the_same_for_the_same_seed_and_has_everything_in_it() -> None:
    day = draw(FATTREE, 20, 480.0, 1, 80_000)
    assert day == draw(FATTREE, 20, 480.0, 1, 80_000) != draw(FATTREE, 20, 480.0, 2, 80_000)
    verbs = [step.verb for step in day.steps]
    assert {verb: verbs.count(verb) for verb in verbs} == {
        "drain": 2, "undrain": 2, "topology reload": 1, "upgrade": 1, "leader is killed": 1,
        "parameter server is killed": 1, "link fails": 2, "switch fails": 1,
    }  # fmt: skip
    assert [step.at for step in day.steps] == sorted(step.at for step in day.steps) and day.steps[-1].at < 480
    assert len(day.jobs) == 20 and all(2 <= job.workers <= 4 for job in day.jobs)


@pytest.mark.parametrize("seed", range(8))
def test_a_day_can_be_done(seed: int) -> None:
    """What is drained is put back later; who is on the new rack comes after it; what fails is there all day."""
    day = draw(FATTREE, 20, 480.0, seed, 80_000)
    at = {(step.verb, step.target): step.at for step in day.steps}
    drained = [target for verb, target in at if verb == "drain"]
    assert all(at["drain", one] < at["undrain", one] for one in drained)
    assert {FATTREE.kind(one) for one in drained} == {"switch"} and not set(drained).intersection(day.rack)
    (racked,) = [job for job in day.jobs if job.racked]
    assert racked.at > at["topology reload", day.rack[0]]
    assert not set(day.resident).intersection(day.rack) and len(set(day.resident)) == 4
    assert ("parameter server is killed", day.resident[-1]) in at
    assert all(not set(target.split("-")).intersection(day.rack) for verb, target in at if verb == "link fails")


def test_foreign_tcp_has_a_third_of_the_links() -> None:
    ways = next_hops(FATTREE)
    links = set()
    for source, sink in draw(FATTREE, 20, 480.0, 1, 80_000).flows:
        node = source
        while node != sink:
            links |= {(node, ways[sink][node]), (ways[sink][node], node)}
            node = ways[sink][node]
    assert links <= set(FATTREE.links) and 1 / 3 <= len(links) / len(FATTREE.links) < 0.4


def test_a_network_without_room_for_a_day_is_refused() -> None:
    with pytest.raises(TopologyError, match="too few servers for a day"):
        draw(parse_topology("leafspine:leaves=2,spines=3,servers=3"), 2, 60.0, 1, 1000)
    with pytest.raises(TopologyError, match="there are 2"):
        draw(parse_topology("leafspine:leaves=3,spines=2,servers=3"), 2, 60.0, 1, 1000)


def test_the_list_says_what_would_happen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--seed", "3", "--jobs", "4"]) == 0
    said = capsys.readouterr().out
    assert "foreign TCP all day" in said and "job4 comes: 2 workers in the new rack" in said and "upgrade" in said


def test_workers_go_on_when_all_have_the_result(tmp_path: Path) -> None:
    answers: dict[tuple[str, int], bool] = {}

    def one(rank: int) -> None:
        for what, right in (("0.0", rank != 1), ("0.1", True)):
            answers[what, rank] = agreed(tmp_path, what, rank, 3, right)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {("0.0", rank): False for rank in range(3)} | {("0.1", rank): True for rank in range(3)}


def test_a_wrong_sum_a_failed_job_and_a_silent_worker_are_reported(tmp_path: Path) -> None:
    right = {"rank": 0, "sums": 5, "wrong": [], "repeated": 1, "errors": ["x"], "seconds": 2.0, "elements": 255_000,
             "failure": ""}  # fmt: skip

    def job(name: str, *found: dict) -> JobReport:
        (tmp_path / name).mkdir()
        for one in found:
            (tmp_path / name / f"rank-{one['rank']}.json").write_text(json.dumps(one))
        report = JobReport(name, 2, planned_mbps=10.0)
        gather(report, tmp_path / name, "its log")
        return report

    good = job("good", right, right | {"rank": 1})
    assert (good.sums, good.repeated, good.wrong, good.failure) == (5, 1, [], "")
    assert good.measured_mbps == pytest.approx(4.36) and good.loss == pytest.approx(0.564)
    silent = job("silent", right)
    assert "1 of 2 workers have left nothing: its log" in silent.failure
    failed = job("failed", right, right | {"rank": 1, "failure": "NotReadyError: no"})
    wrong = job("wrong", right, right | {"rank": 1, "wrong": [{"values": 1}]})
    assert [Report("x", 1, [good]).status, Report("x", 1, [good, failed]).status] == [0, 4]
    undone = [VerbReport("drain", "s1", 3.0, 1.5, False, "in use")]
    assert Report("x", 1, [good], undone).status == 5 and Report("x", 1, [good, failed], undone).status == 4
    report = Report("x", 1, [good, failed, wrong], undone)
    assert report.status == 3
    written = report.to_json()
    assert (written["failed"], written["wrong"], written["undone"], written["sums"]) == (1, 1, 1, 15)
    assert written["verbs"][0]["seconds"] == 1.5 and len(written["jobs"]) == 3
    table = report.table()
    assert "WRONG: wrong: worker 1" in table and "FAILED: failed: NotReadyError" in table
    assert "NOT DONE: drain s1: in use" in table
    assert "| drain | s1 | 3 | 1.5 | NOT DONE: in use |" in table
