"""softswitch is a v1model software switch, which compiles the bmv2 JSON that p4c emits to native code.

Public names: :class:`Program`, :class:`Device`, :class:`Fabric` (the data plane) and the exceptions of
:mod:`softswitch.errors`. ``python -m softswitch`` starts a switch that serves P4Runtime.
"""

from __future__ import annotations

from softswitch.bmv2json.model import Match
from softswitch.dataplane.codec import Entry
from softswitch.dataplane.crc import Crc
from softswitch.dataplane.device import Device
from softswitch.dataplane.fabric import Fabric
from softswitch.dataplane.ports import PortStats
from softswitch.dataplane.program import Program
from softswitch.errors import (
    AlreadyExists,
    BadProgram,
    CapacityExceeded,
    CompilerFailed,
    InvalidValue,
    NoSuchObject,
    NotFound,
    SoftswitchError,
    UnsupportedConstruct,
)
from softswitch.version import VERSION

__version__ = VERSION

__all__ = [
    "AlreadyExists",
    "BadProgram",
    "CapacityExceeded",
    "CompilerFailed",
    "Crc",
    "Device",
    "Entry",
    "Fabric",
    "InvalidValue",
    "Match",
    "NoSuchObject",
    "NotFound",
    "PortStats",
    "Program",
    "SoftswitchError",
    "UnsupportedConstruct",
]
