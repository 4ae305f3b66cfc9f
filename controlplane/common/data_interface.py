"""Checks whether packets of the aggregation can reach an agent through one interface, by trying it, or from the
kernel's settings.

How kernels behave was found in network namespaces (docs/hosts.md): with rp_filter on, a kernel drops packets whose
source it has no route to; it accepts any TTL; it reassembles fragments; GRO merges packets for a socket that is bound
to the group, but only those with a UDP checksum.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4src.protocol import GROUP, PROTOCOL, udp_port

RECEIVE_BYTES = 4 << 20  # bytes for two windows of 1,024 packets of 256 values, with the kernel's overhead
UDP_SEGMENT, UDP_GRO = 103, 104
IFF_UP = 1
_SECONDS = 5


@dataclass(frozen=True)
class Finding:
    """A finding about an interface or the kernel. `fix` is a command or advice; it is "" where nothing is wrong."""

    name: str
    ok: bool
    required: bool
    detail: str
    fix: str = ""


def _setting(interface: str, name: str) -> int:
    """Return the effective value of an interface's setting: the larger of its own and that of "all"."""
    folder = Path("/proc/sys/net/ipv4/conf")
    return max(int((folder / where / name).read_text()) for where in ("all", interface))


def receive_limit() -> Finding:
    """Check how large a receive buffer an ordinary user may request."""
    most = int(Path("/proc/sys/net/core/rmem_max").read_text())
    advice = (
        f"as root: sysctl -w net.core.rmem_max={32 << 20} (or losses at high rates; agents as root are not limited)"
    )
    fits = most >= RECEIVE_BYTES
    return Finding("receive buffer", fits, False, f"net.core.rmem_max is {most >> 10} KiB", "" if fits else advice)


def check(interface: str) -> Iterator[Finding]:
    """Yield all findings about one interface, as this user can see them."""
    folder = Path("/sys/class/net") / interface
    if not folder.exists():
        yield Finding(interface, False, True, "there is no such interface", "ip -br address lists them")
        return
    yield _link(folder)
    yield _kind(interface)
    yield _mtu(folder)
    yield from _multicast(interface)
    yield _reverse_path(interface)
    yield _merging(interface)
    yield _dropped()


def _link(folder: Path) -> Finding:
    name = folder.name
    if not int((folder / "flags").read_text(), 16) & IFF_UP:
        return Finding("link", False, True, f"{name} is down", f"ip link set {name} up")
    try:
        carrier = (folder / "carrier").read_text().strip() == "1"
    except OSError:  # The interface was set down in the meantime.
        carrier = False
    fix = "" if carrier else "the cable, or the port at its other end"
    return Finding("link", carrier, True, f"{name} is up" if carrier else f"{name} is up and has no carrier", fix)


def _kind(interface: str) -> Finding:
    """Check that packets leave unchanged, untagged and by one port. The result is a finding and no error, since a user
    may know better."""
    link = read_link(interface)
    if link is None:
        return Finding("kind", True, False, "unknown (`ip -details -json link` says nothing)")
    ok, what, fix = describe_link(link)
    return Finding("kind", ok, False, what, fix)


def _mtu(folder: Path) -> Finding:
    mtu, needed = int((folder / "mtu").read_text()), PROTOCOL.ipv4_length(PROTOCOL.targets["v1model"].values_per_packet)
    fix = "" if mtu >= needed else f"ip link set {folder.name} mtu {needed} (64 values a packet need less)"
    return Finding("MTU", mtu >= needed, True, f"{mtu}; packets of 256 values need {needed}", fix)


