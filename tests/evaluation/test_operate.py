"""A day in the life of a network: the schedule, the agreement of workers, and the findings.

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
from evaluation.chaos.events import Event, Happening, Steps, happen
from evaluation.chaos.findings import Findings
from evaluation.chaos.harness import main, make_parser
from evaluation.operate.day import KINDS, draw
from evaluation.operate.report import JobReport, add_jobs, gather
from evaluation.operate.run import OperatorsDay, whole_act
from evaluation.operate.worker import agreed
from tests.support.schedules import digest

FATTREE = parse_topology("fattree:k=6,bandwidth=10")


def test_a_day_is_the_same_for_the_same_seed_and_has_everything_in_it() -> None:
    day = draw(FATTREE, 20, 480.0, 1, 80_000)
    assert day == draw(FATTREE, 20, 480.0, 1, 80_000) != draw(FATTREE, 20, 480.0, 2, 80_000)
    kinds = [event.kind for event in day.events]
    assert kinds.count("drain") == kinds.count("undrain") == kinds.count("link") == 2 and len(kinds) == 11
    assert set(kinds) == KINDS.keys()
    assert [event.at for event in day.events] == sorted(event.at for event in day.events) and day.events[-1].at < 480
    assert len(day.jobs) == 20 and all(2 <= job.workers <= 4 for job in day.jobs)


@pytest.mark.parametrize(
    ("words", "minutes", "elements", "seed", "drawn"),
    [
        ("fattree:k=6,bandwidth=10", 8.0, 80_000, 1, "ce261a28984534b0"),
        ("fattree:k=6,bandwidth=10", 8.0, 80_000, 2, "88e38bc9f4e80e70"),
        ("fattree:k=6,bandwidth=2", 2.5, 20_000, 1, "dfc5b97bc43c53d5"),
    ],
)  # fmt: skip
def test_a_seed_means_the_day_of_the_published_figures(
    words: str, minutes: float, elements: int, seed: int, drawn: str
) -> None:
    day = draw(parse_topology(words), 20, 60 * minutes, seed, elements)
    jobs = [[j.name, round(j.at, 3), j.workers, j.operations, j.elements, j.seed, j.racked] for j in day.jobs]
    assert digest(day.events, jobs, day.rack, day.resident, day.flows) == drawn


@pytest.mark.parametrize("seed", range(8))
def test_a_day_can_be_done(seed: int) -> None:
    """What is drained is put back later; who is on the new rack comes after it; what fails is there all day."""
    day = draw(FATTREE, 20, 480.0, seed, 80_000)
    at = {(event.kind, event.target): event.at for event in day.events}
    drained = [target for kind, target in at if kind == "drain"]
    assert all(at["drain", one] < at["undrain", one] for one in drained)
    assert {FATTREE.kind(one) for one in drained} == {"switch"} and not set(drained).intersection(day.rack)
    (racked,) = [job for job in day.jobs if job.racked]
    assert racked.at > at["topology reload", day.rack[0]]
    assert not set(day.resident).intersection(day.rack) and len(set(day.resident)) == 4
    assert ("ps", day.resident[-1]) in at
    assert all(not set(target.split("-")).intersection(day.rack) for kind, target in at if kind == "link")


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


def test_the_help_has_the_examples_and_all_kinds() -> None:
    words = make_parser(OperatorsDay).format_help()
    assert "python -m evaluation.operate --seed 1" in words and all(f"  {kind} " in words for kind in KINDS)


def test_the_list_says_what_would_happen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(OperatorsDay, ["--list", "--seed", "3", "--jobs", "4"]) == 0
    said = capsys.readouterr().out
    assert "foreign TCP all day" in said and "job4 comes: 2 workers in the new rack" in said and "upgrade" in said


def test_an_order_that_cannot_be_ended_is_not_done() -> None:
    def cut(one: Happening) -> Steps:
        one.happened = True
        yield
        raise OSError("no such link")

    one = Happening(Event(1, 0.0, 0.0, "link", "e1-s1"))
    happen(one, whole_act(cut), threading.Event(), lambda line: None)
    findings = Findings([one], KINDS)
    assert findings.status == 4 and "no such link" in findings.table("here")


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


def test_a_wrong_sum_a_failed_job_and_a_silent_worker_are_findings(tmp_path: Path) -> None:
    right = {"rank": 0, "sums": 5, "wrong": [], "repeated": 1, "errors": ["x"], "seconds": 2.0, "elements": 255_000,
             "failure": ""}  # fmt: skip

    def job(name: str, *found: dict) -> JobReport:
        (tmp_path / name).mkdir()
        for one in found:
            (tmp_path / name / f"rank-{one['rank']}.json").write_text(json.dumps(one))
        report = JobReport(name, 2, planned_mbps=10.0)
        gather(report, tmp_path / name, "its log")
        return report

    good = job("job1", right, right | {"rank": 1})
    assert (good.sums, good.repeated, good.wrong, good.failure) == (5, 1, [], "")
    assert good.measured_mbps == pytest.approx(4.36) and good.loss == pytest.approx(0.564)
    assert good.row() == "| job1 | 2 | 5 | 1 | 10.00 | 4.36 | 56% |"
    silent = job("job2", right)
    assert "1 of 2 workers have left nothing: its log" in silent.failure
    failed = job("job3", right, right | {"rank": 1, "failure": "NotReadyError: no"})
    wrong = job("job4", right, right | {"rank": 1, "wrong": [{"values": 1}]})
    for jobs, status in (([good], 0), ([good, silent], 4), ([good, failed], 4), ([good, failed, wrong], 3)):
        findings = Findings([], KINDS)
        findings.add_sums(100)  # of the job that stays
        add_jobs(findings, jobs)
        assert findings.status == status and findings.sums == 100 + 5 * len(jobs)
    table = findings.table("here")
    assert "WRONG: job4: worker 1" in table and "FAILED: job3: NotReadyError" in table
