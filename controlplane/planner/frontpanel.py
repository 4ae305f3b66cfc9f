"""Front-panel ports of a hardware switch: a port's description in a topology file, and its checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

SPEEDS_GBPS = {"1G": 1, "10G": 10, "25G": 25, "40G": 40, "50G": 50, "100G": 100, "200G": 200, "400G": 400}
FECS = ("none", "firecode", "rs")
FECS_OF = {
    "1G": ("none",),
    "10G": ("none", "firecode"),
    "25G": FECS,
    "40G": ("none", "firecode"),
    "50G": FECS,
    "100G": ("none", "rs"),
    "200G": ("rs",),
    "400G": ("rs",),
}
"""Forward error corrections that a driver accepts at each speed, the default first (pm_port_valid_speed_and_channel in
open-p4studio's bf_pm).
"""
AUTONEGOTIATIONS = ("default", "on", "off")
LANES = {"1G": 1, "10G": 1, "25G": 1, "40G": 4, "50G": 2, "100G": 4, "200G": 4, "400G": 8}
LAST_CONNECTOR = 65  # of the largest Tofino switches: 64 ports, and one of 10G
SETTINGS = ("speed", "fec", "autoneg")


class FrontPanelError(ValueError):
    """Error of a port's description; the message names the port and the possible values."""


@dataclass(frozen=True, order=True)
class FrontPanelPort:
    """A port by its name on the switch's front, "connector/channel", such as "1/0". A port with `loopback` has nothing
    plugged in: packets that leave by it come back in (for recirculation).
    """

    kind: ClassVar = "ports"
    connector: int
    channel: int
    speed: str
    fec: str = "none"
    autoneg: str = "default"
    loopback: bool = False

    @property
    def name(self) -> str:
        return f"{self.connector}/{self.channel}"

    @property
    def key(self) -> str:
        return self.name

    def __str__(self) -> str:
        loopback = ", loopback" if self.loopback else ""
        return f"port {self.name} ({self.speed}, FEC {self.fec}, autonegotiation {self.autoneg}{loopback})"


def parse_name(name: Any) -> tuple[int, int]:
    """Return connector and channel of a port's name: (1, 0) for "1/0". Raise FrontPanelError for anything else."""
    match = re.fullmatch(r"(\d{1,3})/([0-7])", name) if isinstance(name, str) else None
    if match is None or not 1 <= int(match[1]) <= LAST_CONNECTOR:
        raise FrontPanelError(
            f'a front-panel port is "CONNECTOR/CHANNEL" like "1/0" (connectors 1 to {LAST_CONNECTOR}), got {name!r}'
        )
    return int(match[1]), int(match[2])


def make_port(name: Any, settings: Mapping[str, Any], *, loopback: bool = False) -> FrontPanelPort:
    """Return a port with the entries "speed", "fec" and "autoneg" of `settings`; other entries are ignored. Raise
    FrontPanelError where the port cannot have them.
    """
    connector, channel = parse_name(name)
    speed = settings.get("speed")
    if speed not in SPEEDS_GBPS:
        raise FrontPanelError(f"port {name} needs a speed, one of {', '.join(SPEEDS_GBPS)}; got {speed!r}")
    fec, autoneg = settings.get("fec", FECS_OF[speed][0]), settings.get("autoneg", "default")
    if fec not in FECS_OF[speed]:
        raise FrontPanelError(f"port {name}: fec with {speed} must be one of {', '.join(FECS_OF[speed])}, got {fec!r}")
    if autoneg not in AUTONEGOTIATIONS:
        raise FrontPanelError(f"port {name}: autoneg must be one of {', '.join(AUTONEGOTIATIONS)}, got {autoneg!r}")
    if channel % LANES[speed]:
        raise FrontPanelError(
            f"port {name}: {speed} takes {LANES[speed]} lanes and begins at a channel that is a multiple of it"
        )
    return FrontPanelPort(connector, channel, speed, fec, autoneg, loopback)


def overlaps(one: FrontPanelPort, other: FrontPanelPort) -> bool:
    """Return whether two ports of a switch would use the same lane."""
    if one.connector != other.connector:
        return False
    return one.channel < other.channel + LANES[other.speed] and other.channel < one.channel + LANES[one.speed]
