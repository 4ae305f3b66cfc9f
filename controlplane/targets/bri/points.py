"""Aggregation points of a rule set in the form of the TNA program: a bit per flow, one pipe, one loopback port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.planner.entries import Aggregate, LabelEntry, RuleSet
from controlplane.planner.plan.limits import MAXIMUM_FLOWS
from controlplane.targets.base import TargetError
from controlplane.targets.bri.chip import PORTS_PER_PIPE, TOFINO_1, Chip
from controlplane.targets.bri.entries import Port, PortName
from controlplane.targets.bri.ports import PortMap


@dataclass(frozen=True)
class Flow:
    """A flow into an aggregation point.

    Attributes:
        key: the port number and the label of its rule.
        bit: the flow's own bit among those of the point's flows.
        through_loopback: it arrives in another pipe than that of the point's registers, and is sent there first.
    """

    key: tuple[int, int]
    port: Port
    bit: int
    through_loopback: bool

    @property
    def label(self) -> int:
        return self.key[1]


@dataclass(frozen=True)
class Point:
    """An aggregation point: all flows that are added up under one next label.

    Ports are device ports, or names where no switch was asked. `loopback` is the port where flows of other pipes, and
    on Tofino 1 all sums, come in again; it is None where no packet does.
    """

    next_label: int
    partial_label: int
    slot_base: int
    slot_mask: int
    everyone: int
    port: Port
    loopback: Port | None
    flows: tuple[Flow, ...]


def points(rules: RuleSet, ports: PortMap, *, chip: Chip = TOFINO_1, strict: bool = True) -> list[Point]:
    """Return the aggregation points. Raise TargetError for one that Tofino cannot have, or leave it out if not
    `strict`."""
    members: dict[int, list[LabelEntry]] = {}
    for entry in rules.labels:
        if isinstance(entry.action, Aggregate):
            members.setdefault(entry.action.next_label, []).append(entry)
    found = []
    for entries in members.values():
        try:
            found.append(_point(rules.switch, entries, ports, chip))
        except TargetError:
            if strict:
                raise
    return found


def _point(switch: str, entries: list[LabelEntry], ports: PortMap, chip: Chip) -> Point:
    ordered = sorted(entries, key=lambda entry: (entry.ingress_port, entry.label))
    actions = [entry.action for entry in ordered if isinstance(entry.action, Aggregate)]
    first = actions[0]
    where = f"switch {switch}, aggregation to label {first.next_label}"
    most = MAXIMUM_FLOWS[chip.target]
    shared = {(a.slot_base, a.slot_mask, a.everyone, a.next_label, a.partial_label, a.port) for a in actions}
    if len(shared) > 1:
        raise TargetError(f"{where}: its flows differ in slots, bits of all flows, labels or port; that is no plan's")
    if len(ordered) > most:
        raise TargetError(
            f"{where}: {len(ordered)} flows come in, Tofino adds up at most {most} at one point; use "
            "fewer workers, or a strategy that aggregates at several switches"
        )
    if first.slot_base & first.slot_mask:
        raise TargetError(f"{where}: slots begin at {first.slot_base}, not at a multiple of {first.slot_mask + 1}")
    bits = 0
    for action in actions:
        if action.flow.bit_count() != 1 or bits & action.flow:
            raise TargetError(f"{where}: the bit of a flow is {action.flow:#x}; each has one of its own")
        bits |= action.flow
    if bits != first.everyone or bits >> most:
        raise TargetError(f"{where}: expects {first.everyone:#x}, its flows bring {bits:#x}; there are {most} bits")
    devices = [ports.device(entry.ingress_port) for entry in ordered]
    loopback = _loopback(where, first.next_label, devices, ports, chip)
    flows = tuple(
        Flow(
            (entry.ingress_port, entry.label),
            device,
            action.flow,
            loopback is not None and pipe(device) != pipe(loopback),
        )
        for entry, action, device in zip(ordered, actions, devices, strict=True)
    )
    return Point(
        first.next_label,
        first.partial_label,
        first.slot_base,
        first.slot_mask,
        first.everyone,
        ports.device(first.port),
        loopback,
        flows,
    )


def pipe(port: Port) -> int | None:
    """Return the pipe of a device port; None where only the port's name is known."""
    return port // PORTS_PER_PIPE if isinstance(port, int) else None


def _loopback(where: str, next_label: int, devices: Iterable[Port], ports: PortMap, chip: Chip) -> Port | None:
    """Return a loopback port in the pipe where most flows arrive, among pipes that have one.

    Several loopback ports of a pipe share the points by their labels. Return None where no packet recirculates, because
    sums do not and all flows arrive in one pipe.
    """
    candidates = [ports.named(port.name) for port in ports.panel.loopback]
    arrivals = Counter(pipe(device) for device in devices)
    if not chip.rounds and len(arrivals) == 1:
        return None
    candidates += [PORTS_PER_PIPE * at + port for at in arrivals if at is not None for port in chip.recirculation]
    if None in arrivals:
        candidates += [PortName(f"the pipe's port {port}") for port in chip.recirculation]
    if not candidates:
        raise TargetError(
            f"{where}: the sum's second half needs a loopback port; give the switch one in the topology file: "
            '"loopback_ports": [{"front_panel": "31/0", "speed": "100G"}], in the pipe of the workers\' ports'
        )
    best = max(candidates, key=lambda port: arrivals[pipe(port)])
    same = [port for port in candidates if pipe(port) == pipe(best)]
    return same[next_label % len(same)]
