"""Translates a topology's port numbers, by front-panel names, to the device ports in a switch's tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.planner.frontpanel import SPEEDS_GBPS, FrontPanelPort
from controlplane.planner.topology import Topology
from controlplane.targets.base import TargetError
from controlplane.targets.bri.entries import Entry, Port, PortName

FIRST_UNKNOWN = 1 << 16
"""First of the numbers that stand for device ports that the topology lacks; these can be read and removed, but not
planned."""

SPEEDS = {speed: f"BF_SPEED_{speed}" for speed in SPEEDS_GBPS}
FECS = {"none": "BF_FEC_TYP_NONE", "firecode": "BF_FEC_TYP_FIRECODE", "rs": "BF_FEC_TYP_REED_SOLOMON"}
FEC_ALIASES = {"BF_FEC_TYP_FC": "firecode", "BF_FEC_TYP_RS": "rs"}
"""Other names of these settings that a switch may return."""
AUTONEGOTIATIONS = {"default": "PM_AN_DEFAULT", "on": "PM_AN_FORCE_ENABLE", "off": "PM_AN_FORCE_DISABLE"}
PORT_UP = "$PORT_UP"
"""Read-only field of $PORT: whether the port has a link."""
RECEIVED, SENT = "$OctetsReceived", "$OctetsTransmittedTotal"
"""Fields of $PORT_STAT, with open-p4studio's names: bytes of all frames."""
NO_LOOPBACK, LOOPBACK = "BF_LPBK_NONE", "BF_LPBK_MAC_NEAR"


@dataclass(frozen=True)
class Panel:
    """A switch's ports as the topology file describes them: the ports of links, by number, and loopback ports."""

    links: Mapping[int, FrontPanelPort]
    loopback: tuple[FrontPanelPort, ...] = ()

    @classmethod
    def of(cls, topology: Topology, switch: str) -> Panel:
        """Return a switch's panel. Raise TopologyError where a link of the switch lacks its front-panel port."""
        return cls(topology.front_panel(switch), topology.loopback_ports(switch))

    @property
    def ports(self) -> tuple[FrontPanelPort, ...]:
        return tuple(sorted([*self.links.values(), *self.loopback]))


@dataclass(frozen=True)
class PortMap:
    """Translates between the topology's port numbers and the values in tables. `devices` has the device port of each
    front-panel port, as the switch answered; it is None where no switch was asked, and tables have names then."""

    panel: Panel
    devices: Mapping[str, int] | None = None
    _numbers: dict[int, int] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.devices is not None:
            for number, port in self.panel.links.items():
                if port.name in self.devices:
                    self._numbers[self.devices[port.name]] = number

    def device(self, number: int) -> Port:
        """Return the value in tables for a port number. Raise TargetError where the topology lacks the port."""
        if number >= FIRST_UNKNOWN:
            return number - FIRST_UNKNOWN
        if number not in self.panel.links:
            raise TargetError(f"the plan uses port {number}, which the topology's front panel does not have")
        return self.named(self.panel.links[number].name)

    def named(self, name: str) -> Port:
        """Return the device port of a front-panel port. Raise TargetError where the switch has no such port."""
        if self.devices is None:
            return PortName(name)
        if name not in self.devices:
            raise TargetError(f"the switch has no front-panel port {name}")
        return self.devices[name]

    def name(self, device: int) -> str:
        """Return the front-panel name of a device port. Raise TargetError where it has none."""
        for name, number in (self.devices or {}).items():
            if number == device:
                return name
        raise TargetError(f"device port {device} has no name on the front panel")

    def number(self, device: int) -> int:
        return self._numbers.get(device, FIRST_UNKNOWN + device)


def port_data(port: FrontPanelPort) -> tuple[tuple[str, str | bool], ...]:
    """Return the data of an entry of $PORT. Settings that the topology file leaves open are left to the driver."""
    data: list[tuple[str, str | bool]] = [("$SPEED", SPEEDS[port.speed]), ("$FEC", FECS[port.fec])]
    if port.autoneg != "default":
        data.append(("$AUTO_NEGOTIATION", AUTONEGOTIATIONS[port.autoneg]))
    if port.loopback:
        data.append(("$LOOPBACK_MODE", LOOPBACK))
    return (*data, ("$PORT_ENABLE", True))


def read_port(name: str, entry: Entry) -> FrontPanelPort:
    """Return the port that an entry of $PORT describes.

    Settings that a topology file cannot express have the switch's own names.
    """
    data = dict(entry.data)
    connector, channel = map(int, name.split("/"))
    fec = str(data.get("$FEC", FECS["none"]))
    return FrontPanelPort(
        connector,
        channel,
        speed=_from(SPEEDS, str(data.get("$SPEED"))),
        fec=FEC_ALIASES.get(fec, _from(FECS, fec)),
        autoneg=_from(AUTONEGOTIATIONS, str(data.get("$AUTO_NEGOTIATION", AUTONEGOTIATIONS["default"]))),
        loopback=data.get("$LOOPBACK_MODE", NO_LOOPBACK) != NO_LOOPBACK,
    )


def _from(names: Mapping[str, str], value: str) -> str:
    return next((ours for ours, theirs in names.items() if theirs == value), value)
