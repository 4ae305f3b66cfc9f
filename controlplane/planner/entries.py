"""Entries that a switch holds, whatever protocol carries them there: entries of tables, multicast groups, ports.

Every class of entries has `kind` (the field of `RuleSet` that holds such entries), `key` (which tells an entry from
others of its kind) and `str()` (the line that dry runs and errors print). A new kind of entry needs a class here, a
field in `RuleSet`, and in each target the code that writes it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from controlplane.planner.frontpanel import FrontPanelPort


@dataclass(frozen=True)
class Forward:
    """Action of an entry: send the packet out of this port of the switch."""

    port: int

    def __str__(self) -> str:
        return f"forward(port={self.port})"


@dataclass(frozen=True)
class Replicate:
    """Action of an entry: send a copy of the packet out of each port of this multicast group of the switch."""

    group: int

    def __str__(self) -> str:
        return f"replicate(group={self.group})"


@dataclass(frozen=True)
class Aggregate:
    """Action of an entry: add the packet's values into a slot of this switch, which is the flow's aggregation point.
    The slot is slot_base + (sequence number & slot_mask).

    Attributes:
        slot_base: First slot of the tree on this switch.
        slot_mask: Number of the tree's slots (a power of two) less one.
        flow: The flow's own bit among those of the flows that are added here.
        everyone: The bits of all flows that are added here; a sum of all of them is complete.
        next_label: Label under which complete sums leave.
        partial_label: Label under which all other packets leave.
        port: Port by which both leave.
    """

    slot_base: int
    slot_mask: int
    flow: int
    everyone: int
    next_label: int
    partial_label: int
    port: int

    def __str__(self) -> str:
        return (
            f"aggregate(slots {self.slot_base}..{self.slot_base + self.slot_mask}, flow=0x{self.flow:x}, "
            f"everyone=0x{self.everyone:x}, next_label={self.next_label}, partial_label={self.partial_label}, "
            f"port={self.port})"
        )


@dataclass(frozen=True)
class LabelEntry:
    """Entry for packets with this label that come in at this port (docs/architecture.md, section 2)."""

    kind: ClassVar = "labels"
    ingress_port: int
    label: int
    action: Forward | Replicate | Aggregate

    @property
    def key(self) -> tuple[int, int]:
        return self.ingress_port, self.label

    def __str__(self) -> str:
        return f"label_table: port {self.ingress_port}, label {self.label} -> {self.action}"


@dataclass(frozen=True)
class MulticastGroup:
    """A multicast group of a switch: its number, and the ports that get a copy each."""

    kind: ClassVar = "groups"
    group: int
    ports: tuple[int, ...]

    @property
    def key(self) -> int:
        return self.group

    def __str__(self) -> str:
        return f"multicast group {self.group} -> ports {', '.join(map(str, self.ports))}"


@dataclass(frozen=True)
class Route:
    """IPv4 route: packets to address/prefix_length get the destination address `mac` and leave by `port`."""

    kind: ClassVar = "routes"
    address: str
    prefix_length: int
    mac: str
    port: int

    @property
    def key(self) -> tuple[str, int]:
        return self.address, self.prefix_length

    def __str__(self) -> str:
        return f"ipv4_table: {self.address}/{self.prefix_length} -> route(mac={self.mac}, port={self.port})"


@dataclass(frozen=True)
class Bridge:
    """Entry for frames that are neither InArt's nor IPv4 to a host: those that come from `ingress_port` (None stands
    for any port) to an address that equals `mac` in the bits of `mask`. Of several entries that match, one with the
    highest priority counts. An `action` of None drops the frame.
    """

    kind: ClassVar = "bridge"
    priority: int
    ingress_port: int | None
    mac: str
    mask: str
    action: Forward | Replicate | None

    @property
    def key(self) -> tuple[int, int | None, str, str]:
        return self.priority, self.ingress_port, self.mac, self.mask

    def __str__(self) -> str:
        port = "any port" if self.ingress_port is None else f"port {self.ingress_port}"
        action = "discard()" if self.action is None else str(self.action)
        return f"bridge_table: {port}, {self.mac} under {self.mask}, priority {self.priority} -> {action}"


Item = LabelEntry | MulticastGroup | Route | Bridge | FrontPanelPort

KINDS = ("ports", "groups", "labels", "routes", "bridge")
"""Kinds of entries in the order in which they are installed. Kinds to which others refer come first; removal takes the
reverse order.
"""


@dataclass(frozen=True)
class RuleSet:
    """Entries of one switch: `labels` and `groups` belong to one plan version, `routes` and `bridge` to the topology.
    Only hardware switches have `ports`, since those are configured together with the rules.
    """

    switch: str
    labels: tuple[LabelEntry, ...] = ()
    groups: tuple[MulticastGroup, ...] = ()
    routes: tuple[Route, ...] = ()
    ports: tuple[FrontPanelPort, ...] = ()
    bridge: tuple[Bridge, ...] = ()

    @classmethod
    def of(cls, switch: str, items: Iterable[Item]) -> RuleSet:
        """Return the rules of a switch that has these entries, which may be of several kinds."""
        sorted_out: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        for item in items:
            sorted_out[item.kind].append(item)
        return cls(switch, **{kind: tuple(items) for kind, items in sorted_out.items()})

    def slots(self) -> set[int]:
        """Return the slots of the aggregation points."""
        actions = [entry.action for entry in self.labels if isinstance(entry.action, Aggregate)]
        return {slot for one in actions for slot in range(one.slot_base, one.slot_base + one.slot_mask + 1)}

    def by_key(self, kind: str) -> dict[Hashable, Item]:
        """Return the entries of one kind by their keys."""
        return {item.key: item for item in getattr(self, kind)}

    def items(self) -> Iterator[Item]:
        """Yield all entries in the order in which they are installed."""
        for kind in KINDS:
            yield from getattr(self, kind)
