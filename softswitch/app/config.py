"""The description of a fabric: devices, what their ports are connected to, and how links behave.

``docs/guide.md`` gives the schema of the file. Nothing here touches the system.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# v1model's port numbers have 9 bits, and bmv2's drop port is 511.
MAX_PORT = 510
DEFAULT_ADDRESS = "127.0.0.1:9559"  # The default is not 0.0.0.0, because P4Runtime does not authenticate clients.
MAX_PRIORITY_QUEUES = 8  # v1model's field `priority` has 3 bits.

CLASS_RATES = tuple(f"class{number}_mbps" for number in range(MAX_PRIORITY_QUEUES))
"""The settings for the rate of each class of service at a port; a packet's class is its `standard_metadata.priority`,
or follows from its DSCP.
"""

# The settings of a port's shaping, with the range of each number; rates may also be null, for no limit.
SHAPE_RANGES: dict[str, tuple[float, float]] = {
    "rate_mbps": (0.001, 1e6),
    "burst_bytes": (0, 1e9),
    "delay_ms": (0, 60_000),
    "jitter_ms": (0, 60_000),
    "loss": (0, 1),
    "duplicate": (0, 1),
    "reorder": (0, 1),
    "reorder_ms": (0, 60_000),
    "queue_packets": (1, 1e6),
    "queue_bytes": (1, 1e9),
    "ecn_packets": (0, 1e6),
    "dscp_classes": (0, 1),
    "ahead_bytes": (0, 65536),
    "corrupt": (0, 1),
    "corrupt_every": (0, 1e9),
    "corrupt_from": (0, 65536),
    "corrupt_until": (0, 65536),
    "corrupt_udp": (0, 1),
    "corrupt_hidden": (0, 1),
    **dict.fromkeys(CLASS_RATES, (0.001, 1e6)),
}
PROBABILITIES = ("loss", "duplicate", "reorder", "corrupt")
_WHOLE = (
    "burst_bytes", "queue_packets", "queue_bytes", "ecn_packets", "dscp_classes", "ahead_bytes",
    "corrupt_every", "corrupt_from", "corrupt_until", "corrupt_udp", "corrupt_hidden",
)  # fmt: skip

Shape = dict[str, float | None]


class ConfigError(ValueError):
    """The description of a fabric is wrong; the message says where it is wrong and why."""


@dataclass(frozen=True)
class PortConfig:
    """A port, on a Linux interface or linked to (device id, port) in memory; ``shape`` is for frames that it sends."""

    port: int
    interface: str | None = None
    peer: tuple[int, int] | None = None
    shape: Shape = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceConfig:
    """A device. ``program`` (bmv2 JSON) and ``p4info`` are loaded at start and after each reboot.

    Attributes:
        pcap: folder for recordings of the frames that its ports receive and send.
        priority_queues: number of queues of each shaped port; the higher a packet's priority, the sooner it is sent,
            and packets of this priority and above are dropped.
        offload: whether interfaces may be given super-frames.
    """

    device_id: int
    name: str
    cpu_port: int | None = None
    program: Path | None = None
    p4info: Path | None = None
    ports: tuple[PortConfig, ...] = ()
    pcap: Path | None = None
    priority_queues: int = 1
    offload: bool = True

    def pcap_files(self, port: PortConfig) -> tuple[Path, Path]:
        """Return the files that record the frames that a port receives and sends, named after its interface, or device
        and port.
        """
        name = port.interface or f"{self.name}-{port.port}"
        folder = self.pcap or Path()
        return folder / f"{name}_in.pcap", folder / f"{name}_out.pcap"


@dataclass(frozen=True)
class FabricConfig:
    """The configuration of all devices and servers that one process runs."""

    devices: tuple[DeviceConfig, ...]
    grpc: tuple[str, ...] = (DEFAULT_ADDRESS,)
    control: str | None = None
    threads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        _check_fabric(self)

    def links(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Return each link in memory once, as two (device id, port)."""
        found = {
            tuple(sorted(((device.device_id, port.port), port.peer)))
            for device in self.devices
            for port in device.ports
            if port.peer is not None
        }
        return sorted((a, b) for a, b in found)

    def find(self, device: int | str) -> DeviceConfig:
        """Return the device with this id or name. Raise :class:`ConfigError`, which lists the names, where there is
        none.
        """
        for one in self.devices:
            if device in (one.device_id, one.name):
                return one
        raise ConfigError(f"there is no device {device!r}; there are {', '.join(one.name for one in self.devices)}")


