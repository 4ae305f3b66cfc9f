"""What runs at a site (see `topologies.zygote`): an agent that brings values round after round and checks the mean."""

from __future__ import annotations

import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from controlplane.common.rpc.tls import credentials as tls_of
from overlay.core.errors import OverlayError, PeerLost
from overlay.net.agent import Agent
from overlay.net.tls import Security
from topologies.zygote import Channel

PAUSE_SECONDS = 0.05
"""Between rounds: what a site computes."""


def brought(site: int, values: int) -> np.ndarray:
    """Whole numbers: sums are exact in any order, and say by whom they are."""
    return ((np.arange(values) % 97 + 1) * (site + 1)).astype(np.float32)


def synchronise(
    channel: Channel, *, coordinator: list[Any], backups: list[list[Any]], node: str, address: str, site: int,
    sites: dict[str, int], values: int, credentials: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Rounds until a message comes. rounds: synchronisations with others; alone: without; given_up: that failed and
    were begun again; wrong: whose result was not the mean of those who took part; peak_mb: of memory."""
    host, port = coordinator
    others = [(str(a), int(b)) for a, b in backups]
    security = Security.of(tls_of(Path(credentials))) if credentials else None
    agent = Agent((host, port), node, listen=(address, 0), backups=others, security=security)
    agent.wait_joined(60.0)
    channel.send("ready")
    channel.receive()
    over = threading.Event()

    def end() -> None:
        channel.receive()
        over.set()
        agent.close()

    threading.Thread(target=end, daemon=True).start()
    found: dict[str, Any] = {"rounds": 0, "alone": 0, "given_up": 0, "wrong": 0, "copies": 0}
    seconds = []
    tensor = brought(site, values)
    unit = brought(0, values)
    while not over.is_set():
        tensor[:] = brought(site, values)
        began = time.monotonic()
        try:
            done = agent.synchronise(tensor)
        except PeerLost:
            found["given_up"] += 1
            continue
        except OverlayError:
            break
        who = [sites[name] + 1 for name in done.participants]
        found["rounds" if done.task else "alone"] += 1
        found["wrong"] += not np.array_equal(tensor, unit * np.float32(sum(who)) * np.float32(1 / len(who)))
        for copy in agent.copies():
            found["copies"] += 1
            found["wrong"] += not np.array_equal(copy.values, brought(sites[copy.sender], values))
        seconds.append(time.monotonic() - began)
        over.wait(PAUSE_SECONDS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"node": node, **found, "slowest_s": max(seconds, default=0.0), "peak_mb": peak, **agent.statistics()}
