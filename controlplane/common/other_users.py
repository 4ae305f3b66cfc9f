"""Checks by the packet filter's rules whether other users of this host can send packets to InArt's group."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from controlplane.common.data_interface import Finding
from p4src.protocol import GROUP, PROTOCOL

NAME = "other users' packets"
RULE = "examples/services/inart.nft"
REFUSED = "agents refuse what lacks the job's key; the packets load sockets and links all the same"
SECONDS = 10


def finding() -> Finding:
    """Report whether an nftables rule lets only one user send to the group (examples/services/inart.nft)."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    nft = shutil.which("nft", path=path)
    if nft is None:
        words = f"nft is not installed, so no rule of nftables keeps other users from sending to {GROUP}: {REFUSED}"
        return Finding(NAME, False, False, words, f"apt-get install nftables, then as root: nft -f {RULE}")
    try:
        done = subprocess.run([nft, "list", "ruleset"], capture_output=True, text=True, timeout=SECONDS, check=False)
        problem = done.stderr.strip().splitlines()[:1] if done.returncode else []
    except (OSError, subprocess.TimeoutExpired) as error:
        done, problem = None, [str(error)]
    if done is None or done.returncode:
        words = f"unknown: nft list ruleset: {problem[0] if problem else 'failed'}"
        return Finding(NAME, False, False, words, "inart doctor as root reads the rules")
    user = only_sender(done.stdout)
    if user is None:
        words = f"every user of this host can send to {GROUP}: {REFUSED}"
        return Finding(NAME, False, False, words, f"as root: nft -f {RULE}, with the agents' user in it")
    return Finding(NAME, True, False, f"nftables drops what anybody but user {user} sends to {GROUP}")


def only_sender(ruleset: str) -> str | None:
    """Return the only user that may send to the group, by name or number, from the output of `nft list ruleset`.

    Return None where there is no such rule in a chain for outgoing packets, or where it does not cover all of InArt's
    ports.
    """
    ports = set(PROTOCOL.ports)
    rule = re.compile(
        rf"ip daddr {re.escape(str(GROUP))}(?: udp dport (\S+))? "
        r"(?:meta )?skuid != \"?([\w.-]+)\"?(?: counter .*)? drop"
    )
    leaving = False
    for line in map(str.strip, ruleset.splitlines()):
        if line.startswith(("table ", "chain ")):
            leaving = False
        elif line.startswith("type filter hook "):
            leaving = line.startswith("type filter hook output ")
        match = rule.fullmatch(line)
        if match and leaving:
            first, _, last = (match[1] or "0-65535").partition("-")
            base = 16 if first.startswith("0x") else 10
            if ports <= set(range(int(first, base), int(last or first, base) + 1)):
                return match[2]
    return None
