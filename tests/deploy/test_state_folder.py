"""A copy of the state folder is a complete backup: jobs, entries, labels and keys are the same, and no epoch is used
twice.
"""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.cli.reload import Files
from controlplane.common.log_lines import calling
from controlplane.planner.job import Job
from controlplane.service import epochs as epochs_module
from controlplane.service.epochs import EPOCH, SECRET, EpochStore
from controlplane.service.journal import Journal, logger_of
from controlplane.service.state import Keeps, StateError, StateFolder, default_folder, digest_of, resume
from controlplane.targets.base import SwitchAddress
from tests.deploy.agents import Agents
from tests.deploy.memory_network import MemoryNetwork

A = Job("A", ("h1", "h4"), ("h2",), 10**6)
JOBS = "jobs.json"


@pytest.fixture
def folder(rig: MemoryNetwork, tmp_path: Path) -> Path:
    """The state folder of a controller with one job, which has ended."""
    rig.add(A)
    made = tmp_path / "state"
    with StateFolder(made) as state:
        epochs = EpochStore(made)
        resume(state, epochs)
        epochs.next()
        journal = Journal(made / "journal")
        logger_of(journal).info("job A: something")
        journal.close()
        state.save(replace(rig.network.keeps(), disabled=["s1"], epoch=epochs.last, secret=epochs.fingerprint()))
    return made


def test_a_network_stores_its_last_epoch_and_the_fingerprint_of_its_secret(rig, tmp_path):
    agents = Agents(rig.add(A).roster)
    agents.join()
    kept = rig.network.keeps()
    assert kept.epoch == agents.roster.epoch > 0
    assert kept.secret == EpochStore(tmp_path).fingerprint() and kept.secret not in EpochStore(tmp_path).key(0)
    rig.network.remove("A")
    for thread in agents.threads:
        thread.join()


def store(folder: Path, **fields: object) -> None:
    """Store other values of these fields, with the digest that belongs to them."""
    data = json.loads((folder / JOBS).read_text()) | fields
    (folder / JOBS).write_text(json.dumps(data | {"digest": digest_of(data)}))


def start(folder: Path) -> tuple[Keeps, EpochStore]:
    """Begin with a folder as a controller does."""
    epochs = EpochStore(folder)
    with StateFolder(folder) as state:
        return resume(state, epochs), epochs


def test_a_reload_keeps_the_folder_under_the_name_of_the_new_switches(rig, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    named = [[SwitchAddress(f"s{port}", f"127.0.0.1:{port}", 1) for port in ports] for ports in ((1,), (1, 2), (1, 3))]
    first, second, taken = (default_folder(f"{one.address} {one.device_id}" for one in of) for of in named)
    EpochStore(first).check()
    EpochStore(taken).check()
    before = EpochStore(taken).fingerprint()
    said: list[str] = []
    files = Files(
        Namespace(state=None), rig.network, connect=lambda *_, **__: [], switches=lambda: named[0], close=print,
        log=calling(said.append),
    )  # fmt: skip
    files.keep_folder(named[1])
    assert EpochStore(second).fingerprint() == EpochStore(first).fingerprint() and not said
    files.keep_folder(named[2])
    assert "belongs to these switches already: start the controller with --state" in said[0]
    assert EpochStore(taken).fingerprint() == before


def set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock to 1970, so that only the folder keeps epochs from being used again."""
    monkeypatch.setattr(epochs_module.time, "time", lambda: 1.0)


def test_a_copy_of_the_folder_is_all_that_another_machine_needs(folder, tmp_path):
    there = tmp_path / "there"
    shutil.copytree(folder, there)
    before, old = start(folder)
    after, new = start(there)
    assert after == before and [job.plan.job for job in after.jobs] == [A] and after.disabled == ["s1"]
    assert new.key(7) == old.key(7)
    assert new.labels().labels(range(1, 50)) == old.labels().labels(range(1, 50))
    assert new.next() > before.epoch
    assert [entry.text for entry in Journal(there / "journal").read().entries] == ["job A: something"]
    assert (there / SECRET).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("lost", ["an old epoch", "no epoch", "old jobs"])
def test_the_larger_epoch_of_both_files_counts(folder, monkeypatch, lost):
    """A part of the folder is replaced by an old copy; the clock does not help."""
    kept, epochs = start(folder)
    last = epochs.last
    if lost == "an old epoch":
        (folder / EPOCH).write_text("17\n")
    elif lost == "no epoch":
        (folder / EPOCH).unlink()
    else:
        store(folder, epoch=17)
    set_back(monkeypatch)
    again, epochs = start(folder)
    assert again.jobs == kept.jobs and epochs.next() == last + 1


def test_a_whole_old_copy_begins_after_all_epochs_by_the_clock(folder, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    _, epochs = start(folder)
    used = [epochs.next() for _ in range(3)]
    clock = epochs_module.time.time() + 10  # the copy is put back some seconds later
    shutil.rmtree(folder)
    shutil.copytree(old, folder)
    _, again = start(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epochs_module.time, "time", lambda: clock)
        assert again.next() > max(used)


@pytest.mark.parametrize("name", [JOBS, EPOCH, SECRET])
@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: b"\xff" + content[1:]])
def test_a_damaged_file_is_reported_and_kept_and_never_counts_as_empty(folder, name, damage):
    """An empty jobs.json meant that there is no job yet, so that a network lost all its jobs without a word."""
    damaged = damage((folder / name).read_bytes())
    (folder / name).write_bytes(damaged)
    with pytest.raises((StateError, OSError), match=rf"{name}.* (move|remove)|stored with another secret"):
        start(folder)
    assert (folder / name).read_bytes() == damaged


def test_jobs_whose_content_has_changed_are_refused(folder):
    text = (folder / JOBS).read_text()
    (folder / JOBS).write_text(text.replace('"kept_off": ["s1"]', '"kept_off": ["s2"]'))
    with pytest.raises(StateError, match="does not have the digest that it names"):
        start(folder)


@pytest.mark.parametrize("epoch", [-1, 1 << 32, "7", True, 1.5, None])
def test_an_epoch_that_is_none_is_refused(folder, epoch):
    store(folder, epoch=epoch)
    with pytest.raises(StateError, match=r"an epoch is an integer of 32 bits.*move it away"):
        start(folder)


def test_jobs_with_another_secret_are_refused_and_nothing_is_changed(folder):
    (folder / SECRET).write_bytes(b"x" * 32)
    jobs = (folder / JOBS).read_bytes()
    with pytest.raises(StateError, match=r"stored with another secret than secret: copy the whole folder, or move"):
        start(folder)
    assert (folder / JOBS).read_bytes() == jobs and (folder / SECRET).read_bytes() == b"x" * 32
    (folder / JOBS).unlink()
    assert start(folder)[0].jobs == []


def test_jobs_without_their_secret_are_refused_and_none_is_drawn(folder, tmp_path, monkeypatch):
    (folder / SECRET).rename(tmp_path / "moved")
    with pytest.raises(StateError, match=r"not the secret of their labels and keys: copy it from where it was"):
        start(folder)
    assert not (folder / SECRET).exists()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    old = tmp_path / "home" / "inart" / "epoch.secret"
    old.parent.mkdir(parents=True)
    (tmp_path / "moved").rename(old)
    with pytest.raises(
        StateError, match=rf"copy it from {old}, where an earlier version kept it, to {folder / SECRET}"
    ):
        start(folder)
    shutil.copy(old, folder / SECRET)
    assert [job.plan.job for job in start(folder)[0].jobs] == [A]
