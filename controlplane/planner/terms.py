"""Terms of a job, the promises that it gets where it shares a network with others; and quotas, limits on what all jobs
of one tenant together may have.

A tenant is a name: that of a person or service with a certificate or token of the role `tenant`, or the one that an
operator (or Slurm) gives with a job.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

EVERYBODY_ELSE = "*"
"""Name, in a file of quotas, for the tenants that the file does not name."""
LONGEST_NAME = 64
"""Most letters of a tenant's name."""


@dataclass(frozen=True)
class Terms:
    """Terms of a job. Raises ValueError where one cannot be.

    Attributes:
        weight: Rates in proportion to the jobs' weights count as fair.
        guarantee_mbps: The least rate at which a worker may send, in Mbit/s; 0 guarantees nothing.
        priority: Jobs of a higher priority come first.
        tenant: Name of the tenant that the job belongs to, for whose quota it counts; "" for none.
    """

    weight: float = 1.0
    guarantee_mbps: float = 0.0
    priority: int = 0
    tenant: str = ""

    def __post_init__(self) -> None:
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ValueError(f"a weight is a number above 0, got {self.weight}")
        if not (self.guarantee_mbps >= 0 and math.isfinite(self.guarantee_mbps)):
            raise ValueError(f"a guaranteed rate is a number of Mbit/s, got {self.guarantee_mbps}")
        if len(self.tenant) > LONGEST_NAME or not self.tenant.isprintable() or len(self.tenant.split()) > 1:
            raise ValueError(f"a tenant's name is a word of at most {LONGEST_NAME} letters, got {self.tenant!r}")

    @property
    def usual(self) -> bool:
        """Whether the job is promised nothing that other jobs are not promised, too."""
        return replace(self, tenant="") == USUAL

    def __str__(self) -> str:
        words = [
            f"tenant {self.tenant}" if self.tenant else "",
            f"weight {self.weight:g}" if self.weight != 1 else "",
            f"{self.guarantee_mbps:g} Mbit/s guaranteed" if self.guarantee_mbps else "",
            f"priority {self.priority}" if self.priority else "",
        ]
        return ", ".join(filter(None, words))


USUAL = Terms()


LIMITS = ("jobs", "rate_mbps", "entries", "slots", "weight", "priority")
"""The attributes of a quota that are numbers."""


@dataclass(frozen=True)
class Quota:
    """Quota of all jobs of a tenant together. Raises ValueError where a value is no number, or not above 0 where it
    must be.

    Attributes:
        rate_mbps: The sum of the jobs' rates (what a worker of each sends), in Mbit/s.
        entries: Entries of the label table of any one switch.
        slots: Slots of any one switch.
        weight: The highest weight that one job may ask for.
        priority: The highest priority that one job may ask for.
        nodes: The only servers that the jobs may use; None for all except `foreign`.
        foreign: Servers that belong to other tenants.
        known: Whether the quotas cover the tenant; if not, it may have no job.
    """

    jobs: float = math.inf
    rate_mbps: float = math.inf
    entries: float = math.inf
    slots: float = math.inf
    weight: float = math.inf
    priority: float = math.inf
    nodes: frozenset[str] | None = None
    foreign: frozenset[str] = frozenset()
    known: bool = True

    def __post_init__(self) -> None:
        for name in LIMITS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
                raise ValueError(f"{name} is a number, got {value!r}")
            if value <= 0 and name in ("rate_mbps", "weight"):
                raise ValueError(f"{name} is above 0, got {value}")

    def __str__(self) -> str:
        words = [
            f"{self.jobs:g} jobs" if self.jobs < math.inf else "",
            f"{self.rate_mbps:g} Mbit/s" if self.rate_mbps < math.inf else "",
            f"{self.entries:g} entries" if self.entries < math.inf else "",
            f"{self.slots:g} slots" if self.slots < math.inf else "",
            f"weight {self.weight:g}" if self.weight < math.inf else "",
            f"priority {self.priority:g}" if self.priority < math.inf else "",
            f"{len(self.nodes)} nodes" if self.nodes is not None else "",
        ]
        return ", ".join(filter(None, words))

    def allows(self, node: str) -> bool:
        """Return whether the tenant's jobs may use this server."""
        return node not in self.foreign if self.nodes is None else node in self.nodes

    def refusal(self, wanted: Terms, others: Iterable[Terms]) -> str:
        """Return why one more job with these terms is too much beside the tenant's others; "" if it is not."""
        if not self.known:
            return f"the quotas name neither this tenant nor {EVERYBODY_ELSE!r}: add it, or name another tenant"
        others = list(others)
        if len(others) >= self.jobs:
            return f"it has {len(others)} jobs and may have {self.jobs:g} at a time: remove one first"
        for what, asked, most in (
            ("a weight", wanted.weight, self.weight),
            ("a priority", wanted.priority, self.priority),
            ("guarantees, Mbit/s,", wanted.guarantee_mbps + sum(one.guarantee_mbps for one in others), self.rate_mbps),
        ):
            if asked > most:
                return f"it may have {what} of {most:g} at most, and this would be {asked:g}"
        return ""

    def over(self, entries: Mapping[str, int], slots: Mapping[str, int]) -> str:
        """Return why these entries and slots, given by switch, are more than the tenant may have; "" if they are
        not.
        """
        for what, taken, most in (("entries", entries, self.entries), ("slots", slots, self.slots)):
            switch = max(taken, key=lambda name: taken[name], default="")
            if switch and taken[switch] > most:
                return f"its jobs would have {taken[switch]} {what} of {switch}, and may have {most:g} of a switch"
        return ""


