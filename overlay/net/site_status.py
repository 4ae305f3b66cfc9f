"""Status of a coordinator of sites, for people and for programs (`inart site status --json`, the page, /metrics)."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Mapping
from typing import Any

from controlplane.planner.strategies.wan.site_rounds import SiteRounds
from overlay.core.addresses import written
from overlay.core.site_network import SiteNetwork
from overlay.net.members import Members

EVENTS = 200
"""Number of the coordinator's latest lines of log that the status shows."""


class Record:
    """Record of the rounds of a coordinator.

    Attributes:
        events: (time, line) of the coordinator's latest lines of log.
        finished: the last round that was done.
        counts: numbers of rounds done, of sites lost, and of each problem of a site's change.
        busy_seconds: time in which rounds were under way, in all.
    """

    def __init__(self) -> None:
        self.events: deque[tuple[float, str]] = deque(maxlen=EVENTS)
        self.finished: dict[str, Any] = {}
        self.counts: Counter[str] = Counter()
        self.busy_seconds = 0.0

    def add(self, line: str) -> None:
        """Take note of a line of the coordinator's log."""
        self.events.append((time.time(), line))


def status_of(
    policy: SiteRounds,
    network: SiteNetwork,
    members: Members,
    *,
    states: Mapping[str, tuple[int, str]],
    asking: Collection[str],
    measuring: bool,
    record: Record,
) -> dict[str, Any]:
    """Return the status as an object of JSON.

    Args:
        policy: the policy of rounds.
        network: rates between sites.
        members: the sites that are connected.
        states: for each site, the round before which its state is, and the state's digest.
        asking: sites that wait to be told whose state to take.
        measuring: whether a survey is under way.
        record: the record of past rounds.
    """
    sites = {
        node: {
            "address": written(member.address),
            "takes_part": node in policy.active,
            "round": states.get(node, (None, ""))[0],
            "state": states.get(node, (0, ""))[1][:12],
        }
        for node, member in members.items()
    }
    under_way = [
        {
            "round": run.task.round,
            "op": run.task.op,
            "sites": len(run.task.participants),
            "without_result": sorted(run.waiting),
        }
        for run in policy.running.values()
    ]
    return {
        "sites": sites,
        "round": policy.round,
        "begun": policy.started,
        "waits_for_sites": max(0, policy.sites - len(asking)) if not policy.started else 0,
        "waits_for": policy.missing(),
        "measuring": measuring,
        **network.status(),
        "last": record.finished,
        "under_way": under_way,
        "rounds_done": record.counts["rounds"],
        "busy_seconds": record.busy_seconds,
        "sites_lost": record.counts["lost"],
        "changes_not_finite": record.counts["not finite"],
        "changes_bounded": record.counts["bounded"],
        "events": [{"at": at, "line": line} for at, line in record.events],
    }
