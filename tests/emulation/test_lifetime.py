"""An emulation removes everything that it made, and only that, however it ends."""

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from controlplane.planner.generators import fattree, testbed
from tests.support.examples import nightly
from tests.support.waiting import wait_until as poll
from topologies import Emulation, EmulationError, network
from topologies.lifetime import LOCK, PREFIX, Lifetime, sweep
from topologies.reaper import interface_pattern, marked

ROOT = Path(__file__).resolve().parents[2]
SYSCTLS = ("fs/file-max", "net/core/wmem_max", "net/core/rmem_max", "net/core/netdev_max_backlog",
           "net/ipv4/tcp_rmem", "net/ipv4/neigh/default/gc_thresh1", "kernel/pty/max")  # fmt: skip


@dataclass(frozen=True)
class Traces:
    """The names by which everything of one emulation can be found."""

    token: str
    number: int
    directory: Path

    @classmethod
    def of(cls, emulation: Emulation) -> "Traces":
        assert emulation.lifetime is not None
        lifetime = emulation.lifetime
        return cls(lifetime.token, lifetime.number, lifetime.directory)

    @classmethod
    def of_process(cls, pid: int) -> "Traces | None":
        """Return the name from the command line of the reaper that the process has started, or None when there is no
        reaper yet.
        """
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            try:
                words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue  # This was a short-lived child that has ended meanwhile.
            if any(word.endswith("reaper.py") for word in words):
                return cls(words[-4], int(words[-3]), Path(words[-2]))
        return None

    def interfaces(self) -> list[str]:
        return [name for name in os.listdir("/sys/class/net") if interface_pattern(self.number).fullmatch(name)]

    def any(self) -> bool:
        """Return whether a process (and with it a namespace), an interface or a file is left."""
        return any(True for _ in marked(self.token)) or bool(self.interfaces()) or self.directory.exists()


def test_leaving_the_context_takes_everything_down() -> None:
    settings = [Path("/proc/sys", name).read_text() for name in SYSCTLS]
    with Emulation(testbed(), "softswitch") as emulation:
        traces = Traces.of(emulation)
        assert traces.any()
        emulation.popen("W1", ["sh", "-c", "sleep 1000 & sleep 1000"])
    assert not traces.any()
    assert [Path("/proc/sys", name).read_text() for name in SYSCTLS] == settings


def test_an_exception_takes_everything_down() -> None:
    with pytest.raises(ZeroDivisionError), Emulation(testbed(), "softswitch") as emulation:
        traces = Traces.of(emulation)
        raise ZeroDivisionError
    assert not traces.any()


def test_failure_while_building_takes_everything_down(monkeypatch: pytest.MonkeyPatch) -> None:
    emulation = Emulation(testbed(), "softswitch")
    found: list[Traces] = []

    def broken(*_: object) -> None:
        found.append(Traces.of(emulation))
        assert found[0].any()
        raise EmulationError("broken on purpose")

    monkeypatch.setattr(network, "add_fabric", broken)
    with pytest.raises(EmulationError, match="on purpose"):
        emulation.start()
    assert not found[0].any()


