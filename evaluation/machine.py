"""Prints the machine of a figure: two machines "of the same kind" may have other processors, and then other figures.

    python -m evaluation.machine

A packet's cost is that of the kernel's system calls and copies, of memory, and of vector instructions. So the line has
the processor's model and its vector instructions, how busy the machine is, and two yardsticks that are measured in a
tenth of a second: how fast one core copies memory that no cache holds, and the CPU time in which one core sends a
packet of 1,090 bytes to itself and receives it. Where these differ, so do microseconds a packet.
"""

from __future__ import annotations

import os
import platform
import socket
import time
from pathlib import Path

import numpy as np

PACKET_BYTES = 1090  # a packet of 256 values, with its headers
PACKETS, COPIES = 2000, 3
COPY_BYTES = 64 << 20
VECTORS = {"avx512_vnni": "AVX-512 with VNNI", "avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}
"""Names of vector instructions by their flags in /proc/cpuinfo, the best first."""


def _processor() -> dict[str, str]:
    """Return the fields of /proc/cpuinfo for the first processor; empty where they cannot be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): words.strip() for name, _, words in pairs}


def processor() -> str:
    """Return the processor's name, family and model, microcode and vector instructions, and how many there are."""
    found = _processor()
    flags = found.get("flags", "").split()
    vectors = next((name for flag, name in VECTORS.items() if flag in flags), "no vectors that the engines know")
    name = found.get("model name") or platform.processor() or platform.machine()
    number = f"family {found.get('cpu family', '?')} model {found.get('model', '?')}"
    return f"{name}, {number}, microcode {found.get('microcode', '?')}, {vectors}, {os.cpu_count()} processors"


def copy_speed() -> float:
    """Return the GB/s at which one core copies memory that is in no cache, the best of a few copies."""
    source = np.ones(COPY_BYTES, np.uint8)
    target = np.zeros(COPY_BYTES, np.uint8)
    seconds = []
    for _ in range(COPIES):
        began = time.thread_time()
        np.copyto(target, source)
        seconds.append(time.thread_time() - began)
    return COPY_BYTES / min(seconds) / 1e9


def packet_time() -> float:
    """Return the µs of CPU time in which one core sends a UDP packet over loopback and receives it, with a call for
    each.
    """
    packet = bytes(PACKET_BYTES)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(5)
        sender.connect(receiver.getsockname())
        began = time.thread_time()
        for _ in range(PACKETS):
            sender.send(packet)
            receiver.recv(2048)
        return (time.thread_time() - began) / PACKETS * 1e6


def description() -> str:
    """Return the line that stands beside figures."""
    return (
        f"{processor()}; Linux {platform.release()}; load {os.getloadavg()[0]:.1f}; "
        f"copies {copy_speed():.1f} GB/s; a packet over loopback {packet_time():.1f} µs"
    )


if __name__ == "__main__":
    print(description())
