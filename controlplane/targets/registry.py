"""The targets that `--target` can name. A new target is a folder beside this file and a line in it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path

from controlplane.targets.kind import Kind
from p4src.artifacts import ARTIFACTS, Artifact, ArtifactError, find, load

TARGETS = {
    "bmv2": "controlplane.targets.p4runtime.kind:BMV2",
    "tofino": "controlplane.targets.bri.kind:TOFINO",
    "tofino2": "controlplane.targets.bri.kind:TOFINO2",
}
"""Module and name of each target's `Target`, by the target's name; it is imported on demand."""


class Target(ABC):
    """The properties of a target that the command lines need before its switches are reached."""

    name: str
    help: str
    """Words for `--help`: which switches, over which protocol."""
    protocol: str
    """The protocol of the switches' servers, as messages call it."""
    program: str
    """The architecture that the programs are compiled for, as artifacts call it ("v1model")."""
    default_artifact = ""
    """The default compiled program; "" for the one with as many values per packet as protocol.json says."""
    first_cpu_port = 0
    """The number added to `--cpu-port` to get the port's number in rules."""
    keeps_registers = False
    """Whether `--clear-registers` can clear what a removed job has left in its slots."""

    @abstractmethod
    def kind(self, artifact: Artifact, *, connect: bool) -> Kind:
        """Return the kind of switches with this program.

        With `connect`, the switches will be connected to, and not only printed, so the protocol's client must be
        installed. Raise SdeMissing where it is not.
        """


def target(name: str) -> Target:
    """Return the target of this name. Raise ValueError, which lists all targets, where there is none."""
    if name not in TARGETS:
        raise ValueError(f"there is no target {name!r}; there are: {', '.join(TARGETS)}")
    module, _, attribute = TARGETS[name].partition(":")
    found: Target = getattr(import_module(module), attribute)
    return found


def artifact(of: Target, name: str | None) -> Artifact:
    """Return the compiled program for a target. `name` is like "v1model-256" (program-values), or a folder; without it,
    the target's default is used. Raise ArtifactError, which lists the programs, where there is none."""
    if not (name or of.default_artifact):
        return find(of.program)
    name = name or of.default_artifact
    there = ", ".join(path.name for path in sorted(ARTIFACTS.glob(f"{of.program}-*")))
    try:
        loaded = open_artifact(name)
    except ArtifactError as error:
        raise ArtifactError(f"--artifacts: {error} (there are: {there}; or give a folder)") from None
    if loaded.manifest.target != of.program:
        raise ArtifactError(
            f"target {of.name} needs a program for {of.program} ({there}); {name} is for {loaded.manifest.target}"
        )
    return loaded


def open_artifact(name: str) -> Artifact:
    """Return the compiled program with a name like "v1model-256" (program-values), or the one in a folder. Raise
    ArtifactError where there is none."""
    program, dash, values = name.rpartition("-")
    if dash and values.isdigit() and os.sep not in name:
        return find(program, int(values))
    return load(Path(name))
