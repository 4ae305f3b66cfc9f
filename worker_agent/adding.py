"""Measures how many Mbit/s of packets a processor of this host takes in and adds up, which plans need to know.

Two programs add on hosts. A parameter server's engine is measured while it works (`Busy`): its packets are divided by
the processor time that they took, in times when it was busy enough for a meaningful quotient. The switch of a host that
adds inside of trees (softswitch, docs/planner.md) is measured before there is anything to do (`switch_adds_mbps`): a
few hundred packets go through the same compiled program in this process, which takes some milliseconds. Both divide by
processor time and not by elapsed time, so that waiting for a processor does not matter.
"""

from __future__ import annotations

import functools
import logging
import struct
import threading
import time
from importlib import import_module

from p4src.artifacts import ArtifactError, find
from p4src.protocol import (
    DO_NOT_FRAGMENT,
    ETHERTYPE_IPV4,
    GROUP,
    GROUP_MAC,
    HEADER_OFFSET,
    IPV4_OFFSET,
    IPV4_VERSION_AND_WORDS,
    PROTOCOL,
    PROTOCOL_UDP,
    UDP_OFFSET,
    VERSION,
    frame_bytes,
    udp_port,
)

# The part of its threads' time for which an engine must be busy to be measured. Below it, the wake-ups of threads cost
# more than the additions.
BUSY_PART = 0.5
LEAST_CPU_SECONDS = 0.2
WORKERS, CHUNKS, ROUNDS = 4, 100, 3
FIRST_LABEL, EPOCH, SLOT_MASK = 10, 1, 1023
log = logging.getLogger("inart")


class Busy:
    """Finds the rate at which an engine's threads add, from its counters, in times in which the threads were busy.

    A plan gives a server no more than the rate that is found here, so a value that is too low would keep itself:
    threads with little to do are not measured again. Therefore a moment in which a packet cost much time (because
    others crowd the host) counts for no less than half of the best rate that was seen: a plan for half of what the
    threads can do keeps them busy enough to be measured again.
    """

    def __init__(self) -> None:
        self.mbps = 0.0
        """The rate in Mbit/s that the threads add when each has a processor, as last measured, but at least half of the
        highest that was measured; 0 while they have never been busy.
        """
        self._most = 0.0
        self._before = (0, 0.0, 0.0)

    def note(self, received: int, cpu_seconds: float, now: float, threads: int) -> float:
        """Take the engine's counters, which begin anew with another engine, and return `mbps`.

        Args:
            received: bytes received so far.
            cpu_seconds: processor time of all threads so far.
            now: the time on a monotonic clock.
            threads: number of the engine's threads.
        """
        before, cpu_before, then = self._before
        cpu, more = cpu_seconds - cpu_before, received - before
        if not then or cpu < 0 or more < 0:
            self._before = received, cpu_seconds, now
        elif cpu >= LEAST_CPU_SECONDS:
            self._before = received, cpu_seconds, now
            if more and cpu >= BUSY_PART * threads * (now - then):
                found = 8e-6 * more / cpu * threads
                self._most = max(self._most, found)
                self.mbps = round(max(found, self._most * BUSY_PART), 1)
        return self.mbps


class OfSwitch:
    """Measures how much the switch on this host adds, in a thread of its own, as soon as somebody asks for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._mbps = 0.0

    def mbps(self, values_per_packet: int) -> float:
        """Return the Mbit/s that the switch adds; 0 while the measurement, which the first call starts, has not ended,
        and where it fails.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._measure, args=(values_per_packet,), name="adding", daemon=True)
            self._thread.start()
        return self._mbps

    def wait(self) -> None:
        """Wait until a measurement that has begun ends."""
        if self._thread is not None:
            self._thread.join()

    def _measure(self, values_per_packet: int) -> None:
        self._mbps = switch_adds_mbps(values_per_packet)


@functools.cache
def switch_adds_mbps(values_per_packet: int) -> float:
    """Measure what softswitch adds on one processor of this host, in Mbit/s of frames.

    Return 0, and log why, where softswitch is not installed here or cannot run the program for so many values per
    packet.
    """
    try:
        softswitch = import_module("softswitch")  # by name: only the agent of a host with a switch needs it
        code = find(values=values_per_packet).program.read_bytes()
    except (ImportError, ArtifactError, OSError) as error:
        log.warning("what the switch of this host adds is not measured: %s", error)
        return 0.0
    try:
        program = softswitch.Program.load(code)
        device = softswitch.Fabric().add_device(1)
        device.load(program)
    except (softswitch.SoftswitchError, OSError) as error:
        log.warning("what the switch of this host adds is not measured: %s", error)
        return 0.0
    try:
        everyone = (1 << WORKERS) - 1
        for worker in range(WORKERS):
            key = softswitch.Match("exact", 1), softswitch.Match("exact", FIRST_LABEL + worker)
            action = [0, SLOT_MASK, 1 << worker, everyone, 100, 100, 2]
            device.insert("label_table", key, "aggregate", action)
        seconds = []
        for first in range(0, ROUNDS * CHUNKS, CHUNKS):
            chunks = range(first, first + CHUNKS)
            frames = [_frame(values_per_packet, worker, chunk) for chunk in chunks for worker in range(WORKERS)]
            begin = time.thread_time()
            sums = sum(len(device.process(1, frame)) for frame in frames)
            seconds.append(time.thread_time() - begin)
            if sums != CHUNKS:
                log.warning("the switch of this host made %d sums of %d in a trial: not measured", sums, CHUNKS)
                return 0.0
    finally:
        device.unload()
    return round(8e-6 * frame_bytes(values_per_packet) * CHUNKS * WORKERS / min(seconds), 1)


def _frame(values_per_packet: int, worker: int, chunk: int) -> bytes:
    """Return a worker's packet of zeros for one chunk."""
    size = frame_bytes(values_per_packet)
    frame = bytearray(size)
    frame[:IPV4_OFFSET] = GROUP_MAC + bytes((2, 0, 0, 0, 0, worker + 1)) + struct.pack(">H", ETHERTYPE_IPV4)
    ip = struct.pack(
        ">BBHHHBBHII", IPV4_VERSION_AND_WORDS, 0, size - IPV4_OFFSET, 0, DO_NOT_FRAGMENT, PROTOCOL.ttl, PROTOCOL_UDP, 0,
        0x0A000001 + worker, int(GROUP),
    )  # fmt: skip
    total = sum(struct.unpack(">10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    frame[IPV4_OFFSET:UDP_OFFSET] = ip[:10] + struct.pack(">H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + ip[12:]
    frame[UDP_OFFSET:HEADER_OFFSET] = struct.pack(">HHHH", 49152, udp_port(0, 0), size - UDP_OFFSET, 0)
    header = struct.pack(">BBHIIIQ", VERSION, 0, 0, FIRST_LABEL + worker, EPOCH, chunk, 0)
    frame[HEADER_OFFSET : HEADER_OFFSET + len(header)] = header
    return bytes(frame)
