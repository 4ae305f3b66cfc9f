"""A process in an emulated host can be ended from the moment at which it was asked for."""

from __future__ import annotations

import multiprocessing
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

from topologies.zygote import Channel, HostFailure, HostProcess

SECONDS = 30


def test_a_process_that_is_killed_while_another_thread_waits_for_its_first_message_ends(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    ours, theirs = socket.socketpair()
    may_start = fork.Event()

    def live() -> None:
        ours.close()
        assert may_start.wait(SECONDS)
        Channel(theirs).send_self()
        signal.pause()

    child = fork.Process(target=live)
    child.start()
    theirs.close()
    process = HostProcess("h1", Channel(ours), tmp_path / "log")

    def listen() -> None:
        with suppress(HostFailure):
            process.receive(SECONDS)

    threads = [threading.Thread(target=each) for each in (listen, process.kill)]
    for thread in threads:
        thread.start()
    may_start.set()
    child.join(SECONDS)
    killed = child.exitcode
    child.kill()
    for thread in threads:
        thread.join(SECONDS)
    assert killed == -signal.SIGKILL
