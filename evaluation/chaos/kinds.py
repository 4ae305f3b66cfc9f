"""The kinds of chaos for a network and its jobs: one entry a kind, with how long it lasts and what it must not meet."""

from __future__ import annotations

from evaluation.chaos.events import Kind

KINDS: dict[str, Kind] = {
    "link": Kind(
        "link", (2.0, 8.0), False, "a link between two switches loses everything, in both directions",
        needs_controller=True,
    ),
    "switch": Kind(
        "switch", (2.0, 8.0), False, "a switch that has no host is off, and comes back without its memory",
        needs_controller=True,
    ),
    "edge": Kind(
        "edge", (1.0, 4.0), True, "a switch with hosts of a job is off, and comes back without its memory",
        needs_controller=True,
    ),
    "reboot": Kind(
        "edge", (0.0, 0.0), False, "a switch with hosts of a job forgets everything, at once",
        needs_controller=True,
    ),
    "burst": Kind("network", (1.0, 5.0), False, "all links lose 30 % of all frames"),
    "blackout": Kind("network", (1.0, 1.0), True, "all links lose all frames"),
    "ps": Kind(
        "ps", (3.0, 8.0), False, "a parameter server is killed (SIGKILL) and started again",
        needs_controller=True,
    ),
    "worker": Kind("worker", (1.0, 5.0), True, "a worker is killed (SIGKILL) and started again", needs_controller=True),
    "controller": Kind(
        "controller", (2.0, 8.0), False, "the controller is killed (SIGKILL) and started again",
        stops_controller=True, lane="controller",
    ),
    "stop-ps": Kind(
        "ps", (1.0, 5.0), False, "a parameter server is stopped (SIGSTOP) and goes on",
        needs_controller=True,
    ),
    "stop-worker": Kind("worker", (1.0, 5.0), True, "a worker is stopped (SIGSTOP) and goes on"),
    "stop-controller": Kind(
        "controller", (1.0, 8.0), False, "the controller is stopped (SIGSTOP) and goes on",
        stops_controller=True, lane="controller",
    ),
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
        stops_controller=True, lane="controller",
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

NEEDS_TRAFFIC = frozenset({"flip", "burst"})
"""Kinds whose effect is not seen while a job only waits."""


def compatible(a: str, b: str) -> bool:
    """Return whether events of these two kinds may overlap."""
    if any(one in NEEDS_TRAFFIC and KINDS[other].waits for one, other in ((a, b), (b, a))):
        return False
    return not any(a in group and b in group for group in APART)
