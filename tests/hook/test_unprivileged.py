"""Agents run a whole job over UDP as an ordinary user, without any capability that a container would not have."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.hook.conftest import ROOT, Network
from tests.support.waiting import wait_until

NOBODY = 65534
SECONDS = 90.0


def everybody_reads(path: Path) -> bool:
    """Return whether any user can read a file: every folder above it must let them through."""
    return all(folder.stat().st_mode & 0o001 for folder in path.resolve().parents) and bool(path.stat().st_mode & 0o004)


def ordinary_user() -> list[str]:
    """Return the command that runs another as an ordinary user without capabilities. If the interpreter is in a folder
    that only root can read, the user has the capability to read files.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv: apt-get install util-linux")
    readable = everybody_reads(Path(sys.executable)) and everybody_reads(ROOT / "README.md")
    capabilities = "-all" if readable else "-all,+dac_read_search"
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    return [setpriv, *user, *(f"--{which}={capabilities}" for which in ("bounding-set", "inh-caps", "ambient-caps"))]


COMPILE = """
from ps_server import server
from worker_agent import native_worker
native_worker.library(), server.library()
"""


def environment(cache: Path) -> dict[str, str]:
    """Return what such a user finds around."""
    return {
        **os.environ,
        "INART_CACHE": str(cache),
        "INART_CFLAGS": "-O0",
        "HOME": str(cache),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.fixture(scope="module")
def cache() -> Iterator[Path]:
    """Return the cache of such a user, who has compiled the engines: agents that compile join late."""
    # Not below pytest's folder, which each pytest that begins on this machine closes to all but its own user.
    with TemporaryDirectory(prefix="inart-test-") as folder:
        os.chown(folder, NOBODY, NOBODY)
        compiles = [*ordinary_user(), sys.executable, "-c", COMPILE]
        subprocess.run(compiles, cwd=ROOT, env=environment(Path(folder)), check=True, timeout=170)
        yield Path(folder)


@pytest.fixture
def shared(cache: Path, network: Network) -> Iterator[dict[str, str]]:
    """Return the environment of such a user, with a cache of its own; the controller's socket is open to it."""
    for folder in (*network.folder.parents, network.folder):
        if folder.is_relative_to("/tmp") and folder != Path("/tmp") and folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o055)
    Path(network.address.removeprefix("unix:")).chmod(0o777)
    yield environment(cache)


def alike(workers: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """Return the output of the workers, after they have ended without error and with the same sum."""
    found = []
    for worker in workers:
        out, err = worker.communicate(timeout=SECONDS)
        assert worker.returncode == 0, err
        found.append(json.loads(out))
    assert found[0]["digest"] == found[1]["digest"]
    return found


@pytest.mark.namespaces
def test_ordinary_users_run_a_whole_job(network: Network, shared: dict[str, str]) -> None:
    user = ordinary_user()
    server = network.run("s0", "ps_server", "--controller", network.address, before=user, env=shared)
    options = ("--controller", network.address, "--bytes", "4M", "--repeat", "3", "--json")
    workers = [
        network.run(node, "worker_agent", "allreduce", *options, before=user, env=shared) for node in ("w0", "w1")
    ]
    wait_until(lambda: network.joined("s0") or server.poll() is not None, "the server has joined", SECONDS)
    if server.poll() is None:
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{server.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        assert status["Uid"].split() == [str(NOBODY)] * 4
        # The capabilities for networks, CAP_NET_BIND_SERVICE, _BROADCAST, _ADMIN and _RAW, are bits 10 to 13.
        assert int(status["CapEff"], 16) >> 10 & 0b1111 == 0
    found = alike(workers)
    assert all(0 <= result["error"] <= result["error_bound"] for result in found)
    assert network.switch.verdicts()["completed"] > 0, "the switch has summed"
