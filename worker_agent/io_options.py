"""The options of an engine's input and output, which workers and parameter servers share: I/O threads, DSCP.

They are chosen at the start by arguments or by the environment: INART_THREADS, INART_DSCP (numbers).
"""

from __future__ import annotations

import ctypes
import heapq
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from controlplane.common.agentconfig import LANE_MBPS, MOST_LINKS, AgentConfig, interfaces_in
from worker_agent.c_structures import Header

MOST_THREADS = 16  # the number of a job's ports
RECEIVE_BYTES = 32 << 20  # the receive buffer that engines request from the kernel
_NAME_BYTES = 16
_TROUBLE_BYTES = 192
_NATIVE = Path(__file__).resolve().parent / "native"
_HEADER = Header(
    _NATIVE / "engine.h",
    {"IFNAMSIZ": _NAME_BYTES, "INART_MOST_LINKS - 1": MOST_LINKS - 1, "INART_TROUBLE": _TROUBLE_BYTES},
)
_SYSTEM = Path("/sys")
log = logging.getLogger("inart")


class Uplink(ctypes.Structure):
    """The C structure inart_uplink: the link of a host of both roles, which its worker and parameter server share."""

    _fields_ = Header(_NATIVE / "uplink.h").fields("inart_uplink")


_uplinks: dict[str, Uplink] = {}  # by interface; kept as long as the process, as engines may use them


def uplink_of(config: AgentConfig, interface: str) -> Uplink | None:
    """Return the link that the engines of one host's two roles share; None where the host has one role, or the rate of
    its link is not known.
    """
    if not config.both_roles or not 0 < config.link_mbps < math.inf:
        return None
    uplink = _uplinks.setdefault(interface, Uplink())
    uplink.ns_a_byte = 8e3 / config.link_mbps
    return uplink


class IoConfig(ctypes.Structure):
    """The C structure inart_io_config."""

    _fields_ = _HEADER.fields("inart_io_config", inart_uplink=Uplink)


class PacketStats(ctypes.Structure):
    """The C structure inart_packet_stats, which every engine counts."""

    _fields_ = _HEADER.fields("inart_packet_stats")


class NativeIoStats(ctypes.Structure):
    """The C structure inart_io_stats."""

    _fields_ = _HEADER.fields("inart_io_stats")


@dataclass(frozen=True)
class IoStats:
    """The state and counters of packet input and output.

    Attributes:
        messages_sent, messages_received: messages that the kernel accepted and delivered (a super-frame is one).
        receive_buffer: bytes per lane that the kernel granted.
        segments: packets that a message may have now (1: this kernel or interface does not segment).
        trouble: the last failure to send, in words; empty when there was none since the last configuration.
    """

    threads: int
    messages_sent: int
    messages_received: int
    receive_buffer: int
    segments: int
    trouble: str

    def warn_if_small(self, interface: str, bytes_under_way: int) -> None:
        """Log what to do when the kernel's receive buffer cannot hold the packets that may be in flight to a lane."""
        needed = 2 * bytes_under_way  # The kernel counts its own memory, too.
        if self.receive_buffer < needed:
            log.warning(
                "%s: the kernel grants %d KiB to receive into, %d KiB may be under way: packets may be lost and sent "
                "again. As root: sysctl -w net.core.rmem_max=%d",
                interface,
                self.receive_buffer >> 10,
                needed >> 10,
                max(needed, RECEIVE_BYTES),
            )

    @classmethod
    def of(cls, native: NativeIoStats, config: IoConfig) -> IoStats:
        """Convert the engine's structure."""
        return cls(
            threads=config.threads,
            messages_sent=native.messages_sent,
            messages_received=native.messages_received,
            receive_buffer=native.receive_buffer,
            segments=native.segments,
            trouble=bytes(native.trouble).decode(errors="replace"),
        )


@dataclass(frozen=True)
class IoOptions:
    """The options of input and output; values that do not exist raise ValueError.

    Attributes:
        threads: number of I/O threads; 0: as many as the rate needs.
        receive_bytes: size of each lane's receive buffer; 0: as much as the kernel grants.
        dscp: code point of the packets that are sent (RFC 2474), by which switches choose a queue.
    """

    threads: int = 0
    receive_bytes: int = 0
    dscp: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.threads <= MOST_THREADS:
            raise ValueError(f"{self.threads} I/O threads: at most {MOST_THREADS}, or 0 for as many as the rate needs")
        if not 0 <= self.dscp < 64:
            raise ValueError(f"the DSCP is a number from 0 to 63, not {self.dscp}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> IoOptions:
        """Return the options of INART_THREADS and INART_DSCP. Raise ValueError, which names the variables,
        for values that do not exist.
        """
        try:
            return cls(
                int(environment.get("INART_THREADS") or 0),
                dscp=int(environment.get("INART_DSCP") or 0),
            )
        except ValueError as error:
            raise ValueError(f"INART_THREADS, INART_DSCP: {error}") from None

    def native(self, config: AgentConfig, interface: str, ports: Iterable[int], mbps: float) -> IoConfig:
        """Return the C structure for an engine. Raise ValueError for too many interfaces.

        Args:
            config: the agent's configuration.
            interface: the interface, or those of several links separated by commas.
            ports: the ports of the engine's trees.
            mbps: the rate of these trees together; 0: not known.
        """
        first, *further = interfaces_in(interface)
        if len(further) >= MOST_LINKS:
            raise ValueError(f"{interface}: an agent uses at most {MOST_LINKS} interfaces")
        threads = self.threads or threads_for(mbps)
        threads = max(1, min(threads, len(set(ports)), MOST_THREADS))
        uplink = uplink_of(config, interface)
        return IoConfig(
            interface=first.encode()[: _NAME_BYTES - 1],
            more=len(further),
            further=(ctypes.c_char * _NAME_BYTES * (MOST_LINKS - 1))(
                *(ctypes.create_string_buffer(name.encode()[: _NAME_BYTES - 1], _NAME_BYTES) for name in further)
            ),
            address=int(IPv4Address(config.address)) if config.address else 0,
            receive_bytes=self.receive_bytes,
            dscp=self.dscp,
            threads=threads,
            uplink=None if uplink is None else ctypes.pointer(uplink),
        )


def link_mbps(interface: str) -> float:
    """Return the speed of an interface's link in Mbit/s; 0 where it is not known."""
    try:
        return max(0.0, float((_SYSTEM / "class/net" / interface / "speed").read_text()))
    except (OSError, ValueError):
        return 0.0


def threads_for(mbps: float) -> int:
    """Return the number of I/O threads for a rate in Mbit/s, at most the number of cores."""
    return max(1, min(-(-int(mbps) // int(LANE_MBPS)), len(os.sched_getaffinity(0))))


def assign(trees: Sequence[tuple[int, float]], threads: int) -> list[int]:
    """Return the thread of each tree, given as (port, weight).

    All trees of a port are on one thread, which has the port's socket. Heavy ports come first, each to the thread with
    the least weight so far, and of several such threads to the one with the fewest ports.
    """
    weights: dict[int, float] = {}
    for port, weight in trees:
        weights[port] = weights.get(port, 0.0) + weight
    loads = [(0.0, 0, thread) for thread in range(threads)]
    thread_of: dict[int, int] = {}
    for port in sorted(weights, key=lambda port: (-weights[port], port)):
        load, ports, thread = heapq.heappop(loads)
        thread_of[port] = thread
        heapq.heappush(loads, (load + weights[port], ports + 1, thread))
    return [thread_of[port] for port, _ in trees]
