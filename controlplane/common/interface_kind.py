"""Determines what kind of interface the agents' data interface is, and why packets would not reach a switch through it.

A host's packets must leave untagged, unchanged and by the port that the topology names, because a switch looks up the
port that a packet comes in by, and its parser takes Ethernet and IPv4 without a tag between (docs/protocol.md). What
`ip -details` calls the kind of an interface tells those apart that break this; a real network card has no kind.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

SECONDS = 5
TUNNELS = ("vxlan", "geneve", "gre", "gretap", "ip6gre", "ipip", "sit", "tun", "wireguard", "xfrm")


def describe(link: dict[str, Any]) -> tuple[bool, str, str]:
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


def read(interface: str) -> dict[str, Any] | None:
    """Return what `ip` knows about an interface; None where it cannot tell."""
    command = ["ip", "-details", "-json", "link", "show", "dev", interface]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
        (link,) = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return dict(link)
