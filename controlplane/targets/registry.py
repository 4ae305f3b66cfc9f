"""The targets that a deployment can name with `--target`. A new one is a folder beside this file and a line here."""

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
"""Name of a target -> module and name of its `Target`, which is imported when it is asked for."""


class Target(ABC):
    """What the command lines need to know of a target before its switches are reached."""

    name: str
    help: str
    """What `--help` says of it: which switches, over which protocol."""
    protocol: str
    """What the switches' servers speak, as messages call it."""
    program: str
    """For what its programs are compiled, as artifacts call it ("v1model")."""
    default_artifact = ""
    """The compiled program that is taken when none is named; empty: with as many values as protocol.json says."""
    first_cpu_port = 0
    """What is added to the number of `--cpu-port` to have the port's number in rules."""
    keeps_registers = False
    """Whether what a removed job has left in its slots can be set to 0 from here (`--clear-registers`)."""

    @abstractmethod
    def kind(self, artifact: Artifact, *, connect: bool) -> Kind:
        """The switches with this program. connect: they will be connected to (else only printed), for which what the
        protocol's client needs must be there. Raises SdeMissing where it is not."""


def target(name: str) -> Target:
    """The target of this name. Raises ValueError that lists the names there are."""
    if name not in TARGETS:
        raise ValueError(f"there is no target {name!r}; there are: {', '.join(TARGETS)}")
    module, _, attribute = TARGETS[name].partition(":")
    found: Target = getattr(import_module(module), attribute)
    return found


def artifact(of: Target, name: str | None) -> Artifact:
    """The compiled program for a target. name: "v1model-256" (program-values) or a folder; None: the target's own.

    Raises ArtifactError that says which programs there are.
    """
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
    """The compiled program called "v1model-256" (program-values), or in a folder. Raises ArtifactError."""
    program, dash, values = name.rpartition("-")
    if dash and values.isdigit() and os.sep not in name:
        return find(program, int(values))
    return load(Path(name))
