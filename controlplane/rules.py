"""Plan -> table entries per switch and configuration per agent, for any kind of switch (docs/architecture.md, 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Forward:
    port: int


@dataclass(frozen=True)
class Replicate:
    group: int


@dataclass(frozen=True)
class Aggregate:
    """contributor 0: a partial sum, which counts as its own bitmap. slot = slot_base + (sequence & slot_mask)."""

    slot_base: int
    slot_mask: int
    contributor: int
    expected: int
    next_label: int
    port: int


@dataclass(frozen=True)
class LabelEntry:
    ingress_port: int
    label: int
    action: Forward | Replicate | Aggregate


@dataclass(frozen=True)
class MulticastGroup:
    group: int
    ports: tuple[int, ...]


@dataclass(frozen=True)
class Route:
    """IPv4: packets to address/prefix_length get destination `mac` and leave by `port`."""

    address: str
    prefix_length: int
    mac: str
    port: int


@dataclass(frozen=True)
class RuleSet:
    """Everything that one switch gets for one plan version (labels, groups) and for the topology (routes)."""

    switch: str
    labels: tuple[LabelEntry, ...]
    groups: tuple[MulticastGroup, ...]
    routes: tuple[Route, ...]


@dataclass(frozen=True)
class Limits:
    """What one switch holds; from the target's description (p4src/protocol.json, targets)."""

    values_per_packet: int
    slots: int
    label_table_size: int
    route_table_size: int
    multicast_groups: int = 4096

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Limits:
        """From a target's entry in p4src/protocol.json."""
        fields = ("values_per_packet", "slots", "label_table_size", "route_table_size", "multicast_groups")
        return cls(**{key: int(data[key]) for key in fields if key in data})


class DoesNotFit(ValueError):
    """The plan needs more of a resource than there is."""

    def __init__(self, switch: str, resource: str, needed: int, available: int) -> None:
        super().__init__(f"switch {switch}: the plan needs {needed} {resource}, available are {available}")
        self.switch, self.resource, self.needed, self.available = switch, resource, needed, available
