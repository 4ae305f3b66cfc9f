"""The function of a site's process (see `topologies.zygote`), an agent that averages values in rounds and checks them
all.
"""

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
"""Pause in seconds between rounds, in which a real site would compute."""


def brought(site: int, values: int) -> np.ndarray:
    """Return a site's values: whole numbers, so that sums are exact in any order and tell which sites are in them."""
    return ((np.arange(values) % 97 + 1) * (site + 1)).astype(np.float32)


def synchronise(
    channel: Channel, *, coordinator: list[Any], node: str, address: str,
    sites: dict[str, int], values: int, credentials: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Synchronise in rounds until a message comes, and return counts by name.

    rounds: synchronisations with others.
    alone: rounds without others.
    given_up: rounds that failed and were begun again.
    wrong: rounds whose result was not the mean of the participants' values.
    peak_mb: peak memory in MB.
    """
    host, port = coordinator
    site = sites[node]
    security = Security.of(tls_of(Path(credentials))) if credentials else None
    agent = Agent((host, port), node, listen=(address, 0), security=security)
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
