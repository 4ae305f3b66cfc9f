"""The lines of the log: level and job, on a terminal, for journald and as JSON; and `--output json` everywhere."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest

from controlplane.common import command_line
from controlplane.common.log_lines import Level, Line, failure, is_journal, of_job, printed, to_stderr, warning
from controlplane.service.event_log import EventLog
from controlplane.service.journal import Journal
from inart.command import VERBS
from inart.command import main as inart


def test_a_line_on_a_terminal_has_the_time_the_level_and_the_job():
    line = printed(Line("W1 has left", job="mine"), 0.0, journal=False)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[ *\d+\.\d\d\] info    job mine: W1 has left", line)
    assert printed(warning("job mine: slow"), 0.0, journal=False).endswith("] warning job mine: slow")


def test_journald_gets_priorities_and_no_second_clock():
    assert printed(failure("the disk is full"), 0.0, journal=True) == "<3>the disk is full"
    assert printed(warning("lost: s1"), 0.0, journal=True) == "<4>lost: s1"
    assert printed("a plain line", 0.0, journal=True) == "<6>a plain line"


def test_journald_is_known_by_the_stream_that_systemd_names(tmp_path):
    with (tmp_path / "file").open("w") as file:
        status = os.fstat(file.fileno())
        there = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert is_journal(file, there)
        assert not is_journal(file, {}) and not is_journal(file, {"JOURNAL_STREAM": "1:1"})
        assert not is_journal(io.StringIO(), there)


def test_the_level_and_the_job_of_a_line_reach_whoever_keeps_it():
    """A job's log names the job also where the line does not; the journal has its level."""
    printed_lines: list[str] = []
    log, journal = EventLog(printed_lines.append), Journal()
    log.record_in(journal.line)
    of_job(log, "mine")(warning("agent of W1 is gone"))
    log("2 changes")
    assert [event.text for event in log.last()] == ["job mine: agent of W1 is gone", "2 changes"]
    found = [(one.level, one.job, one.text) for one in journal.read().entries]
    assert found == [("warning", "mine", "agent of W1 is gone"), ("info", "", "2 changes")]
    assert printed_lines[0].level is Level.WARNING


def test_a_log_as_json_is_an_object_a_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    to_stderr(as_json=True)(warning("job mine: slow"))
    (line,) = sys.stderr.getvalue().splitlines()
    found = json.loads(line)
    assert found.pop("time") > 1.7e9
    assert found == {"level": "warning", "job": "mine", "text": "job mine: slow"}


PRINT_NOTHING = {
    "shell": "an interactive shell", "emulate": "a network to look at", "agent": "a process that serves",
    "ps": "a process that serves", "run": "the output of the command that it runs", "site": "several commands",
    "overlay": "a process that serves", "kubernetes": "a process that serves",
    "slurm": "what Slurm reads", "mpi": "the output of the command that it runs", "nccl": "the path of a file",
}  # fmt: skip
COMMANDS = [(verb,) for verb in VERBS if verb not in (*PRINT_NOTHING, "job", "topology")]
COMMANDS += [("job", order) for order in ("add", "list", "show", "remove")] + [("site", "status"), ("site", "probe")]
COMMANDS.append(("topology", "reload"))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_verb_that_prints_takes_output_json(words: tuple[str, ...], capsys):
    with pytest.raises(SystemExit):
        inart([*words, "--help"])
    said = capsys.readouterr().out
    assert "--output json" in said and "--json" in said, f"{' '.join(words)} has no --output json"


def test_output_is_a_form_or_a_file_where_a_command_writes_one(capsys):
    parser = argparse.ArgumentParser()
    command_line.add_output(parser, file=Path)
    found = parser.parse_args(["--output", "json", "--output", "plan.json"])
    assert found.json and found.output == Path("plan.json")
    assert not parser.parse_args([]).json and parser.parse_args(["--json"]).json
    only = argparse.ArgumentParser()
    command_line.add_output(only)
    assert only.parse_args(["--output", "json"]).json and not only.parse_args(["--output", "text"]).json
    with pytest.raises(SystemExit):
        only.parse_args(["--output", "plan.json"])
    assert "wanted: json or text" in capsys.readouterr().err


def test_certificates_are_listed_with_their_end(tmp_path, capsys):
    main = importlib.import_module("controlplane.cli.certificates").main
    assert main(["--folder", str(tmp_path / "own"), "--nodes", "W1", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"controller", "nodes/W1", "operators/operator"} <= set(found["until"])