def load(path: str | Path) -> FabricConfig:
    """Read a fabric file. Raise :class:`ConfigError` for a wrong one, OSError when it cannot be read."""
    try:
        description = json.loads(Path(path).read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    return parse(description, Path(path).parent)


def parse(description: object, folder: Path = Path()) -> FabricConfig:
    """Return the fabric that a parsed JSON document describes; relative paths start at ``folder``."""
    members = _members(
        description, "the fabric", {"devices": list}, {"grpc": (str, list), "control": str, "threads": int, "seed": int}
    )
    grpc = members.get("grpc", DEFAULT_ADDRESS)
    addresses = [grpc] if isinstance(grpc, str) else grpc
    if not addresses or not all(isinstance(address, str) for address in addresses):
        raise ConfigError("the fabric: grpc must be an address or a list of addresses")
    ids = _device_ids(members["devices"])
    devices = tuple(_device(device, ids, folder) for device in members["devices"])
    control = members.get("control")
    return FabricConfig(
        devices,
        tuple(addresses),
        None if control is None else str(folder / control),
        members.get("threads", 1),
        members.get("seed", 0),
    )


def check_shape(shape: Mapping[str, Any], what: str) -> Shape:
    """Return the settings of ``shape`` if they are known and in range; raise :class:`ConfigError` otherwise."""
    checked: Shape = {}
    for name, value in shape.items():
        if name not in SHAPE_RANGES:
            raise ConfigError(f"{what}: unknown shaping {name!r}; there are {', '.join(SHAPE_RANGES)}")
        if value is None and name in ("rate_mbps", *CLASS_RATES):
            checked[name] = None
            continue
        low, high = SHAPE_RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"{what}: {name} must be a number, not {value!r}")
        if not low <= value <= high:
            raise ConfigError(f"{what}: {name} must be in {low:g}..{high:g}, not {value:g}")
        if name in _WHOLE and value != int(value):
            raise ConfigError(f"{what}: {name} must be a whole number, not {value:g}")
        checked[name] = int(value) if name in _WHOLE else float(value)
    return checked


