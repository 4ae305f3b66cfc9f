"""The targets that options such as `--bmv2` name. A new target is a folder beside this file and a line in it."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from controlplane.targets.kind import Kind
from p4src.artifacts import ARTIFACTS, Artifact, ArtifactError, find, load

TARGETS = {
    "bmv2": "controlplane.targets.p4runtime.kind:P4RuntimeKind",
    "tofino": "controlplane.targets.bri.kind:TofinoKind",
    "tofino2": "controlplane.targets.bri.kind:Tofino2Kind",
}
"""Module and name of each target's `Kind`, by the target's name; it is imported on demand."""


def target(name: str) -> type[Kind]:
    """Return a target's kind of switches. Raise ValueError, which lists all targets, where there is none of this
    name."""
    if name not in TARGETS:
        raise ValueError(f"there is no target {name!r}; there are: {', '.join(TARGETS)}")
    module, _, attribute = TARGETS[name].partition(":")
    found: type[Kind] = getattr(import_module(module), attribute)
    return found


def artifact(of: type[Kind], name: str | None) -> Artifact:
    """Return the compiled program for a target. `name` is like "v1model-256" (program-values), or a folder; without it,
    the target's default is used. Raise ArtifactError, which lists the programs, where there is none."""
    if not (name or of.default_artifact):
        return find(of.architecture)
    name = name or of.default_artifact
    there = ", ".join(path.name for path in sorted(ARTIFACTS.glob(f"{of.architecture}-*")))
    try:
        loaded = open_artifact(name)
    except ArtifactError as error:
        raise ArtifactError(f"artifacts: {error} (there are: {there}; or give a folder)") from None
    if loaded.manifest.target != of.architecture:
        raise ArtifactError(
            f"target {of.name} needs a program for {of.architecture} ({there}); {name} is for {loaded.manifest.target}"
        )
    return loaded


def kind_to_connect(name: str) -> Kind:
    """Return a target's kind with its default program, for switches that will be connected to. Raise ArtifactError or
    SdeMissing where it cannot be had."""
    of = target(name)
    return of.to_connect(artifact(of, None))


def open_artifact(name: str) -> Artifact:
    """Return the compiled program with a name like "v1model-256" (program-values), or the one in a folder. Raise
    ArtifactError where there is none."""
    program, dash, values = name.rpartition("-")
    if dash and values.isdigit() and os.sep not in name:
        return find(program, int(values))
    return load(Path(name))
