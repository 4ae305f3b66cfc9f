"""A controller with few file descriptors, and strangers who open many connections and say nothing."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest

from controlplane.common.descriptors import raise_limit
from controlplane.common.rpc.client import ControllerError, fetch_status
from controlplane.service.state import Keeps, StateFolder
from controlplane.service.web.server import Web
from tests.deploy.memory_network import MemoryNetwork

LIMIT, STRANGERS = 1024, 1000
SECONDS = 60.0
Value = TypeVar("Value")


def child(folder: Path) -> None:
    """Be a controller with a page that may have LIMIT descriptors. Store the jobs for each line on standard input."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT // 4, LIMIT))
    assert raise_limit() == LIMIT == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    net = MemoryNetwork(folder)
    web = Web("127.0.0.1:0")
    web.start(SimpleNamespace(answer=lambda path, accept: ("text/plain", b"")))  # type: ignore[arg-type]
    with StateFolder(folder / "state") as state:
        print(net.serve(), web.url, flush=True)
        for _ in sys.stdin:
            try:
                state.save(Keeps())
                print("stored", flush=True)
            except OSError as error:
                print(error, flush=True)


class Crowded:
    """The child, and strangers' connections to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address, self.url = self._line().split()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def store(self) -> str:
        """Let the controller store its jobs, and return what it says."""
        assert self._process.stdin is not None
        self._process.stdin.write("store\n")
        self._process.stdin.flush()
        return self._line()


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Crowded]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.deploy.test_descriptors", str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield Crowded(process)
        finally:
            process.kill()


def eventually(ask: Callable[[], Value]) -> Value:
    """Return what `ask` returns once it succeeds: a full server serves nobody until a handshake has timed out."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            return ask()
        except (ControllerError, OSError):
            if time.monotonic() > until:
                raise


def test_silent_connections_block_neither_calls_nor_the_page_nor_the_store(crowded: Crowded) -> None:
    needed = 2 * STRANGERS + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < needed:
        pytest.skip(f"this process may have {hard} descriptors, and the strangers need {needed}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    ports = [int(crowded.address.rpartition(":")[2]), int(crowded.url.strip("/").rpartition(":")[2])]
    with contextlib.ExitStack() as strangers:
        for number in range(2 * STRANGERS):
            strangers.enter_context(socket.create_connection(("127.0.0.1", ports[number % 2]), SECONDS))
        assert crowded.store() == "stored"
        with urllib.request.urlopen(crowded.url, timeout=SECONDS) as answer:
            assert answer.status == 200
        assert eventually(lambda: fetch_status(crowded.address).jobs) == []
        assert crowded.store() == "stored"
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


if __name__ == "__main__":
    child(Path(sys.argv[1]))