def _multicast(interface: str) -> Iterator[Finding]:
    """Join the multicast group, and try the socket options that the back end `udp` uses."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind((str(GROUP), udp_port(0, 0)))
            member = struct.pack("=4s4si", GROUP.packed, bytes(4), socket.if_nametoindex(interface))
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            yield Finding("multicast", True, True, f"joins {GROUP} as this user")
            missing = []
            for name, option, value in (("UDP_SEGMENT", UDP_SEGMENT, 1000), ("UDP_GRO", UDP_GRO, 1)):
                try:
                    probe.setsockopt(socket.IPPROTO_UDP, option, value)
                except OSError:
                    missing.append(name)
            detail = f"this kernel has no {' and no '.join(missing)}" if missing else "UDP_SEGMENT and UDP_GRO"
            fix = "Linux 5.0 or newer; until then packets go one by one" if missing else ""
            yield Finding("super-frames", not missing, False, detail, fix)
    except OSError as error:
        yield Finding(
            "multicast", False, True, f"cannot join {GROUP}: {error}", f"ip link set {interface} up multicast on"
        )


def _reverse_path(interface: str) -> Finding:
    mode = _setting(interface, "rp_filter")
    if mode == 0:
        return Finding("rp_filter", True, False, "0: any source is taken")
    routes = subprocess.run(
        ["ip", "-4", "route", "show", "default", "dev", interface],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    ).stdout
    if routes.strip():
        return Finding("rp_filter", True, False, f"{mode}, and the default route is on {interface}")
    detail = f"{mode}: packets from beyond {interface}'s own subnet are dropped unless there is a route back"
    fix = f"ip route add THE_JOB'S_HOSTS dev {interface}, or sysctl -w net.ipv4.conf.{{all,{interface}}}.rp_filter=0"
    return Finding("rp_filter", False, False, detail, fix)


def _merging(interface: str) -> Finding:
    """Check generic receive offload (GRO), which makes packets that arrive one by one cheap."""
    try:
        features = subprocess.run(
            ["ethtool", "-k", interface], capture_output=True, text=True, timeout=_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return Finding("GRO", True, False, "unknown (ethtool is missing)")
    on = "generic-receive-offload: on" in features
    fix = "" if on else f"ethtool -K {interface} gro on (virtual links hand super-frames over whole without it)"
    return Finding("GRO", on, False, "on" if on else "off: packets that come one by one are not merged", fix)


# Counters of packets that a kernel drops before or at a UDP socket: table, counter, and what it means.
_DROPS = (
    ("TcpExt", "IPReversePathFilter", "source without a route back (rp_filter)"),
    ("Ip", "InHdrErrors", "a wrong IPv4 header"),
    ("IpExt", "InTruncatedPkts", "a length that is more than the frame's"),
    ("Ip", "ReasmFails", "fragments that were not whole"),
    ("Udp", "IgnoredMulti", "a multicast port that no program here has (of a plan before this one, or of another job)"),
    ("Udp", "InCsumErrors", "wrong UDP checksum (an unfinished one: ethtool -K on the sender, tx off)"),
    ("Udp", "RcvbufErrors", "receive buffer full (net.core.rmem_max)"),
)


def kernel_counters() -> dict[str, int]:
    """Return the counters of /proc/net/snmp and netstat of this network namespace, by "Table.counter"."""
    found = {}
    for file in ("snmp", "netstat"):
        lines = Path(f"/proc/net/{file}").read_text().splitlines()
        for names, values in zip(lines[::2], lines[1::2], strict=True):
            table, _, rest = names.partition(":")
            numbers = values.partition(":")[2].split()
            found.update({f"{table}.{name}": int(n) for name, n in zip(rest.split(), numbers, strict=True)})
    return found


def _dropped() -> Finding:
    """Report packets that the kernel dropped; engines do not see these, so they cannot count them."""
    counters = kernel_counters()
    some = [
        f"{number} with {meaning}"
        for table, name, meaning in _DROPS
        if (number := counters.get(f"{table}.{name}", 0)) > 0
    ]
    if not some:
        return Finding("kernel drops", True, False, "none since this namespace was made")
    advice = "if they grow while a job runs, they are its packets: nstat -a"
    return Finding("kernel drops", False, False, f"packets dropped, of any program: {'; '.join(some)}", advice)


TUNNELS = ("vxlan", "geneve", "gre", "gretap", "ip6gre", "ipip", "sit", "tun", "wireguard", "xfrm")


def describe_link(link: dict[str, Any]) -> tuple[bool, str, str]:
    """Return whether agents can use an interface, what it is, and what to do if they cannot. `link` is one object of
    `ip -details -json link show`."""
    info = link.get("linkinfo", {})
    kind, data = info.get("info_kind"), info.get("info_data", {})
    parent = link.get("link") or "the interface below it"
    if kind == "vlan":
        what = f"a VLAN: frames leave with tag {data.get('id', '?')}, and P4 switches of ours drop frames with a tag"
        return False, what, f"give the agent {parent} itself, on a port without a tag"
    if kind in ("bond", "team"):
        what = (
            f"a {kind}: packets leave by one port or another, and a switch adds only what comes in by the planned one"
        )
        return False, what, "give the agent one of its ports, with an address of its own; the topology names its switch"
    if kind == "bridge" and data.get("mcast_snooping"):
        what = "a bridge with IGMP snooping, which sends a group only where a host has asked for it; switches never ask"
        return False, what, f"ip link set {link.get('ifname', 'NAME')} type bridge mcast_snooping 0"
    if kind in TUNNELS:
        what = f"a tunnel ({kind}): switches on the way see its outer packets and add nothing"
        return False, what, "give the agent the interface that is wired to the P4 switch"
    if info.get("info_slave_kind") in ("bond", "team"):
        what = f"a port of {link.get('master', 'a bond')}, whose other ports take a part of what comes"
        return False, what, f"ip link set {link.get('ifname', 'NAME')} nomaster"
    return True, f"{kind}: nothing between is known to keep packets back" if kind else "a network card", ""


def read_link(interface: str) -> dict[str, Any] | None:
    """Return what `ip` knows about an interface; None where it cannot tell."""
    command = ["ip", "-details", "-json", "link", "show", "dev", interface]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
        (link,) = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return dict(link)
