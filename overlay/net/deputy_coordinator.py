"""The coordinator that runs in an agent while the other one does not answer (deputy.py). It makes plans, which needs
much more than an agent does: an agent imports this file when it becomes a deputy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from controlplane.planner.strategies.wan.site_rounds import SiteRounds
from overlay.core.site_network import SiteNetwork
from overlay.core.site_quorum import DeputyQuorum, History
from overlay.net.coordinator import Coordinator
from overlay.net.membership import Address
from overlay.net.site_desk import SiteDesk
from overlay.net.tls import Security


class Deputy(Coordinator):
    """A coordinator in an agent's loop, to which the agent passes its connections."""

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _start(self) -> None:
        self._watching = asyncio.ensure_future(self._watch())

    def resign(self) -> None:
        """Act no more; the members look for another coordinator."""
        self._watching.cancel()
        self.leadership.resign()


def make(
    at: Address, history: History, known: dict[str, Any], security: Security | None, log: Callable[[str], None]
) -> Deputy:
    """Return a deputy for the sites of this history.

    Args:
        at: address at which the agent listens.
        history: the site's own history of rounds.
        known: what the coordinator has told of the network (`SiteDesk`).
        security: TLS; None for plaintext.
        log: gets each line of log.
    """
    network = SiteNetwork(int(known["chunk_values"]), int(known["mtu"]))
    quorum = DeputyQuorum(history)
    policy = SiteRounds(
        network, sites=len(quorum.sites), broken=network.broken, allows=quorum.allows, did=quorum.did,
    )  # fmt: skip
    for site in quorum.sites:
        policy.admit(site)
    desk = SiteDesk(policy, network, probe_seconds=0.0, quorum=quorum, log=log)
    desk.told(known)
    return Deputy(policy, *at, desk=desk, quorum=quorum, security=security, log=desk.log, finished=desk.task_done)
