"""The threads of the service: orders have their lock in turn, and a periodic look goes on after errors."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from controlplane.common.log_lines import calling
from controlplane.service import threads
from controlplane.service.threads import InTurn, Periodic

SECONDS = 60.0


def test_who_waits_comes_before_who_wants_it_again(until: Callable[..., None]) -> None:
    lock, got = InTurn(), list[str]()

    def order(name: str) -> None:
        with lock:
            got.append(name)

    threads = [threading.Thread(target=order, args=(name,), daemon=True) for name in ("first", "second")]
    with lock:
        for number, thread in enumerate(threads, 1):
            thread.start()
            until(lambda number=number: lock.waiting == number, "it waits")
    with lock:
        got.append("again")
    for thread in threads:
        thread.join(SECONDS)
    assert got == ["first", "second", "again"]


def test_who_has_it_may_take_it_once_more(until: Callable[..., None]) -> None:
    lock, got = InTurn(), threading.Event()
    with lock:
        with lock:
            pass
        waiting = threading.Thread(target=lambda: lock.__enter__() and got.set(), daemon=True)
        waiting.start()
        until(lambda: lock.waiting == 1, "it waits")
        assert not got.is_set()
    assert got.wait(SECONDS)


def test_it_is_one_at_a_time() -> None:
    lock, inside, most = InTurn(), [0], [0]

    def work() -> None:
        for _ in range(200):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert most == [1]


def test_what_always_fails_is_logged_once_and_also_that_it_works_again(
    until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "AFTER_ERROR_SECONDS", 0.0)
    log: list[str] = []

    class Reader(Periodic):
        problem, looks = "it is off", 0

        def look(self) -> None:
            self.looks += 1
            if self.problem:
                raise OSError(self.problem)

    reader = Reader("reading", 0.0, calling(log.append))
    reader.start()
    for problem, lines in (("it is off", 1), ("it is closed", 2), ("", 3)):
        looked, reader.problem = reader.looks, problem
        until(lambda looked=looked: reader.looks > looked + 5, "it looks on")
        assert len(log) == lines, log
    reader.close()
    assert "OSError: it is off" in log[0] and "OSError: it is closed" in log[1] and "works again" in log[2]