@pytest.mark.parametrize(
    ("sign", "moment"),
    [
        nightly(signal.SIGKILL, "first interface"),
        (signal.SIGKILL, "switches"),
        (signal.SIGKILL, "all"),
        nightly(signal.SIGINT, "first interface"),
        (signal.SIGINT, "switches"),
        nightly(signal.SIGINT, "all"),
        nightly(signal.SIGTERM, "first interface"),
        nightly(signal.SIGTERM, "switches"),
        (signal.SIGTERM, "all"),
    ],
)
def test_signals_at_any_moment(sign: signal.Signals, moment: str) -> None:
    """The signal goes to the whole foreground process group, as from a terminal, while building, starting switches, and
    running.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "topologies", "--topology", "testbed", "--switch", "softswitch", "--hold"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        poll(lambda: Traces.of_process(process.pid) is not None, "the reaper is there")
        traces = Traces.of_process(process.pid)
        assert traces is not None
        if moment == "all":
            for line in process.stdout:
                if "Ctrl-C" in line:
                    break
        else:
            count = 1 if moment == "first interface" else 2 * len(testbed().servers)
            poll(lambda: len(traces.interfaces()) >= count, "interfaces appear")
        assert process.poll() is None
        os.killpg(process.pid, sign)
        process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    assert process.returncode != 0
    # After SIGKILL nobody has waited for the reaper yet.
    poll(lambda: not traces.any(), "something stays")


def test_two_at_once() -> None:
    with Emulation(testbed(), "softswitch") as one, Emulation(testbed(), "softswitch") as other:
        for emulation in (one, other):
            root = emulation.run("W1", ["ping", "-n", "-c", "1", "-W", "2", emulation.controller_host])
            assert root.returncode == 0
        assert one.switch_addresses["V1"].address != other.switch_addresses["V1"].address
        one.stop()
        other.switches.check()
        assert other.run("W2", ["true"]).returncode == 0


def test_names_are_of_one_emulation_only() -> None:
    with_one, with_eleven = interface_pattern(1), interface_pattern(11)
    assert with_one.fullmatch("inart1h1")
    assert not with_one.fullmatch("inart11h1")
    assert with_eleven.fullmatch("inart11h1")
    assert not with_one.fullmatch("inart1")


def test_management_addresses_differ() -> None:
    one, other = Lifetime(), Lifetime()
    try:
        assert one.number != other.number
        addresses = {each.management_address(i) for each in (one, other) for i in range(1022)}
        assert len(addresses) == 2 * 1022
        with pytest.raises(ValueError, match="at most"):
            one.management_address(1022)
    finally:
        assert one.end()
        assert other.end()


def test_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EmulationError, match="root"):
        Emulation(testbed(), "softswitch").start()


def test_missing_namespaces_are_reported_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = tmp_path / "mnexec"
    refusing.write_text("#!/bin/sh\necho unshare: not permitted >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(EmulationError, match="unshare: not permitted"):
        Emulation(testbed(), "softswitch").start()


def test_unknown_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCH", "hub")
    with pytest.raises(EmulationError, match="bmv2 and softswitch"):
        Emulation(testbed())


def test_bmv2_is_chosen_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SWITCH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Emulation(fattree(2)).kind == "softswitch"
    with pytest.raises(EmulationError, match="not on PATH"):
        Emulation(fattree(2), "bmv2")
    (tmp_path / "simple_switch_grpc").touch(mode=0o755)
    assert Emulation(fattree(2)).kind == "bmv2"
    monkeypatch.setenv("SWITCH", "softswitch")
    assert Emulation(fattree(2)).kind == "softswitch"


def test_strangers_files_in_the_temporary_folder_neither_block_nor_feed_an_emulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO without a writer blocks an open, /dev/zero has no end, and a link leads to files of others."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = {name: tmp_path / f"{PREFIX}{name}" for name in ("fifo", "zero", "stranger", "linked")}
    for folder in (others["fifo"], others["zero"], others["stranger"]):
        folder.mkdir()
    os.mkfifo(others["fifo"] / LOCK)
    (others["zero"] / LOCK).symlink_to("/dev/zero")
    (others["stranger"] / LOCK).write_text("0123 77")
    os.chown(others["stranger"], 65534, 65534)
    target = tmp_path / "target"
    target.mkdir()
    (target / LOCK).write_text("0123 78")
    others["linked"].symlink_to(target)
    assert sweep() == []
    assert all(folder.exists() for folder in (*others.values(), target))


def test_remains_of_this_user_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"{PREFIX}own"
    own.mkdir()
    (own / LOCK).write_text("0123456789abcdef 79")
    assert sweep() == [own]
    assert not own.exists()
