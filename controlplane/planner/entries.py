"""Entries that a switch holds, whatever protocol carries them there: of tables, multicast groups, ports.

Every kind of entry has `kind`, the field of `RuleSet` that holds entries like it, `key`, which tells it from others of
its kind, and `str()`, the line that dry runs and errors print. A new kind is a class here with a field in `RuleSet`,
and how each target writes it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from controlplane.planner.frontpanel import FrontPanelPort


@dataclass(frozen=True)
class Forward:
    """Out of this port of the switch."""

    port: int

    def __str__(self) -> str:
        return f"forward(port={self.port})"


@dataclass(frozen=True)
class Replicate:
    """Out of all ports of this multicast group of the switch."""

    group: int

    def __str__(self) -> str:
        return f"replicate(group={self.group})"


@dataclass(frozen=True)
class Aggregate:
    """A flow into an aggregation point. flow: its bit among those of the point's flows, everyone. Complete sums leave
    with next_label, all else with partial_label. slot = slot_base + (sequence & slot_mask)."""

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
    """Entry for packets of this label that come in at this port; docs/architecture.md, section 2."""

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
    """A switch's group, by its number, and the ports that get a copy each."""

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
    """IPv4: packets to address/prefix_length get destination `mac` and leave by `port`."""

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
    """Frames that are neither ours nor IPv4 to a host: those from `ingress_port` (None: any) to an address that is
    `mac` under `mask`. Of the entries that match, one with the highest priority counts. action None: dropped."""

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
"""Kinds of entries in the order in which they are installed: those that others point at come first, and are removed
last."""


@dataclass(frozen=True)
class RuleSet:
    """Entries of one switch for one plan version (labels, groups) and for the topology (routes, bridge).

    ports: only for hardware switches, whose ports are configured with the rules.
    """

    switch: str
    labels: tuple[LabelEntry, ...] = ()
    groups: tuple[MulticastGroup, ...] = ()
    routes: tuple[Route, ...] = ()
    ports: tuple[FrontPanelPort, ...] = ()
    bridge: tuple[Bridge, ...] = ()

    @classmethod
    def of(cls, switch: str, items: Iterable[Item]) -> RuleSet:
        """A switch with these entries, of whatever kinds."""
        sorted_out: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        for item in items:
            sorted_out[item.kind].append(item)
        return cls(switch, **{kind: tuple(items) for kind, items in sorted_out.items()})

    def by_key(self, kind: str) -> dict[Hashable, Item]:
        """The entries of a kind."""
        return {item.key: item for item in getattr(self, kind)}

    def items(self) -> Iterator[Item]:
        """All entries, in the order in which they are installed."""
        for kind in KINDS:
            yield from getattr(self, kind)
