"""The lines of the log: level and job, on a terminal, for journald and as JSON; and `--json` everywhere."""

from __future__ import annotations

import importlib
import io
import json
import logging
import os
import re
import sys

import pytest

from controlplane.common.log_lines import Lines, is_journal, of_job, to_stderr
from controlplane.service.journal import Journal, logger_of
from inart.command import PLUGINS, VERBS
from inart.command import main as inart


def form(formatter: logging.Formatter, text: str, level: int = logging.INFO, job: str = "") -> str:
    """Return a line as it is printed."""
    record = logging.LogRecord("inart", level, "", 0, text, None, None)
    record.job = job
    return formatter.format(record)


def test_a_line_on_a_terminal_has_the_time_the_level_and_the_job():
    line = form(Lines(), "W1 has left", job="mine")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[ *\d+\.\d\d\] info    job mine: W1 has left", line)
    assert form(Lines(), "job mine: slow", logging.WARNING, "mine").endswith("] warning job mine: slow")
    assert re.fullmatch(r"[-\d]+ [:\d]+ agent: W1 has left", form(Lines(program="agent"), "W1 has left"))


def test_journald_gets_priorities_and_no_second_clock():
    lines = Lines(journal=True)
    assert form(lines, "the disk is full", logging.ERROR) == "<3>the disk is full"
    assert form(lines, "lost: s1", logging.WARNING) == "<4>lost: s1"
    assert form(lines, "a plain line") == "<6>a plain line"
    assert form(lines, "100 % of %s", job="mine") == "<6>job mine: 100 % of %s"
    assert form(Lines(journal=True, program="agent"), "lost", logging.WARNING) == "<4>agent: lost"


def test_journald_is_known_by_the_stream_that_systemd_names(tmp_path):
    with (tmp_path / "file").open("w") as file:
        status = os.fstat(file.fileno())
        there = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert is_journal(file, there)
        assert not is_journal(file, {}) and not is_journal(file, {"JOURNAL_STREAM": "1:1"})
        assert not is_journal(io.StringIO(), there)


def test_the_level_and_the_job_of_a_line_reach_the_journal():
    """A line of a job's log names the job, even if its text does not."""
    journal = Journal()
    log = logger_of(journal)
    of_job(log, "mine").warning("agent of W1 is gone")
    log.info("2 changes")
    log.error("job other: 100 % of %s")
    found = [(one.level, one.job, one.text) for one in journal.read().entries]
    assert found == [
        ("warning", "mine", "job mine: agent of W1 is gone"),
        ("info", "", "2 changes"),
        ("error", "other", "job other: 100 % of %s"),
    ]
    assert [one.text for one in journal.lines(2)] == [text for _, _, text in found[1:]]
    assert journal.line_count == 3


def test_a_log_as_json_is_an_object_a_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    log = to_stderr(as_json=True)
    monkeypatch.setattr(log, "handlers", log.handlers)
    of_job(log, "mine").warning("job mine: slow")
    logging.getLogger("inart.tls").warning("half a %s", "certificate")
    line, other = (json.loads(line) for line in sys.stderr.getvalue().splitlines())
    assert line.pop("time") > 1.7e9
    assert line == {"level": "warning", "job": "mine", "text": "job mine: slow"}
    assert (other["level"], other["text"]) == ("warning", "half a certificate"), "libraries log here, too"


PRINT_NOTHING = {
    "emulate": "a network to look at", "agent": "a process that serves",
    "ps": "a process that serves", "run": "the output of the command that it runs", "site": "several commands",
    "overlay": "a process that serves", "kubernetes": "a process that serves",
    "slurm": "what Slurm reads", "mpi": "the output of the command that it runs", "nccl": "the path of a file",
}  # fmt: skip
COMMANDS = [(verb,) for verb in (*VERBS, *PLUGINS) if verb not in (*PRINT_NOTHING, "job", "topology")]
COMMANDS += [("job", order) for order in ("add", "list", "show", "remove")] + [("site", "status")]
COMMANDS.append(("topology", "reload"))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_verb_that_prints_takes_json(words: tuple[str, ...], capsys):
    with pytest.raises(SystemExit):
        inart([*words, "--help"])
    said = capsys.readouterr().out
    assert "--json" in said, f"{' '.join(words)} has no --json"


def test_certificates_are_listed_with_their_end(tmp_path, capsys):
    main = importlib.import_module("controlplane.cli.certificates").main
    assert main(["--folder", str(tmp_path / "own"), "--nodes", "W1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"controller", "nodes/W1", "operators/operator"} <= set(found["until"])
