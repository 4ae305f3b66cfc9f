"""Orders are carried out in the order in which they came, also while all jobs are replanned again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable

from controlplane.service.threads import InTurn

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
