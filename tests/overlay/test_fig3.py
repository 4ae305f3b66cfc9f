"""CREW's Fig. 3 by real training: the groups determine the training, wherever it runs; results of runs are files that
can be joined.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from evaluation.crew import fig3
from evaluation.crew.accuracy import WORKERS, Run, Trained, trained
from evaluation.wan.learning import Lesson, accuracy, beginning, images, shares
from overlay import OverlayError

Group = tuple[int, ...]


class Workers:
    """The workers, like the sites of evaluation/wan/learning.py, but in one thread and without a network. accuracies:
    of each after each of its rounds.
    """

    def __init__(self, run: Run) -> None:
        self.lesson = Lesson(alike=run.alike, seed=run.seed)
        self.parts = shares(images().train_labels, WORKERS, alike=run.alike, seed=run.seed)
        self.models = [beginning(self.lesson) for _ in range(WORKERS)]
        self.optimizers = [
            torch.optim.SGD(model.parameters(), lr=self.lesson.rate, momentum=self.lesson.momentum)
            for model in self.models
        ]
        self.generators = [torch.Generator().manual_seed(1000 * run.seed + k) for k in range(WORKERS)]
        self.accuracies: list[list[float]] = [[] for _ in range(WORKERS)]

    def meet(self, group: Group) -> None:
        """Run a round on each worker of the group, and average their models."""
        data = images()
        for k in group:
            for _ in range(self.lesson.steps):
                own = self.parts[k]
                chosen = own[torch.randint(len(own), (self.lesson.batch,), generator=self.generators[k])]
                self.optimizers[k].zero_grad()
                logits = self.models[k](data.train_images[chosen])
                nn.functional.cross_entropy(logits, data.train_labels[chosen]).backward()
                self.optimizers[k].step()
        with torch.no_grad():
            for alike in zip(*(self.models[k].parameters() for k in group), strict=True):
                mean = torch.stack(list(alike)).mean(0)
                for parameter in alike:
                    parameter.copy_(mean)
        found = accuracy(self.models[group[0]], data)
        for k in group:
            self.accuracies[k].append(found)


def test_sites_in_threads_begin_with_the_same_model():
    for seed in range(3):
        models: list[nn.Module] = []
        ready = threading.Barrier(WORKERS)

        def make(lesson: Lesson, models: list[nn.Module] = models, ready: threading.Barrier = ready) -> None:
            ready.wait()
            models.append(beginning(lesson))

        threads = [threading.Thread(target=make, args=(Lesson(seed=seed),)) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first = models[0].state_dict()
        assert len(models) == WORKERS
        for model in models:
            assert all(torch.equal(first[name], value) for name, value in model.state_dict().items())


def test_training_on_sockets_is_determined_by_its_groups():
    result = trained(Run(alike=False, p=2, x=0.02, seed=1, target=0.15, compute_s=0.02))
    if result.alone:
        pytest.skip("this machine is so busy that agents took the coordinator for gone, and went on alone")
    assert None not in result.rounds
    assert all(len(group) == 2 for group in result.groups)
    workers = Workers(result.run)
    for group in result.groups:
        workers.meet(group)
    for own, expected in zip(result.accuracies, workers.accuracies, strict=True):
        assert len(own) <= len(expected)  # The last groups' members may have been told to stop before they checked.
        assert own == pytest.approx(expected[: len(own)], abs=0.02)


def test_a_run_without_one_of_its_workers_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluation.wan.learning.learn", lambda *_, **__: [])
    with pytest.raises(OverlayError, match=r"worker \d ended after 0 rounds"):
        trained(Run(alike=True, p=8, x=0.0, seed=0))


PAIRS = ((0, 1), (2, 3), (0, 1), (0, 2), (1, 3), (2, 3), (1, 3))
"""The third group is the last group of both its members; the first two groups have none before them."""


def made_up(run: Run, rounds: int) -> Trained:
    own = (*(0.1 for _ in range(rounds - 1)), run.target)
    return Trained(run, (own,) * WORKERS, (tuple(map(float, range(rounds))),) * WORKERS, PAIRS, 9.0, 0.5)


def test_results_in_the_folder_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    asked: list[list[Run]] = []

    def write(runs: Sequence[Run], folder: Path, at_once: int) -> int:
        asked.append(list(runs))
        for run in runs:
            if run.seed < 2:  # The third is stopped before its end.
                fig3.file_of(folder, run).write_text(json.dumps(asdict(made_up(run, 10 * (run.seed + 1)))))
        return 0

    monkeypatch.setattr(fig3, "carry_out", write)
    picture = tmp_path / "new" / "fig3.png"
    words = ["--folder", str(tmp_path / "runs"), "--x", "1", "4", "--p", "2", "--images", "iid", "--json"]
    assert fig3.main([*words, "--plot", str(picture)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["x_s"], row["rounds"], row["low"], row["high"], row["seeds"]) for row in rows] == [
        (1.0, 15.0, 10, 20, 2),
        (4.0, 15.0, 10, 20, 2),
    ]
    assert picture.stat().st_size > 1000
    assert fig3.main(words) == 0
    assert [len(runs) for runs in asked] == [6, 2]
    assert {run.seed for run in asked[1]} == {2}
    assert fig3.main([*words, "--read"]) == 0
    assert len(asked) == 2


def test_runs_that_miss_the_target_are_counted():
    run = Run(False, 2, 1.0, 0)
    short = replace(made_up(run, 4), accuracies=((0.1, 0.2),) * 2 + ((0.1, 0.96, 0.3, 0.97),) * 6)
    (row,) = fig3.summary([short])
    assert (row["not_reached"], row["rounds"], row["low"], row["high"]) == (2, 2.0, 2, 2)
    assert row["again"] == pytest.approx(1 / 5)
    assert fig3.accuracy_by_round([short]) == pytest.approx([0.1, (2 * 0.2 + 6 * 0.96) / 8])
