"""The interface of one switch, which every target implements, and the changes that turn one rule set into another.

A target knows one switch. It installs by difference: it reads what is installed, computes the changes (by pure
functions in this module), applies them, and reads back. `controlplane/targets/fabric.py` does this for all switches at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from controlplane.common.rpc.tls import Tls
from controlplane.planner.entries import KINDS, Item, MulticastGroup, RuleSet

RPC_SECONDS = 20.0
"""Deadline of one read or write, in seconds. bmv2 takes about 0.1 ms for an entry; a batch has a few hundred
entries."""


@dataclass(frozen=True)
class SwitchAddress:
    """The address of a switch's P4Runtime (or BRI) server, the device's number there, and the TLS settings; without
    these, connections are not encrypted."""

    name: str
    address: str
    device_id: int
    tls: Tls | None = None

    def __str__(self) -> str:
        return f"switch {self.name} ({self.address}, device {self.device_id})"


class TargetError(Exception):
    """A switch could not be reached or did not do what it was told; the message names the switch and what to do."""


def timed_out(problem: str) -> bool:
    """Return whether a problem, in gRPC's or a target's words, is that no answer came in time. Then the switch, the
    network to it, or this controller's own machine may be slow; a process that has ended refuses or cuts off
    connections at once."""
    words = problem.lower()
    return any(each in words for each in ("deadline", "timeout", "timed out", "not answer"))


class NotPrimary(TargetError):
    """Another controller is the switch's primary controller."""


class Operation(Enum):
    INSERT = "insert"
    MODIFY = "modify"
    DELETE = "delete"


@dataclass(frozen=True)
class Change:
    """A step that brings the entries of a switch nearer to those that it shall hold."""

    operation: Operation
    item: Item

    def __str__(self) -> str:
        return f"{self.operation.value} {self.item}"


@dataclass(frozen=True)
class UpdateFailure:
    """A change that a switch refused (or words for it), the canonical gRPC code, and the switch's message."""

    change: Change | str
    code: str
    message: str


class InstallError(TargetError):
    """A switch refused some of the changes."""

    def __init__(self, switch: str, failures: list[UpdateFailure], attempted: int) -> None:
        self.switch = switch
        self.failures = failures
        lines = [f"switch {switch} refused {len(failures)} of {attempted} changes:"]
        lines += [f"  {failure.change}: {failure.code}: {failure.message or 'no message'}" for failure in failures[:8]]
        if len(failures) > 8:
            lines.append(f"  ... and {len(failures) - 8} more")
        super().__init__("\n".join(lines))


@dataclass(frozen=True)
class Counters:
    """Counters of a switch: packets per verdict, and (packets, bytes) per (ingress port, label)."""

    verdicts: dict[str, int]
    labels: dict[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Traffic:
    """Bytes that a switch has received and sent since it started, by port of the topology. They are those of all
    packets where `whole` is true, and otherwise those of all packets that are not aggregated. What a switch sends to
    several ports at once may be missing."""

    ports: dict[int, tuple[int, int]]
    whole: bool


class SwitchTarget(Protocol):
    """One switch. Methods raise TargetError; `timeout` is in seconds and covers the whole call.

    Attributes:
        on_lost: called from another thread, with the reason, when the connection ends or another controller takes over.
        polite: the first `connect` does not take the switch from another controller; otherwise the last one to connect
            gets it.
    """

    name: str
    address: str
    on_lost: Callable[[str], None]
    polite: bool

    @property
    def alive(self) -> bool:
        """Whether the connection is open and the switch accepts this controller's writes."""
        ...

    @property
    def demoted(self) -> bool:
        """Whether another controller has taken the switch over."""
        ...

    def connect(self, timeout: float) -> None:
        """Connect and become the switch's primary controller. Raise NotPrimary where another controller is."""

    def runs_program(self, timeout: float = RPC_SECONDS) -> bool:
        """Return whether the switch runs our program."""
        ...

    def load_pipeline(self) -> bool:
        """Make the switch run our program. Return whether it ran another one before; its tables are empty then."""
        ...

    def read(self) -> RuleSet:
        """Return the rule set that is installed now."""
        ...

    def apply(self, changes: list[Change]) -> None:
        """Apply changes in order. After an InstallError some of them may be installed, and the caller restores the
        switch."""

    def clear_slots(self, slots: Collection[int]) -> int:
        """Set all registers of these slots, to which no entry leads any more, to 0. Return the number of cells: 0 where
        the protocol cannot write registers (`Kind.keeps_registers`)."""
        ...

    def read_verdicts(self, timeout: float = RPC_SECONDS) -> dict[str, int]:
        """Return the number of packets per verdict."""
        ...

    def read_counters(self, timeout: float = RPC_SECONDS) -> Counters:
        """Return the verdicts, and a counter for every label entry."""
        ...

    def read_traffic(self) -> Traffic | None:
        """Return what passed each port; None where neither the program nor the protocol counts it."""
        ...

    def read_ports(self, timeout: float) -> dict[int, bool] | None:
        """Return whether each of the topology's ports is up, by number; None where the protocol does not tell."""
        ...

    def close(self) -> None: ...


def empty(switch: str) -> RuleSet:
    """Return a rule set with no entries."""
    return RuleSet(switch)


def difference(current: RuleSet, wanted: RuleSet) -> list[Change]:
    """Return the changes that turn `current` into `wanted`, in an order in which no entry ever points at a missing
    group.

    Ports and groups are inserted before the entries that use them, and deleted after them. All inserts precede all
    deletes, so that a new plan (new labels beside old ones) does not interrupt flows that both plans have.
    """
    arriving: list[Change] = []
    leaving: list[Change] = []
    for kind in KINDS:
        now, then = current.by_key(kind), wanted.by_key(kind)
        arriving += _arriving(now, then)
        leaving = [Change(Operation.DELETE, item) for key, item in now.items() if key not in then] + leaving
    return arriving + leaving


def _arriving(now: Mapping[Hashable, Item], then: Mapping[Hashable, Item]) -> list[Change]:
    changes = []
    for key, item in then.items():
        if key not in now:
            changes.append(Change(Operation.INSERT, item))
        elif _normal(now[key]) != _normal(item):
            changes.append(Change(Operation.MODIFY, item))
    return changes


def _normal(item: Item) -> Item:
    # A switch may return a group's ports in another order, so they are compared sorted.
    if isinstance(item, MulticastGroup):
        return MulticastGroup(item.group, tuple(sorted(item.ports)))
    return item
