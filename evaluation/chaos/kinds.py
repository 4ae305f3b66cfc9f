"""The kinds of chaos for a network and its jobs: one entry a kind, with how long it lasts and what it must not meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Where = Literal["link", "switch", "edge", "worker", "ps", "host", "controller", "network"]


@dataclass(frozen=True)
class Kind:
    """One kind of event.

    Attributes:
        where: the kind of its target (edge is a switch that has a host of a job; host is one of a job's hosts).
        seconds: the shortest and the longest that it lasts.
        waits: no job that needs the target can go on meanwhile: outages are counted from when the target is back.
        meaning: description for --help and the docs.
    """

    where: Where
    seconds: tuple[float, float]
    waits: bool
    meaning: str


KINDS: dict[str, Kind] = {
    "link": Kind("link", (2.0, 8.0), False, "a link between two switches loses everything, in both directions"),
    "switch": Kind("switch", (2.0, 8.0), False, "a switch that has no host is off, and comes back without its memory"),
    "edge": Kind("edge", (1.0, 4.0), True, "a switch with hosts of a job is off, and comes back without its memory"),
    "reboot": Kind("edge", (0.0, 0.0), False, "a switch with hosts of a job forgets everything, at once"),
    "burst": Kind("network", (1.0, 5.0), False, "all links lose 30 % of all frames"),
    "blackout": Kind("network", (1.0, 1.0), True, "all links lose all frames"),
    "ps": Kind("ps", (3.0, 8.0), False, "a parameter server is killed (SIGKILL) and started again"),
    "worker": Kind("worker", (1.0, 5.0), True, "a worker is killed (SIGKILL) and started again"),
    "controller": Kind("controller", (2.0, 8.0), False, "the controller is killed (SIGKILL) and started again"),
    "stop-ps": Kind("ps", (1.0, 5.0), False, "a parameter server is stopped (SIGSTOP) and goes on"),
    "stop-worker": Kind("worker", (1.0, 5.0), True, "a worker is stopped (SIGSTOP) and goes on"),
    "stop-controller": Kind("controller", (1.0, 8.0), False, "the controller is stopped (SIGSTOP) and goes on"),
    "stop-agents": Kind("network", (3.0, 3.0), True, "all agents of all jobs are stopped (SIGSTOP) and go on"),
    "late": Kind("worker", (5.0, 15.0), True, "a rank submits its operations so much later than the others"),
    "forge": Kind(
        "host", (3.0, 6.0), False,
        "another user without capabilities sends to the group on a job's host, with the job's ports, labels, epoch and "
        "sequence numbers: as its worker, as a flow to its parameter server, and as results",
    ),
    "flip": Kind(
        "edge", (3.0, 6.0), False,
        "a switch flips a bit of one in 100 of the UDP frames that it sends, in our header or values, and their "
        "checksum is gone",
    ),
    "memory": Kind("edge", (2.0, 4.0), False, "a switch flips bits in the partial sums of its first 256 slots"),
    "clock": Kind(
        "controller", (4.0, 8.0), False,
        "the controller's clock jumps by up to ten years, ahead or back, and the controller is killed and started "
        "again; then the same with the right clock",
    ),
    "disk": Kind(
        "controller", (4.0, 8.0), False,
        "the disk with the controller's state is full, and it is asked to plan again",
    ),
    "interface": Kind("host", (0.0, 0.0), False, "a host's data interface is made again, with its name and address"),
    "fork": Kind("worker", (2.0, 5.0), False, "a worker forks two children, as a DataLoader does, which end later"),
}  # fmt: skip

APART: tuple[frozenset[str], ...] = (
    frozenset({"controller", "stop-controller", "clock"}),
    frozenset({"link", "burst", "blackout"}),
    frozenset({"ps", "stop-ps"}),
    *(frozenset({"stop-agents", other}) for other in ("ps", "worker", "stop-ps", "stop-worker", "late", "fork")),
)
"""Sets of kinds of which two events never overlap: they would undo each other, or leave a job no way to go on."""


NEEDS_CONTROLLER = frozenset({"link", "switch", "edge", "reboot", "ps", "stop-ps", "worker"})
"""Kinds after which only a controller mends the network: it finds another way, or writes a switch's entries again."""
AWAY = frozenset({"controller", "stop-controller", "clock"})
"""Kinds of events during which no controller acts."""
NEEDS_TRAFFIC = frozenset({"flip", "burst"})
"""Kinds whose effect is not seen while a job only waits."""


def compatible(a: str, b: str) -> bool:
    """Return whether events of these two kinds may overlap."""
    if any(one in NEEDS_TRAFFIC and KINDS[other].waits for one, other in ((a, b), (b, a))):
        return False
    return not any(a in group and b in group for group in APART)


def described() -> str:
    """Return all kinds in words, a line each."""
    return "\n".join(f"  {name:16}{kind.meaning}" for name, kind in KINDS.items())
