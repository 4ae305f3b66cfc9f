"""The harness runs a system that it does not know: its events happen in order, and all effects are found."""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluation.chaos.events import Event, Happening, Kind, Steps
from evaluation.chaos.harness import System, main

WAIT_SECONDS = 30.0
KINDS = {
    "long": Kind("network", (0.0, 0.0), False, "waits for the others"),
    "first": Kind("network", (0.0, 0.0), False, "an order", lane="orders"),
    "second": Kind("network", (0.0, 0.0), False, "an order that is due at the same time", lane="orders"),
    "broken": Kind("network", (0.0, 0.0), False, "fails"),
}


class Toy(System):
    """A system of no network. Its long event ends when all others are over; its test decides what goes wrong."""

    name, description, minutes = "toy", "A toy.", 0.0002
    kinds = KINDS
    preload = ()
    folder: Path

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.title, self.trouble, self.log = "toys", arguments.trouble, []
        names = [name for name in self.kinds if name != "broken" or self.trouble == "event"]
        self.events = [Event(number, 0.0, 0.0, name) for number, name in enumerate(names, 1)]
        self.others_over = threading.Event()

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--trouble", default="")

    @contextmanager
    def network(self) -> Iterator[Any]:
        (self.folder / "emulation").mkdir()
        (self.folder / "emulation" / "node.log").write_text("said")
        yield SimpleNamespace(
            directory=self.folder / "emulation", environment=dict(os.environ),
            switches=SimpleNamespace(check=lambda: None),
        )  # fmt: skip
        self.log.append("network removed")

    def start(self, stack: ExitStack) -> None:
        stack.callback(self.log.append, "ended")

    def acts(self) -> dict[str, Any]:
        return {"long": self.long, "first": self.order, "second": self.order, "broken": self.broken}

    def long(self, one: Happening) -> Steps:
        one.happened = self.others_over.wait(WAIT_SECONDS)
        yield

    def order(self, one: Happening) -> Steps:
        self.log.append(f"{one.event.kind} begins")
        one.happened = True
        yield
        self.log.append(f"{one.event.kind} ends")
        if one.event.kind == "second":
            self.others_over.set()

    def broken(self, one: Happening) -> Steps:
        raise OSError("no such toy")
        yield

    def begin(self) -> None:
        if self.trouble == "interrupted":
            raise KeyboardInterrupt

    def finish(self) -> None:
        self.log.append("finish")
        self.place.findings.add_sums(7)

    def conclude(self) -> None:
        self.log.append("conclude")
        if self.trouble == "sum":
            self.place.findings.wrong.append("2 + 2 = 5")

    def details(self) -> dict[str, Any]:
        return {"log": self.log}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Toy, "folder", tmp_path, raising=False)
    return tmp_path


def test_events_of_a_lane_come_in_order_beside_all_others(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert main(Toy, ["--json", "--logs", str(folder / "logs")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["title"] == "toys" and report["sums"] == 7
    assert report["log"][:4] == ["first begins", "first ends", "second begins", "second ends"]
    assert report["log"][4:] == ["finish", "conclude", "ended", "network removed"]
    assert [event["happened"] for event in report["events"]] == [True] * 3
    assert (folder / "logs" / "node.log").read_text() == "said"


@pytest.mark.parametrize(
    ("trouble", "status", "words"),
    [
        ("sum", 3, "WRONG: 2 + 2 = 5"),
        ("event", 4, "DID NOT HAPPEN:     0.0 s  broken: OSError: no such toy"),
        ("interrupted", 130, "(interrupted)"),
    ],
)
def test_exit_status_says_what_went_wrong(
    trouble: str, status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(Toy, ["--trouble", trouble]) == status
    said = capsys.readouterr()
    assert words in said.out and "Schedule (seed 1)" in said.err


def test_reports_of_any_system_are_one_table(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert main(Toy, ["--json"]) == 0
    (folder / "report.json").write_text(capsys.readouterr().out)
    assert main(Toy, ["--summary", str(folder / "report.json")]) == 0
    assert "| `long` |" in capsys.readouterr().out
    assert main(Toy, ["--summary", str(folder / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err
