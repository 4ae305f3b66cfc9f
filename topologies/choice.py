"""Chooses the kind of switches for an emulation: bmv2 or softswitch."""

import importlib.util
import os
import shutil

from topologies.bmv2 import Bmv2
from topologies.network import EmulationError
from topologies.softswitch import Softswitch
from topologies.switches import Switches

KINDS = ("bmv2", "softswitch")


def choose(kind: str | None = None) -> str:
    """Return the kind of switch to run: the argument, else $SWITCH, else bmv2 if it is installed, else softswitch.

    Raise EmulationError for an unknown kind, or one that is not installed.
    """
    wanted = kind or os.environ.get("SWITCH") or "auto"
    if wanted == "auto":
        wanted = "bmv2" if shutil.which("simple_switch_grpc") else "softswitch"
    if wanted not in KINDS:
        raise EmulationError(f"SWITCH={wanted}: the switches are {' and '.join(KINDS)}")
    if wanted == "bmv2" and not shutil.which("simple_switch_grpc"):
        raise EmulationError(
            "SWITCH=bmv2, but simple_switch_grpc is not on PATH; SWITCH=softswitch runs the built-in switch"
        )
    if wanted == "softswitch" and importlib.util.find_spec("softswitch") is None:
        raise EmulationError(
            "softswitch is not installed: pip install ./softswitch in a clone of the repository (a distribution of "
            "its own), or put bmv2's simple_switch_grpc on PATH"
        )
    return wanted


def make(kind: str, *, seed: int = 0) -> Switches:
    """Return switches that are not started yet; `seed` is for injected faults."""
    return Bmv2() if kind == "bmv2" else Softswitch(seed)
