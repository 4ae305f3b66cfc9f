"""Runs several test files at a time, in processes that are forked from one that has imported all of them:
``pytest -p tests.parallel --jobs 4``.

To import the tests takes longer than most of them, so it is done once. A process takes the next file when it has come
to the last test of the one before, so that fixtures of a session that both need stay.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import sys
import tempfile
import types
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
from _pytest._io import TerminalWriter

FORK = multiprocessing.get_context("fork")
FORKING = 2
"""Processes that run the files with the marker `forks`, as long as there are others for the rest."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--jobs", type=int, default=0, help="test files to run at a time (0: in this process)")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    jobs = session.config.getoption("jobs")
    if not jobs or session.config.getoption("collectonly") or session.testsfailed:
        return None  # pytest's own loop runs the tests, or says what could not be imported.
    numbers = range(len(session.items))
    files = deque(deque(file) for _, file in groupby(numbers, key=lambda number: session.items[number].path))
    gc.collect()
    gc.freeze()  # What is there now stays: no process has to look through it.
    workers = {worker.connection: worker for worker in (Worker(session) for _ in range(min(jobs, len(files))))}

    def forks(file: deque[int]) -> bool:
        return session.items[file[0]].get_closest_marker("forks") is not None

    def take(worker: Worker) -> deque[int]:
        """Take the next file that is for this process."""
        wanted = worker.forks or sum(other.forks for other in workers.values()) < FORKING
        file = next((file for file in files if forks(file) == wanted), files[0])
        files.remove(file)
        worker.forks = worker.forks or forks(file)
        return file

    while workers:
        for connection in wait(list(workers)):
            worker = workers[connection]  # type: ignore[index]
            try:
                what, *said = worker.connection.recv()
            except (EOFError, ConnectionResetError):
                del workers[worker.connection]
                if worker.crashed():
                    files.extendleft([worker.numbers] if worker.numbers else [])
                    replacement = Worker(session)
                    workers[replacement.connection] = replacement
                continue
            if what == "next":
                worker.give(take(worker) if files and not (session.shouldstop or session.shouldfail) else deque())
            elif what == "began":
                while worker.numbers[0] != said[0]:
                    worker.numbers.popleft()
            elif what == "report":
                report = session.config.hook.pytest_report_from_serializable(config=session.config, data=said[0])
                session.config.hook.pytest_runtest_logreport(report=report)
            elif what == "ended":
                session.config.hook.pytest_runtest_logfinish(nodeid=said[0], location=said[1])
            elif what == "warning":
                session.config.hook.pytest_warning_recorded.call_historic(kwargs=said[0])
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


class Worker:
    """A forked process, seen from the process that it was forked from."""

    def __init__(self, session: pytest.Session) -> None:
        self.session = session
        self.numbers: deque[int] = deque()  # Of the tests that it has to run; the first one runs.
        self.finished = self.forks = False
        self.connection, theirs = FORK.Pipe()
        self.process = FORK.Process(target=work, args=(session, theirs))
        self.process.start()
        theirs.close()

    def give(self, file: deque[int]) -> None:
        """Send the numbers of a file's tests; none: there are no more files."""
        self.finished = not file
        self.numbers += file
        self.connection.send(list(file))

    def crashed(self) -> bool:
        """Whether the process, which has ended, should have gone on; then the test that it ran has failed."""
        self.process.join()
        if self.finished and self.process.exitcode == 0:
            return False
        item = self.session.items[self.numbers.popleft()]
        text = f"the process of the test ended with exit status {self.process.exitcode}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        self.session.config.hook.pytest_runtest_logreport(report=report)
        return True


class Told:
    """A plugin of a forked process: it tells the process that it was forked from what pytest reports. It stands where
    pytest's terminal reporter was, whose writer pytest-timeout asks for, to write what each thread was doing.
    """

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self.config, self.connection = config, connection

    @property
    def _tw(self) -> TerminalWriter:
        """A writer to the standard error of the test that runs, which its report contains."""
        return TerminalWriter(sys.stderr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.connection.send(("report", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.connection.send(("ended", nodeid, location))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: object
    ) -> None:
        said = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        with suppress(TypeError, AttributeError):  # A warning about something that cannot be sent is not told.
            self.connection.send(("warning", said))


def own_output() -> None:
    """Give this process files of its own for what tests print. Modules may hold those that are there (a handler of
    logging does): so these stay open, and are other files from now on.
    """
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        if stream.fileno() != descriptor:  # It is captured.
            with tempfile.TemporaryFile() as own:
                os.dup2(own.fileno(), stream.fileno())
                os.dup2(own.fileno(), descriptor)


def work(session: pytest.Session, connection: Connection) -> None:
    """Run tests by their numbers from the connection, until none come."""
    atexit._clear()
    sys.modules["__main__"] = types.ModuleType("__main__")  # Else multiprocessing imports pytest in each new process.
    plugins = session.config.pluginmanager
    for name in ("terminalreporter", "lfplugin", "nfplugin", "junitxml"):
        plugins.unregister(name=name)
    capture: Any = plugins.getplugin("capturemanager")
    capture.resume_global_capture()
    own_output()
    capture.suspend_global_capture()
    plugins.register(Told(session.config, connection), "terminalreporter")

    def numbers() -> Iterator[int]:
        while True:
            connection.send(("next",))
            file = connection.recv()
            if not file:
                return
            yield from file

    coming = numbers()
    number = next(coming, None)
    while number is not None:
        connection.send(("began", number))
        following = next(coming, None)
        item, after = session.items[number], session.items[following] if following is not None else None
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        number = following
    atexit._run_exitfuncs()