UNLIMITED = Quota()
UNKNOWN = Quota(known=False)


def parse_quotas(text: str, servers: Collection[str] | None = None) -> dict[str, Quota]:
    """Return the quotas by tenant of a JSON text such as {"physics": {"jobs": 4, "nodes": ["W1", "W2"]}, "*":
    {"priority": 0}}. Raise ValueError where it is none, or names other nodes than `servers` (None: any).
    """
    given = json.loads(text)
    if not isinstance(given, dict):
        raise ValueError('quotas are an object by tenant, like {"physics": {"jobs": 4}, "*": {"rate_mbps": 10}}')
    known = [*LIMITS, "nodes"]
    quotas = {}
    for tenant, limits in given.items():
        if not isinstance(limits, dict):
            raise ValueError(f"the quota of {tenant!r} is an object with {', '.join(known)}")
        unknown = [name for name in limits if name not in known]
        if unknown:
            raise ValueError(f"the quota of {tenant!r} has {unknown[0]!r}; there are {', '.join(known)}")
        try:
            nodes = _nodes(limits["nodes"], servers) if "nodes" in limits else None
            quotas[tenant] = Quota(**{**limits, "nodes": nodes})
        except ValueError as error:
            raise ValueError(f"the quota of {tenant!r}: {error}") from None
    return quotas


def _nodes(given: object, servers: Collection[str] | None) -> frozenset[str]:
    if not isinstance(given, list) or not all(isinstance(node, str) for node in given):
        raise ValueError(f"nodes is a list of servers, got {given!r}")
    unknown = [node for node in given if servers is not None and node not in servers]
    if unknown:
        raise ValueError(f"nodes has {unknown[0]!r}, and the topology has no such server")
    return frozenset(given)


def quota_of(quotas: Mapping[str, Quota], tenant: str) -> Quota:
    """Return a tenant's quota: its own, else that of everybody else, else one without jobs. A job without a tenant (an
    empty name) has an unlimited one, and so have all jobs without any quotas.
    """
    if not tenant or not quotas:
        return UNLIMITED
    own = tenant if tenant in quotas else EVERYBODY_ELSE
    foreign = frozenset[str]().union(*(quota.nodes or () for name, quota in quotas.items() if name != own))
    return replace(quotas.get(own, UNKNOWN), foreign=foreign)
