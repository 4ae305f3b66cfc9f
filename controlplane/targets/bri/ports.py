"""Ports: from a topology's port numbers over front-panel names to the device ports that a switch uses in its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.planner.frontpanel import SPEEDS_GBPS, FrontPanelPort
from controlplane.planner.topology import Topology
from controlplane.targets.base import TargetError
from controlplane.targets.bri.entries import Entry, Port, PortName

FIRST_UNKNOWN = 1 << 16
"""Numbers from here stand for device ports that the topology does not have: can be read and removed, not planned."""

SPEEDS = {speed: f"BF_SPEED_{speed}" for speed in SPEEDS_GBPS}
FECS = {"none": "BF_FEC_TYP_NONE", "firecode": "BF_FEC_TYP_FIRECODE", "rs": "BF_FEC_TYP_REED_SOLOMON"}
FEC_ALIASES = {"BF_FEC_TYP_FC": "firecode", "BF_FEC_TYP_RS": "rs"}
"""Other names that a switch may give back."""
AUTONEGOTIATIONS = {"default": "PM_AN_DEFAULT", "on": "PM_AN_FORCE_ENABLE", "off": "PM_AN_FORCE_DISABLE"}
PORT_UP = "$PORT_UP"
"""In $PORT, read only: whether the port has a link."""
NO_LOOPBACK, LOOPBACK = "BF_LPBK_NONE", "BF_LPBK_MAC_NEAR"


@dataclass(frozen=True)
class Panel:
    """A switch's ports as the topology file has them: by number those of links, and those that loop back."""

    links: Mapping[int, FrontPanelPort]
    loopback: tuple[FrontPanelPort, ...] = ()

    @classmethod
    def of(cls, topology: Topology, switch: str) -> Panel:
        """Raises TopologyError when a link of the switch does not say which port it is plugged into."""
        return cls(topology.front_panel(switch), topology.loopback_ports(switch))

    @property
    def ports(self) -> tuple[FrontPanelPort, ...]:
        return tuple(sorted([*self.links.values(), *self.loopback]))


@dataclass(frozen=True)
class PortMap:
    """Topology's numbers <-> what is written into tables. Without `devices` (no switch was asked): names."""

    panel: Panel
    devices: Mapping[str, int] | None = None
    _numbers: dict[int, int] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.devices is not None:
            for number, port in self.panel.links.items():
                if port.name in self.devices:
                    self._numbers[self.devices[port.name]] = number

    def device(self, number: int) -> Port:
        """What stands in a table for a port number."""
        if number >= FIRST_UNKNOWN:
            return number - FIRST_UNKNOWN
        if number not in self.panel.links:
            raise TargetError(f"the plan uses port {number}, which the topology's front panel does not have")
        return self.named(self.panel.links[number].name)

    def named(self, name: str) -> Port:
        """The device port of a front-panel port."""
        if self.devices is None:
            return PortName(name)
        if name not in self.devices:
            raise TargetError(f"the switch has no front-panel port {name}")
        return self.devices[name]

    def name(self, device: int) -> str:
        """The front-panel port of a device port."""
        for name, number in (self.devices or {}).items():
            if number == device:
                return name
        raise TargetError(f"device port {device} has no name on the front panel")

    def number(self, device: int) -> int:
        return self._numbers.get(device, FIRST_UNKNOWN + device)


def port_data(port: FrontPanelPort) -> tuple[tuple[str, str | bool], ...]:
    """Data of an entry of $PORT. What the file leaves open is left to the driver."""
    data: list[tuple[str, str | bool]] = [("$SPEED", SPEEDS[port.speed]), ("$FEC", FECS[port.fec])]
    if port.autoneg != "default":
        data.append(("$AUTO_NEGOTIATION", AUTONEGOTIATIONS[port.autoneg]))
    if port.loopback:
        data.append(("$LOOPBACK_MODE", LOOPBACK))
    return (*data, ("$PORT_ENABLE", True))


def read_port(name: str, entry: Entry) -> FrontPanelPort:
    """An entry of $PORT as a port. Settings that a topology file cannot have come as the switch calls them."""
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
