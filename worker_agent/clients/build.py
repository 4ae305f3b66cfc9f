"""Compiles the libraries of this folder, which need headers that only the user's machine has, at first use."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

from controlplane.common.native_build import ENGINE, NATIVE, BuildError, build

HERE = Path(__file__).resolve().parent
CLIENT = HERE / "client.c"
OPTIONS = (*(option for option in ENGINE if option != NATIVE), "-D_GNU_SOURCE")
"""Options of the compiler. They are not those for this machine's processor: clients only copy memory and talk to the
agent, which computes, and a compiled client may be copied to other machines.
"""


def mpi_library() -> Path:
    """Return the library that is loaded before an MPI program, for the MPI whose `mpicc` is on PATH. Raise BuildError
    where it cannot be compiled.
    """
    compiler = shutil.which("mpicc")
    if compiler is None:
        raise BuildError("there is no mpicc on PATH: install MPI's headers (Debian: apt-get install libopenmpi-dev)")
    done = subprocess.run([compiler, "-show"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{compiler} -show failed: {done.stderr.strip()}")
    # A program that opens MPI only later, as Python does, has no symbols of it when this one is loaded.
    options = (*OPTIONS, "-Wl,--no-as-needed", *shlex.split(done.stdout)[1:])
    return build([HERE / "mpi.c", CLIENT], include=[HERE], options=options)


def nccl_library() -> Path:
    """Return the plugin for NCCL. Raise BuildError where it cannot be compiled."""
    sources = [HERE / "nccl_collnet.c", HERE / "nccl_sockets.c", CLIENT]
    return build(sources, include=[HERE], options=(*OPTIONS, "-fvisibility=hidden"))
