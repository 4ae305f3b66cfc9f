"""The process of an emulated site that coordinates the sites, as one of them would in earnest: messages to the
coordinator travel over the emulated links, like those of PCCL's peers to its master.
"""

from __future__ import annotations

import re
from urllib.request import urlopen

from controlplane.planner.strategies.wan.site_rounds import SiteRounds
from overlay.core.site_network import SiteNetwork
from overlay.sites.command import SiteSettings, make_coordinator
from topologies.zygote import Channel

PORT = 9700
BUSY = r"^inart_sites_busy_seconds_total (\S+)$"
CHUNK_VALUES = 1024


def coordinate(channel: Channel, *, address: str, sites: int, probe_seconds: float) -> None:
    """Coordinate until the process is ended. Answer each message with whether the sites have measured their network,
    and for how many seconds rounds have been on it.
    """
    with make_coordinator(
        address, PORT, SiteSettings(sites, probe_seconds=probe_seconds), SiteNetwork(CHUNK_VALUES),
        log=lambda line: print(line, flush=True),
    ) as coordinator:  # fmt: skip
        channel.send("ready")
        while True:
            channel.receive()
            measured = isinstance(coordinator.policy, SiteRounds) and not coordinator.policy.held
            with urlopen(f"http://{address}:{PORT}/metrics") as answer:
                busy = sum(map(float, re.findall(BUSY, answer.read().decode(), re.M)))
            channel.send({"measured": measured, "busy": busy})
