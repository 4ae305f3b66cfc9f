"""Puts the compiled program where P4 Studio's scripts look for one: ``run_switchd.sh -p inart`` then loads it.

    python -m p4src.tofino_install                    into $SDE_INSTALL
    python -m p4src.tofino_install --sde-install DIR

    share/p4/targets/tofino/inart.conf                which files, for bf_switchd and tofino-model
    share/tofinopd/inart/bf-rt.json                   the tables
    share/tofinopd/inart/pipe/tofino.bin, context.json

With --tofino 2 these are targets/tofino2/ and tofino2.bin. The files that it installs from
``p4src/artifacts/tna-64/switch`` (or ``t2na-64``) are not in the repository; ``make p4-tofino`` makes them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p4src.artifacts import PROGRAMS, SWITCH, Artifact, ArtifactError, find, load, source_digest
from p4src.tofino_toolchain import CHIPS, OF_TOFINO_2, TARGET, Chip

NAME = "inart"
PIPE = "pipe"
"""Name of the program's only pipeline (the variable in ``tofino/inart.p4``); all pipes of the chip run it."""
PIPES = (0, 1, 2, 3)
VARIABLE = "SDE_INSTALL"
GENERATIONS = {"1": TARGET, "2": OF_TOFINO_2}
"""By generation of the chip, the target whose program it runs."""


class InstallError(Exception):
    """The program cannot be installed; the message says why and what to do."""


def configuration(chip: Chip) -> dict[str, Any]:
    """Return bf_switchd's configuration; paths are relative to its --install-dir."""
    share = f"share/tofinopd/{NAME}"
    return {
        "chip_list": [
            {
                "chip_family": chip.family,
                "instance": 0,
                # This is the address on one board; a model's bf_switchd ignores it. See docs/tofino.md for a switch's.
                "pcie_sysfs_prefix": "/sys/devices/pci0000:00/0000:00:03.0/0000:05:00.0",
                "sds_fw_path": "share/tofino_sds_fw/avago/firmware",
            }
        ],
        "p4_devices": [
            {
                "device-id": 0,
                "p4_programs": [
                    {
                        "program-name": NAME,
                        "bfrt-config": f"{share}/{PROGRAMS[TARGET]}",
                        "p4_pipelines": [
                            {
                                "p4_pipeline_name": PIPE,
                                "context": f"{share}/{PIPE}/context.json",
                                "config": f"{share}/{PIPE}/{chip.files[0]}",
                                "pipe_scope": list(PIPES),
                                "path": share,
                            }
                        ],
                    }
                ],
                "agent0": "lib/libpltfm_mgr.so",
            }
        ],
        "switch_options": [{"device-id": 0}],
    }


def files(artifact: Artifact) -> dict[str, bytes]:
    """Return the files of a compiled program for a switch, by their place in an SDE's install folder. Raise
    InstallError where one is missing."""
    target = artifact.manifest.target
    if target not in CHIPS:
        raise InstallError(f"{artifact.directory} is for {target}, not for Tofino")
    chip = CHIPS[target]
    if artifact.manifest.sources != source_digest(target):
        raise InstallError(f"{artifact.directory} was compiled from other sources than p4src/tofino: make p4-tofino")
    built = artifact.directory / SWITCH
    share = f"share/tofinopd/{NAME}"
    described = (json.dumps(configuration(chip), indent=4) + "\n").encode()
    made = {f"share/p4/targets/{chip.family}/{NAME}.conf": described}
    copies = {f"{share}/{PROGRAMS[target]}": PROGRAMS[target], **{f"{share}/{PIPE}/{n}": n for n in chip.files}}
    for destination, name in copies.items():
        if not (built / name).is_file():
            raise InstallError(f"{built / name} is missing: make p4-tofino (the repository keeps no binaries)")
        made[destination] = (built / name).read_bytes()
    return made


def sde(given: Path | None) -> Path:
    """Return the install folder that was given, or else the environment's. Raise InstallError where there is none."""
    if given is None and not os.environ.get(VARIABLE):
        raise InstallError(f"where to? Set {VARIABLE} to P4 Studio's install folder, or give --sde-install")
    return given or Path(os.environ[VARIABLE])


def check_sde(root: Path) -> None:
    """Check that ``root`` is an SDE's install folder; raise InstallError otherwise."""
    if not (root / "bin").is_dir():
        raise InstallError(f"{root} is no install folder of P4 Studio: it has no bin/")


def write(contents: Mapping[str, bytes], root: Path) -> list[Path]:
    """Write files into an SDE's install folder; return their paths."""
    for name, content in contents.items():
        destination = root / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        destination.write_bytes(content)
    return [root / name for name in contents]


def install(artifact: Artifact, root: Path) -> list[Path]:
    """Write the program's files into an SDE's install folder; return their paths. Raise InstallError, before anything
    is written, where that is impossible."""
    check_sde(root)
    return write(files(artifact), root)


def add_program_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the compiled program."""
    parser.add_argument("--tofino", choices=sorted(GENERATIONS), default="1", help="which chip (default: %(default)s)")
    parser.add_argument("--artifacts", type=Path, metavar="DIR", help="a compiled program (default: that of the chip)")


def chosen(options: argparse.Namespace) -> Artifact:
    """Return the compiled program that the options select. Raise ArtifactError where there is none."""
    return load(options.artifacts) if options.artifacts else find(GENERATIONS[options.tofino])


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m p4src.tofino_install", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sde-install", type=Path, metavar="DIR", help=f"default: ${VARIABLE}")
    add_program_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        root = sde(options.sde_install)
        for path in install(chosen(options), root):
            print(path)
    except (InstallError, ArtifactError, OSError) as error:
        print(f"p4src.tofino_install: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
