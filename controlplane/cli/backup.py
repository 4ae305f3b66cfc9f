"""Backs up what a network's controller keeps, and restores it: jobs, plans, entries, epoch, secret, journal.

    inart backup --switches switches.json network.tar.gz
    inart restore --switches switches.json network.tar.gz

A backup may be made while the controller runs. It has the secret from which keys and labels are derived: keep it as
private as the state folder. See docs/deploy.md.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from controlplane.common import command_line
from controlplane.common.whole_file import replace_file
from controlplane.service.epochs import EpochStore, default_file
from controlplane.service.state import StateError, StateFolder, default_folder
from controlplane.targets.switches_file import SwitchesFileError, load_switches

JOBS, EPOCH, SECRET = "jobs.json", "epoch", "epoch.secret"
KEPT = re.compile(r"jobs\.json|epoch|epoch\.secret|journal/\d{12}\.jsonl")
"""Names of the files in a backup."""
MOST_BYTES = 1 << 30
"""Most bytes of all files of a backup together."""


class BackupError(Exception):
    """Error: a backup cannot be made or restored; the message says why and what to do."""


def folder_of(arguments: argparse.Namespace) -> Path:
    """Return the state folder that the arguments name. Raise BackupError or SwitchesFileError where they name none."""
    if arguments.state is not None:
        return Path(arguments.state)
    if arguments.switches is None:
        raise BackupError("which network? Give --switches FILE as to `inart serve`, or --state DIR")
    return default_folder(f"{one.address} {one.device_id}" for one in load_switches(arguments.switches).values())


def backup(state: Path, epochs: Path, output: Path) -> int:
    """Write a backup of a state folder and its epoch's files, and return the number of jobs. Raise BackupError or
    OSError where that fails."""
    if not (state / JOBS).exists():
        raise BackupError(f"nothing is kept in {state}: is that the network's folder? (inart serve says where it is)")
    files = {name: state / name for path in state.rglob("*") if KEPT.fullmatch(name := str(path.relative_to(state)))}
    files |= {EPOCH: epochs, SECRET: epochs.with_name(f"{epochs.name}.secret")}
    contents = {name: path.read_bytes() for name, path in files.items() if path.exists()}
    if SECRET not in contents:
        raise BackupError(f"there is no secret beside {epochs}: give the --epoch-file that `inart serve` has")
    jobs = _check(contents)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in sorted(contents.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    replace_file(output, made.getvalue())
    return jobs


def restore(source: Path, state: Path, epochs: Path, *, force: bool = False) -> int:
    """Put a backup in place of a state folder's contents, and return the number of jobs.

    All is checked before anything is changed. With `force`, jobs that the folder already has are replaced; they stay
    beside the new ones, as jobs.json.before. Raise BackupError where that fails, StateError where a controller of this
    network runs, or OSError.
    """
    contents = _read(source)
    jobs = _check(contents)
    secret = epochs.with_name(f"{epochs.name}.secret")
    if secret.exists() and SECRET in contents and secret.read_bytes() != contents[SECRET]:
        raise BackupError(
            f"{secret} is another installation's: what is on its switches could not be read with the one of the "
            "backup. Restore to another --epoch-file, and give that to `inart serve`"
        )
    with StateFolder(state):
        if (state / JOBS).exists():
            if not force and (state / JOBS).read_bytes() != contents[JOBS]:
                raise BackupError(f"{state} has other jobs: --force puts the backup in their place")
            (state / JOBS).replace(state / f"{JOBS}.before")
        for name, content in contents.items():
            if name not in (EPOCH, SECRET, JOBS):
                replace_file(state / name, content)
        if SECRET in contents:
            replace_file(secret, contents[SECRET])
        if EPOCH in contents:
            EpochStore(epochs).adopt(int(contents[EPOCH]))  # the epoch never goes back
        replace_file(state / JOBS, contents[JOBS])
    return jobs


def _read(source: Path) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(source, "r:gz") as archive:
            for entry in archive:
                file = archive.extractfile(entry) if entry.isreg() and KEPT.fullmatch(entry.name) else None
                if file is None or entry.size + sum(map(len, contents.values())) > MOST_BYTES:
                    raise BackupError(f"{source} is no backup of a network: it has {entry.name!r}")
                contents[entry.name] = file.read()
    except (tarfile.TarError, EOFError) as error:
        raise BackupError(f"{source} is no backup of a network, or is not whole: {error}") from None
    if JOBS not in contents:
        raise BackupError(f"{source} is no backup of a network: it has no {JOBS}")
    return contents


def _check(contents: dict[str, bytes]) -> int:
    """Check that a controller could start with these files, and return how many jobs they have; raise BackupError
    otherwise."""
    if not contents.get(EPOCH, b"0").strip().isdigit():
        raise BackupError("the epoch is no number")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / JOBS).write_bytes(contents[JOBS])
        try:
            with StateFolder(Path(folder)) as state:
                return len(state.load().jobs)
        except StateError as error:
            raise BackupError(f"the jobs cannot be used: {error}") from None


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.make("controlplane.cli.backup", __doc__)
    orders = parser.add_subparsers(dest="order", required=True)
    make = orders.add_parser("backup", help="write the files that a network's controller keeps to a backup")
    back = orders.add_parser("restore", help="restore a backup; the controller must not run")
    back.add_argument("--force", action="store_true", help="replace the jobs that the folder has")
    for command in (make, back):
        command.add_argument("file", type=Path, metavar="FILE", help="the backup (.tar.gz)")
        command.add_argument("--switches", type=Path, metavar="FILE", help="the network's switches, as for serve")
        command.add_argument(
            "--state", type=Path, metavar="DIR", help="the controller's state folder, if serve has --state"
        )
        command.add_argument(
            "--epoch-file",
            type=Path,
            default=default_file(),
            metavar="FILE",
            help="file of the last epoch (default: %(default)s)",
        )
        command_line.add_output(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)

    def work() -> None:
        state = folder_of(arguments)
        if arguments.order == "backup":
            jobs = backup(state, arguments.epoch_file, arguments.file)
            words = f"{jobs} jobs of {state} are in {arguments.file}; it has the secret of the network: keep it private"
        else:
            jobs = restore(arguments.file, state, arguments.epoch_file, force=arguments.force)
            words = f"{jobs} jobs are in {state}; inart serve starts with them and fills the switches"
        done = {"jobs": jobs, "state": str(state), "file": str(arguments.file)}
        print(json.dumps(done) if arguments.json else words)

    return command_line.run(arguments.order, work, (BackupError, StateError, SwitchesFileError, OSError))


if __name__ == "__main__":
    sys.exit(main())
