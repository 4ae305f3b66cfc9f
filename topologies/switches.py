"""The interface of an emulation's switch processes, and helpers for starting them."""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from controlplane.planner.topology import Topology
from controlplane.planner.topology_cables import beyond
from controlplane.targets.base import SwitchAddress
from topologies.network import EmulationError

START_SECONDS = 60.0


@dataclass(frozen=True)
class InterfaceCounters:
    """The counters of a link, as one of its ends has them: frames and their bytes (Ethernet header included)."""

    rx_bytes: int
    rx_packets: int
    tx_bytes: int
    tx_packets: int

    def __sub__(self, before: "InterfaceCounters") -> "InterfaceCounters":
        return InterfaceCounters(*(getattr(self, name) - getattr(before, name) for name in self.__dataclass_fields__))

    @property
    def other_end(self) -> "InterfaceCounters":
        """The same counters as the link's other end sees them."""
        return InterfaceCounters(self.tx_bytes, self.tx_packets, self.rx_bytes, self.rx_packets)


@dataclass(frozen=True)
class Layout:
    """The surroundings of the switches: the interfaces of the root namespace that they connect."""

    topology: Topology
    host_interfaces: dict[tuple[str, str], str]  # (server, the topology's node next to it there) -> interface
    # (switch, neighbour) -> interface at the switch; empty: links are in memory
    fabric_interfaces: dict[tuple[str, str], str]
    directory: Path  # for files of the switches; removed with the emulation

    def to_host(self, switch: str, neighbour: str) -> str | None:
        """Return the interface at a switch of its link to this neighbour, where that is a host, or the cable to one."""
        other = beyond(self.topology, switch, neighbour)
        return self.host_interfaces.get((other, switch if other == neighbour else neighbour))


class Switches(Protocol):
    """All switches of one emulation."""

    kind: str
    links_in_memory: bool
    takes_offloads: bool
    """Whether hosts may leave segmentation and checksums to the switches, as to a network card."""

    def start(self, layout: Layout, environment: dict[str, str]) -> dict[str, SwitchAddress]:
        """Start the switches, and return when every one answers. Raise EmulationError where one does not."""

    def shape(self, u: str, v: str, **faults: float) -> None:
        """Change the treatment of frames from u to v: rate_mbps, delay_ms, loss, duplicate, reorder and others."""

    def reboot(self, switch: str) -> None:
        """Restart the switch with empty memory and tables, and return when it answers again."""

    def fail(self, switch: str, seconds: float) -> None:
        """Switch a switch off for `seconds`: it forwards no frames and answers no calls. Then it comes back as after
        `reboot`.
        """

    def cut(self, u: str, v: str) -> None:
        """Lose all frames between two neighbouring switches, in both directions."""

    def mend(self, u: str, v: str) -> None:
        """Restore a link that `cut` had cut."""

    def drops(self) -> dict[str, dict[str, int]]:
        """Return the frames lost in each switch so far, by reason (full queue, injected fault); empty if the switches
        cannot tell.
        """

    def queued_bytes(self, u: str, v: str) -> int:
        """Return the bytes that wait at this moment in the queue of switch u towards v. Raise EmulationError if the
        switches cannot tell.
        """

    def is_up(self, switch: str) -> bool:
        """Return whether a switch answers its controller. Raise EmulationError if the switches cannot tell."""

    def corrupted(self) -> dict[str, int]:
        """Return the frames that each switch sent with a bit flipped by `corrupt` of `shape`; empty if the switches
        cannot tell.
        """

    def flip(self, switch: str, registers: str, count: int, most_index: int) -> int:
        """Flip random bits in registers whose names have this prefix, in elements 0 to most_index, and return the
        number of bits.

        Raise EmulationError if the switches cannot do that.
        """

    def link_counters(self, switch: str | None = None) -> dict[tuple[str, str], InterfaceCounters]:
        """Return the counters of frames received and sent by the port of each (switch, neighbour), or only of the ports
        of `switch`.

        Return nothing if the switches cannot tell; hosts then send without offloads, so that their interfaces count
        packets.
        """

    def check(self) -> None:
        """Check that all processes run; raise EmulationError, with the last lines of its log, if one has ended."""

    def close(self) -> None:
        """End the processes, which may have ended already."""


def switches_file(addresses: Mapping[str, SwitchAddress]) -> dict[str, dict[str, str | int]]:
    """Return the content of a file for the controller's option `--switches`."""
    return {name: {"address": one.address, "device_id": one.device_id} for name, one in addresses.items()}


def wait_listening(addresses: list[str], check: Callable[[], None], seconds: float = START_SECONDS) -> None:
    """Wait until every HOST:PORT accepts connections; `check` raises an exception if waiting is in vain."""
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