def _members(value: object, what: str, required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a JSON object, after checking their names and types."""
    if not isinstance(value, dict):
        raise ConfigError(f"{what} must be a JSON object, not {type(value).__name__}")
    for name in required:
        if name not in value:
            raise ConfigError(f"{what}: {name!r} is missing")
    known = required | optional
    for name, member in value.items():
        if name not in known:
            raise ConfigError(f"{what}: unknown member {name!r}; there are {', '.join(known)}")
        kinds = known[name] if isinstance(known[name], tuple) else (known[name],)
        if not isinstance(member, kinds) or isinstance(member, bool) != (kinds == (bool,)):
            raise ConfigError(f"{what}: {name!r} must be {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def _device_ids(devices: list[object]) -> dict[str, int]:
    """Return the devices' ids by name; a device without a name is named by its id."""
    ids: dict[str, int] = {}
    for device in devices:
        if isinstance(device, dict) and isinstance(device.get("id"), int):
            name = str(device.get("name", device["id"]))
            if name in ids:
                raise ConfigError(f"two devices are called {name}")
            ids[name] = device["id"]
    return ids


def _device(value: object, ids: dict[str, int], folder: Path) -> DeviceConfig:
    what = f"device {value.get('name', value.get('id', '?'))}" if isinstance(value, dict) else "a device"
    members = _members(
        value,
        what,
        {"id": int},
        {"name": str, "cpu_port": int, "program": str, "p4info": str, "ports": list, "pcap": str}
        | {"priority_queues": int, "offload": bool},
    )
    if "p4info" in members and "program" not in members:
        raise ConfigError(f"{what}: p4info without program")
    return DeviceConfig(
        device_id=members["id"],
        name=members.get("name", str(members["id"])),
        cpu_port=members.get("cpu_port"),
        program=folder / members["program"] if "program" in members else None,
        p4info=folder / members["p4info"] if "p4info" in members else None,
        ports=tuple(_port(port, what, ids) for port in members.get("ports", [])),
        pcap=folder / members["pcap"] if "pcap" in members else None,
        priority_queues=members.get("priority_queues", 1),
        offload=members.get("offload", True),
    )


def _port(value: object, device: str, ids: dict[str, int]) -> PortConfig:
    number = value.get("port", "?") if isinstance(value, dict) else "?"
    what = f"{device} port {number}"
    members = _members(value, what, {"port": int}, {"interface": str, "peer": dict, "shape": dict})
    peer = None
    if "peer" in members:
        link = _members(members["peer"], f"{what} peer", {"device": (int, str), "port": int}, {})
        other = ids.get(link["device"]) if isinstance(link["device"], str) else link["device"]
        if other is None:
            raise ConfigError(f"{what}: there is no device {link['device']}")
        peer = (other, link["port"])
    return PortConfig(members["port"], members.get("interface"), peer, check_shape(members.get("shape", {}), what))


def _check_fabric(fabric: FabricConfig) -> None:
    if not fabric.devices:
        raise ConfigError("the fabric has no devices")
    if fabric.threads < 1:
        raise ConfigError("the fabric: threads must be at least 1")
    for address in fabric.grpc:
        _check_address(address)
    ports: dict[tuple[int, int], PortConfig] = {}
    interfaces: dict[str, str] = {}
    ids: set[int] = set()
    for device in fabric.devices:
        what = f"device {device.name}"
        if not 0 <= device.device_id < 1 << 48:
            raise ConfigError(f"{what}: the id must be in 0..2^48-1")
        if device.device_id in ids:
            raise ConfigError(f"two devices have the id {device.device_id}")
        ids.add(device.device_id)
        if device.cpu_port is not None and not 1 <= device.cpu_port <= MAX_PORT:
            raise ConfigError(f"{what}: cpu_port must be in 1..{MAX_PORT}")
        if not 1 <= device.priority_queues <= MAX_PRIORITY_QUEUES:
            raise ConfigError(f"{what}: priority_queues must be in 1..{MAX_PRIORITY_QUEUES}")
        for port in device.ports:
            where = f"{what} port {port.port}"
            if not 0 <= port.port <= MAX_PORT:
                raise ConfigError(f"{where}: the number must be in 0..{MAX_PORT}")
            if port.port == device.cpu_port:
                raise ConfigError(f"{where}: this is the CPU port")
            if (device.device_id, port.port) in ports:
                raise ConfigError(f"{where} is given twice")
            ports[device.device_id, port.port] = port
            if (port.interface is None) == (port.peer is None):
                raise ConfigError(f"{where}: give either interface or peer")
            if port.interface is not None:
                if port.interface in interfaces:
                    raise ConfigError(f"{where}: interface {port.interface} is used by {interfaces[port.interface]}")
                interfaces[port.interface] = where
    _check_links(ports, ids)


def _check_address(address: str) -> None:
    """Check an address to listen on, because gRPC takes a port modulo 65536, and 443 for a missing one."""
    if address.startswith("unix"):
        return
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()):
        raise ConfigError(f"cannot listen on {address}: give HOST:PORT or unix:PATH")
    if int(port) > 65535:
        raise ConfigError(f"cannot listen on {address}: port {port} is above 65535")


def _check_links(ports: dict[tuple[int, int], PortConfig], ids: set[int]) -> None:
    for (device_id, number), port in ports.items():
        if port.peer is None:
            continue
        where = f"device {device_id} port {number}"
        if port.peer[0] not in ids:
            raise ConfigError(f"{where}: its peer is on device {port.peer[0]}, which does not exist")
        back = ports.get(port.peer)
        if back is None or back.peer != (device_id, number) or port.peer == (device_id, number):
            raise ConfigError(
                f"{where}: its peer, device {port.peer[0]} port {port.peer[1]}, must name it as peer in turn"
            )
