"""Finds out what this user and kernel can do, by trying it in a network namespace that ends with this process.

`python -m controlplane.common.probe` prints one JSON object with the problem of each ability, "" where it works. The
doctor runs it as a process of its own, so that nothing of it can stay behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from controlplane.common.data_interface import UDP_GRO, UDP_SEGMENT
from p4src.protocol import GROUP, udp_port

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
ETHERTYPE = 0x88B5
COMMAND_SECONDS = 10
RECEIVE_SECONDS = 5.0
TRY_SECONDS = 0.1
FRAME = b"\xff" * 6 + b"\x02\x00\x00\x00\x00\x01" + ETHERTYPE.to_bytes(2, "big") + b"inart doctor".ljust(46, b"\0")


class Unable(Exception):
    """An ability is missing; the message says why."""


def command(*words: str) -> str:
    """Run a command and return its output. Raise Unable, with what it wrote to stderr, where it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except FileNotFoundError:
        raise Unable(f"{words[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise Unable(f"{' '.join(words)} did not end within {COMMAND_SECONDS} s") from None
    if done.returncode:
        raise Unable(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip() or done.returncode}")
    return done.stdout


def enter_namespace() -> None:
    """Enter a new network namespace, and without root a new user namespace around it."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWNET | CLONE_NEWUSER
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(flags):
        raise Unable(f"unshare: {os.strerror(ctypes.get_errno())}")
    if flags & CLONE_NEWUSER:
        for file, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{file}", "w") as map_file:
                map_file.write(content)


def veth() -> None:
    command("ip", "link", "add", "doctor0", "type", "veth", "peer", "name", "doctor1")
    for interface in ("lo", "doctor0", "doctor1"):
        command("ip", "link", "set", interface, "up")


def exchange(send: Callable[[], object], receiver: socket.socket) -> bytes:
    """Call `send` until the receiver gets something, and return that. Raise Unable after RECEIVE_SECONDS.

    A kernel drops packets that are sent before it has noticed that the link is up, so one call is not enough.
    """
    receiver.settimeout(TRY_SECONDS)
    end = time.monotonic() + RECEIVE_SECONDS
    while time.monotonic() < end:
        send()
        with contextlib.suppress(TimeoutError):
            return receiver.recv(1 << 16)
    raise Unable(f"nothing arrived within {RECEIVE_SECONDS:g} s")


def packet_socket() -> None:
    """Send a frame over the veth pair with AF_PACKET."""
    with contextlib.ExitStack() as stack:
        ends = []
        for interface in ("doctor0", "doctor1"):
            end = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE)))
            end.bind((interface, ETHERTYPE))
            ends.append(end)
        if exchange(lambda: ends[0].send(FRAME), ends[1]) != FRAME:
            raise Unable("a frame arrived changed")


def super_frames() -> None:
    """Send several packets as one message over the veth pair to a socket in a multicast group, as the agents do."""
    # Both ends are in this namespace, so the source address that the receiver sees is its own.
    for name, value in (("accept_local", "1"), ("rp_filter", "0")):
        Path(f"/proc/sys/net/ipv4/conf/doctor1/{name}").write_text(value)
    Path("/proc/sys/net/ipv4/conf/all/rp_filter").write_text("0")
    command("ip", "address", "replace", "10.255.77.1/30", "dev", "doctor0")
    with contextlib.ExitStack() as stack:
        sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        receiver = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        group, port = str(GROUP), udp_port(0, 0)
        out, into = (
            struct.pack("=4s4si", GROUP.packed, bytes(4), socket.if_nametoindex(end)) for end in ("doctor0", "doctor1")
        )
        receiver.bind((group, port))
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, into)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, out)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
        try:
            receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1000)
        except OSError as error:
            raise Unable(f"this kernel has no UDP_SEGMENT or UDP_GRO: {error.strerror}") from None
        taken = len(exchange(lambda: sender.sendto(bytes(8000), (group, port)), receiver))
        if taken != 8000:
            raise Unable(f"8 packets came as {taken} bytes, not as one message of 8000")


def queue(*words: str, of: Sequence[str] = ()) -> Callable[[], None]:
    """Return a function that tries to give an interface this queue, with a class `of` it."""

    def attempt() -> None:
        command("tc", "qdisc", "add", "dev", "doctor0", "root", *words)
        if of:
            command("tc", "class", "add", "dev", "doctor0", *of)
        command("tc", "qdisc", "del", "dev", "doctor0", "root")

    return attempt


HTB = ("parent", "5:0", "classid", "5:1", "htb", "rate", "10mbit")
ABILITIES: dict[str, Callable[[], object]] = {
    "network namespaces": enter_namespace,
    "veth pairs": veth,
    "raw sockets (AF_PACKET)": packet_socket,
    "super-frames over UDP": super_frames,
    "rate limits (tbf)": queue("tbf", "rate", "10mbit", "burst", "256kb", "latency", "50ms"),
    "rate limits (htb)": queue("handle", "5:0", "htb", "default", "1", of=HTB),
    "netem": queue("netem", "delay", "1ms"),
    "Mininet's mnexec": lambda: command("mnexec", "-n", "true"),
}


def probe() -> dict[str, str]:
    """Try everything in order, since later abilities need the first, and return the problem of each ability ("" where
    it works)."""
    results = {}
    for name, attempt in ABILITIES.items():
        try:
            attempt()
            results[name] = ""
        except (Unable, OSError) as error:
            results[name] = str(error)
            if attempt is enter_namespace:
                # Without a namespace, the next attempts would change this machine's own network.
                return dict.fromkeys(ABILITIES, "no network namespace") | results
    return results


if __name__ == "__main__":
    json.dump(probe(), sys.stdout)
