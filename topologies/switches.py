"""The switch processes of an emulation: what `topologies.emulation` asks of them, and what they have in common."""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from controlplane.planner.topology import Topology
from topologies.network import EmulationError

START_SECONDS = 60.0


@dataclass(frozen=True)
class SwitchAddress:
    """Where a switch serves P4Runtime."""

    address: str  # HOST:PORT
    device_id: int


@dataclass(frozen=True)
class InterfaceCounters:
    """What a link has carried, as one of its ends sees it: frames and their bytes (Ethernet header included)."""

    rx_bytes: int
    rx_packets: int
    tx_bytes: int
    tx_packets: int

    def __sub__(self, before: "InterfaceCounters") -> "InterfaceCounters":
        return InterfaceCounters(*(getattr(self, name) - getattr(before, name) for name in self.__dataclass_fields__))

    @property
    def other_end(self) -> "InterfaceCounters":
        """The same as the link's other end sees it."""
        return InterfaceCounters(self.tx_bytes, self.tx_packets, self.rx_bytes, self.rx_packets)


@dataclass(frozen=True)
class Layout:
    """What the switches are connected to (interfaces of the root namespace)."""

    topology: Topology
    host_interfaces: dict[str, str]  # server -> interface
    fabric_interfaces: dict[tuple[str, str], str]  # (switch, neighbour) -> interface at switch; empty: links in memory
    directory: Path  # for files of the switches; goes with the emulation


class Switches(Protocol):
    """All switches of one emulation."""

    kind: str
    links_in_memory: bool
    takes_offloads: bool
    """Hosts may leave segmentation and checksums to the switches, as to a card."""

    def start(self, layout: Layout, environment: dict[str, str]) -> dict[str, SwitchAddress]:
        """Start them; returns when every one answers. Raises EmulationError."""

    def shape(self, u: str, v: str, **faults: float) -> None:
        """Change what happens to frames from u to v: rate_mbps, delay_ms, loss, duplicate, reorder, ..."""

    def reboot(self, switch: str) -> None:
        """The switch forgets everything, as if its power had been off; returns when it answers again."""

    def fail(self, switch: str, seconds: float) -> None:
        """The switch is off from now on for so long: it forwards nothing, nobody is answered; then as `reboot`."""

    def cut(self, u: str, v: str) -> None:
        """Nothing that one of two neighbouring switches sends to the other arrives any more."""

    def mend(self, u: str, v: str) -> None:
        """What was cut carries again."""

    def drops(self) -> dict[str, dict[str, int]]:
        """Frames lost in each switch so far, by reason (full queue, injected fault); empty where it cannot tell."""

    def is_up(self, switch: str) -> bool:
        """Whether a switch answers its controller. Raises EmulationError where that cannot be told."""

    def corrupted(self) -> dict[str, int]:
        """Frames that each switch has sent with a flipped bit, as its links' `corrupt` asks; empty where it cannot."""

    def flip(self, switch: str, registers: str, count: int, most_index: int) -> int:
        """Flip random bits in registers whose names begin so, in elements 0 to most_index; how many. Raises
        EmulationError where the switches cannot."""

    def link_counters(self, switch: str | None = None) -> dict[tuple[str, str], InterfaceCounters]:
        """What each switch's (or this one's) port to each neighbour has taken in and sent; empty where it cannot tell:
        hosts then send without offloads, and their interfaces count the same."""

    def check(self) -> None:
        """Raise EmulationError, with the last words of the process, when one has ended."""

    def close(self) -> None:
        """End the processes. Called when they may have ended already."""


def free_ports(count: int) -> list[int]:
    """TCP ports of 127.0.0.1 that nobody listens on (all different)."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def wait_listening(addresses: list[str], check: Callable[[], None], seconds: float = START_SECONDS) -> None:
    """Return when every HOST:PORT accepts connections; `check` raises when waiting is in vain."""
    deadline = time.monotonic() + seconds
    for address in addresses:
        host, port = address.rsplit(":", 1)
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                break
            except OSError:
                check()
                if time.monotonic() > deadline:
                    raise EmulationError(f"nothing listens on {address} after {seconds:.0f} s") from None
                time.sleep(0.05)
