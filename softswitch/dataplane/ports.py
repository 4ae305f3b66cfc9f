"""Ports as Python sees them: their numbers, their counters, and the shape of the frames that leave them."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from softswitch.app.config import CLASS_RATES, PROBABILITIES, SHAPE_RANGES
from softswitch.dataplane import native
from softswitch.errors import InvalidValue

MAX_PORTS = 512
MAX_FRAME = 65536
DEFAULT_QUEUE_BYTES = 256 * 1024  # queue of a shaped port


@dataclass(frozen=True)
class PortStats:
    """The counters of one port since it was added: packets and bytes in and out, and frames dropped, by reason.

    Attributes:
        rx_superframes, tx_superframes: kernel frames that held several of these packets.
        corrupted: packets sent with a bit flipped by the port's shape.
        queued_packets, queued_bytes: no counters, but the packets that wait at this moment for the line of a port with
            a shape.
        marked: packets that the port's shape has marked (``ecn_packets``).
    """

    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    drops: dict[str, int] = field(default_factory=dict)
    rx_superframes: int = 0
    tx_superframes: int = 0
    corrupted: int = 0
    queued_packets: int = 0
    queued_bytes: int = 0
    marked: int = 0


def check_port(port: int) -> None:
    if not 0 <= port < MAX_PORTS - 1:
        raise InvalidValue(f"port {port} is not in 0..{MAX_PORTS - 2} (511 is v1model's drop port)")


def interface_index(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        return -1  # The interface vanished right away.


def native_shape(shape: dict[str, float]) -> native.Shape | None:
    """Return the native form of the arguments of :meth:`.fabric.Fabric.shape`; ``None`` if they ask for nothing."""
    unknown = set(shape) - SHAPE_RANGES.keys()
    if unknown:
        raise InvalidValue(f"unknown link property {sorted(unknown)[0]!r}; there are {', '.join(sorted(SHAPE_RANGES))}")
    given = {name: value for name, value in shape.items() if value is not None}
    for name, value in given.items():
        if not 0 <= value < float("inf"):
            raise InvalidValue(f"{name} {value} is out of range")
        if name in PROBABILITIES and value > 1:
            raise InvalidValue(f"{name} {value} is not a probability")
    if not any(given.values()):
        return None
    rate = given.get("rate_mbps", 0)
    limited = rate or any(given.get(name) for name in CLASS_RATES)
    default_queue = DEFAULT_QUEUE_BYTES if limited and "queue_packets" not in given else 0
    return native.Shape(
        rate_bps=rate * 1e6,
        burst_bytes=int(given.get("burst_bytes", 0)),
        queue_bytes=int(given.get("queue_bytes", default_queue)),
        queue_packets=int(given.get("queue_packets", 0)),
        ecn_packets=int(given.get("ecn_packets", 0)),
        ahead_bytes=int(given.get("ahead_bytes", 0)),
        delay_ns=int(given.get("delay_ms", 0) * 1e6),
        jitter_ns=int(given.get("jitter_ms", 0) * 1e6),
        reorder_ns=int(given.get("reorder_ms", 1) * 1e6),
        loss=given.get("loss", 0),
        duplicate=given.get("duplicate", 0),
        reorder=given.get("reorder", 0),
        corrupt=given.get("corrupt", 0),
        corrupt_every=int(given.get("corrupt_every", 0)),
        corrupt_from=int(given.get("corrupt_from", 0)),
        corrupt_until=int(given.get("corrupt_until", 0)),
        corrupt_udp=int(given.get("corrupt_udp", 0)),
        class_bps=tuple(given.get(f"class{number}_mbps", 0) * 1e6 for number in range(native.CLASSES)),
        corrupt_hidden=int(given.get("corrupt_hidden", 0)),
        dscp_classes=int(given.get("dscp_classes", 0)),
    )
