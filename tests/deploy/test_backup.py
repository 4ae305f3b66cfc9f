"""`inart backup` and `restore`: a network's jobs outlive the machine of its controller."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.cli.backup import main
from controlplane.planner.job import Job
from controlplane.service.epochs import EpochStore
from controlplane.service.journal import Journal
from controlplane.service.state import Keeps, StateFolder
from tests.deploy.memory_network import MemoryNetwork

A = Job("A", ("h1", "h4"), ("h2",), 10**6)


@pytest.fixture
def rig(rig: MemoryNetwork, tmp_path: Path) -> MemoryNetwork:
    rig.add(A)
    EpochStore(tmp_path / "epoch").check()  # as `inart serve` does when it starts
    return rig


def order(verb: str, file: Path, where: Path, *more: str) -> int:
    return main([verb, str(file), "--state", str(where / "state"), "--epoch-file", str(where / "epoch"), *more])


def test_what_is_restored_is_what_was_kept_and_epochs_never_go_back(rig, tmp_path, capsys):
    """The backup is made while the controller has its folder; another machine's controller then starts with it."""
    file, there = tmp_path / "network.tar.gz", tmp_path / "there"
    with StateFolder(tmp_path / "state") as state:
        state.save(replace(rig.network.keeps(), disabled=["s1"]))
        journal = Journal(state.path / "journal")
        journal.line("job A: something")
        journal.close()
        epoch = EpochStore(tmp_path / "epoch").next()
        assert order("backup", file, tmp_path) == 0
        assert "1 jobs of" in capsys.readouterr().out
        kept = state.load()
    assert file.stat().st_mode & 0o077 == 0, "it has the secret"
    assert order("restore", file, there) == 0
    with StateFolder(there / "state") as state:
        assert state.load() == kept and kept.disabled == ["s1"]
    assert [entry.text for entry in Journal(there / "state" / "journal").read().entries] == ["job A: something"]
    old, new = EpochStore(tmp_path / "epoch"), EpochStore(there / "epoch")
    assert new.key(7) == old.key(7), "switches' entries and agents' keys stay readable"
    later = epoch + 10**6
    new.adopt(later)
    assert order("restore", file, there) == 0, "the same jobs again"
    assert new.next() > later


def test_other_jobs_and_a_running_controller_are_not_overwritten(rig, tmp_path, capsys):
    file = tmp_path / "network.tar.gz"
    with StateFolder(tmp_path / "state") as state:
        state.save(rig.network.keeps())
        assert order("backup", file, tmp_path) == 0
        assert order("restore", file, tmp_path) == 1
        assert "another controller of this network runs" in capsys.readouterr().err
        state.save(Keeps())
    assert order("restore", file, tmp_path) == 1
    assert "has other jobs: --force" in capsys.readouterr().err
    assert order("restore", file, tmp_path, "--force") == 0
    with StateFolder(tmp_path / "state") as state:
        assert [stored.plan.job for stored in state.load().jobs] == [A]
    assert (tmp_path / "state" / "jobs.json.before").exists()
    (tmp_path / "epoch.secret").write_bytes(b"x" * 32)
    assert order("restore", file, tmp_path) == 1
    assert "another installation's" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["cut off", "another file", "a path that leads out", "jobs that cannot be used"])
def test_what_is_no_backup_changes_nothing(rig, tmp_path, capsys, what):
    file, there = tmp_path / "network.tar.gz", tmp_path / "there"
    with StateFolder(tmp_path / "state") as state:
        state.save(rig.network.keeps())
    assert order("backup", file, tmp_path) == 0
    if what == "cut off":
        file.write_bytes(file.read_bytes()[:-300])
    elif what == "another file":
        file.write_text("hello")
    else:
        with tarfile.open(file, "w:gz") as archive:
            names = {"jobs.json": b"{}"} if what == "jobs that cannot be used" else {"../jobs.json": b"{}"}
            for name, content in names.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    assert order("restore", file, there) == 1
    assert capsys.readouterr().err.startswith("restore: ")
    assert not (there / "state" / "jobs.json").exists()


def test_a_folder_in_which_nothing_is_kept_is_said(tmp_path, capsys):
    assert order("backup", tmp_path / "x.tar.gz", tmp_path) == 1
    assert "nothing is kept in" in capsys.readouterr().err
    with StateFolder(tmp_path / "state") as state:
        state.save(Keeps())
    assert order("backup", tmp_path / "x.tar.gz", tmp_path) == 1
    assert "there is no secret beside" in capsys.readouterr().err
    assert main(["backup", str(tmp_path / "x.tar.gz")]) == 1
    assert "which network?" in capsys.readouterr().err
