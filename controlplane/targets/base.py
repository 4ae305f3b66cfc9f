"""What every switch target has in common: changes between two rule sets, and the interface of one switch.

A target knows one switch. It installs by difference: it reads what is there, computes the changes (pure functions
here), applies them, and reads back. `controlplane/targets/fabric.py` does this for all switches at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from controlplane.planner.frontpanel import FrontPanelPort
from controlplane.planner.rules import Aggregate, Bridge, Forward, LabelEntry, MulticastGroup, Replicate, Route, RuleSet

Item = LabelEntry | MulticastGroup | Route | Bridge | FrontPanelPort

RPC_SECONDS = 20.0
"""Deadline of one read or write. bmv2 takes about 0.1 ms for an entry; a batch has a few hundred."""


class TargetError(Exception):
    """A switch could not be reached or did not do what it was told. The message names the switch and what to do."""


class NotPrimary(TargetError):
    """Another controller holds the switch."""


class Operation(Enum):
    INSERT = "insert"
    MODIFY = "modify"
    DELETE = "delete"


@dataclass(frozen=True)
class Change:
    """One step from what a switch holds to what it shall hold."""

    operation: Operation
    item: Item

    def __str__(self) -> str:
        return f"{self.operation.value} {describe(self.item)}"


@dataclass(frozen=True)
class UpdateFailure:
    """One change that a switch refused: the change (or what was written for it, in words), the canonical gRPC code and
    the switch's message."""

    change: Change | str
    code: str
    message: str


class InstallError(TargetError):
    """Changes that one switch refused."""

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
    """What a switch counted: packets per verdict, and (packets, bytes) per (ingress port, label)."""

    verdicts: dict[str, int]
    labels: dict[tuple[int, int], tuple[int, int]]


class SwitchTarget(Protocol):
    """One switch. Methods raise TargetError; `timeout` is in seconds and covers the whole call.

    on_lost: called from another thread, with the reason, when the connection ends or another controller takes over.
    polite: leave the switch to a controller that has it, at the first `connect` (else the one that came last has it).
    """

    name: str
    address: str
    on_lost: Callable[[str], None]
    polite: bool

    @property
    def alive(self) -> bool:
        """Whether the connection stands and the switch takes our writes."""
        ...

    @property
    def demoted(self) -> bool:
        """Whether another controller took the switch over."""
        ...

    def connect(self, timeout: float) -> None:
        """Connect and become the switch's primary controller. Raises NotPrimary when another one is."""

    def runs_program(self, timeout: float = RPC_SECONDS) -> bool:
        """Whether the switch runs our program."""
        ...

    def load_pipeline(self) -> bool:
        """Make the switch run our program. True if it ran something else before (its tables are empty now)."""
        ...

    def read(self) -> RuleSet:
        """What is installed now."""
        ...

    def apply(self, changes: list[Change]) -> None:
        """Apply changes in order. On InstallError some of them may be in place: the caller restores."""

    def read_verdicts(self) -> dict[str, int]:
        """Packets per verdict."""
        ...

    def read_counters(self) -> Counters:
        """Verdicts, and a counter for every label: as many as entries."""
        ...

    def read_ports(self, timeout: float) -> dict[int, bool] | None:
        """Of the topology's ports, by number: whether each is up. None: the protocol has no state of ports."""
        ...

    def close(self) -> None: ...


def empty(switch: str) -> RuleSet:
    """A rule set with nothing in it."""
    return RuleSet(switch=switch, labels=(), groups=(), routes=())


def difference(current: RuleSet, wanted: RuleSet) -> list[Change]:
    """Changes that turn `current` into `wanted`, in an order that never leaves an entry pointing at a missing group.

    Ports and groups come before the entries that use them and go after; everything new is there before anything old
    goes, so a change of plan (new labels beside old ones) does not interrupt the flows that both have.
    """
    ports_now = {port.name: port for port in current.ports}
    ports_then = {port.name: port for port in wanted.ports}
    groups_now = {group.group: group for group in current.groups}
    groups_then = {group.group: group for group in wanted.groups}
    labels_now = {(entry.ingress_port, entry.label): entry for entry in current.labels}
    labels_then = {(entry.ingress_port, entry.label): entry for entry in wanted.labels}
    routes_now = {(route.address, route.prefix_length): route for route in current.routes}
    routes_then = {(route.address, route.prefix_length): route for route in wanted.routes}
    bridge_now = {entry.key: entry for entry in current.bridge}
    bridge_then = {entry.key: entry for entry in wanted.bridge}

    arriving: list[Change] = []
    leaving: list[Change] = []
    for now, then in (
        (ports_now, ports_then),
        (groups_now, groups_then),
        (labels_now, labels_then),
        (routes_now, routes_then),
        (bridge_now, bridge_then),
    ):
        arriving += _arriving(now, then)
        leaving = [Change(Operation.DELETE, item) for key, item in now.items() if key not in then] + leaving
    return arriving + leaving


def _arriving(now: dict, then: dict) -> list[Change]:  # type: ignore[type-arg]
    changes = []
    for key, item in then.items():
        if key not in now:
            changes.append(Change(Operation.INSERT, item))
        elif _normal(now[key]) != _normal(item):
            changes.append(Change(Operation.MODIFY, item))
    return changes


def _normal(item: Item) -> Item:
    # A switch may give a group's ports back in another order.
    if isinstance(item, MulticastGroup):
        return MulticastGroup(item.group, tuple(sorted(item.ports)))
    return item


def describe(item: Item) -> str:
    """An entry in one line, as `--dry-run` and error messages print it."""
    if isinstance(item, MulticastGroup):
        return f"multicast group {item.group} -> ports {', '.join(map(str, item.ports))}"
    if isinstance(item, FrontPanelPort):
        return f"port {item}"
    if isinstance(item, Route):
        return f"ipv4_table: {item.address}/{item.prefix_length} -> route(mac={item.mac}, port={item.port})"
    if isinstance(item, Bridge):
        port = "any port" if item.ingress_port is None else f"port {item.ingress_port}"
        action = "discard()" if item.action is None else _describe_action(item.action)
        return f"bridge_table: {port}, {item.mac} under {item.mask}, priority {item.priority} -> {action}"
    return f"label_table: port {item.ingress_port}, label {item.label} -> {_describe_action(item.action)}"


def _describe_action(action: Forward | Replicate | Aggregate) -> str:
    if isinstance(action, Forward):
        return f"forward(port={action.port})"
    if isinstance(action, Replicate):
        return f"replicate(group={action.group})"
    return (
        f"aggregate(slots {action.slot_base}..{action.slot_base + action.slot_mask}, flow=0x{action.flow:x}, "
        f"everyone=0x{action.everyone:x}, next_label={action.next_label}, partial_label={action.partial_label}, "
        f"port={action.port})"
    )
