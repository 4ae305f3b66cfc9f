"""Reads entries of our TNA program on a switch back as the rule set that they stand for (program.py makes them)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, replace

from controlplane.planner.entries import (
    Aggregate,
    Bridge,
    Forward,
    LabelEntry,
    MulticastGroup,
    Replicate,
    Route,
    RuleSet,
)
from controlplane.planner.frontpanel import FrontPanelPort
from controlplane.targets.bri.entries import Entry, Masked, Prefix
from controlplane.targets.bri.points import points
from controlplane.targets.bri.ports import PortMap, read_port
from controlplane.targets.bri.program import (
    BRIDGE_TABLE,
    BROKEN_PORT,
    FIRST_NODE,
    FIRST_PRIORITY,
    GROUPS,
    LABEL_TABLE,
    NODES,
    PORTS,
    PRIORITY,
    READ_OUT,
    ROUTE_TABLE,
    Program,
    number_of,
)
from controlplane.targets.bri.schema import local


def rule_set(program: Program, switch: str, entries: Iterable[Entry], ports: PortMap) -> RuleSet:
    """Return the rule set that the entries stand for.

    Entries that no rule set would give are read as broken: with BROKEN_PORT, or as a group without members.
    """
    return Reading(program, list(entries), ports).rules(switch)


@dataclass(frozen=True)
class Reading:
    """State of one reading of a switch's entries."""

    program: Program
    entries: list[Entry]
    ports: PortMap

    def rules(self, switch: str) -> RuleSet:
        """Return the switch's rule set; what is broken in it is marked."""
        rules = RuleSet(switch, self._labels(), self._groups(), self._routes(), self._ports(), self._bridges())
        return self._without_broken(rules)

    def _labels(self) -> tuple[LabelEntry, ...]:
        keys, values = {}, {}
        for entry in self.entries:
            if entry.table == self.program.schema.table(LABEL_TABLE).name:
                keys[entry] = self.program.label_key(entry)
                values[entry] = _values(entry)
        loopbacks = {
            (given.get("loopback", keys[entry][0]), keys[entry][1])
            for entry, given in values.items()
            if "next_label" in given and (self.program.chip.rounds or self._comes_back(keys[entry][0]))
        }
        # A flow from another pipe has two entries: it is forwarded to the loopback port, and aggregated when it comes
        # in there.
        entrances = {
            (given["port"], keys[entry][1]): keys[entry][0]
            for entry, given in values.items()
            if entry.action is not None
            and local(entry.action) == "forward"
            and (given["port"], keys[entry][1]) in loopbacks
        }
        found: dict[tuple[int, int], LabelEntry] = {}
        for entry, given in values.items():
            device, label = keys[entry]
            action = local(entry.action or "")
            if action == READ_OUT or entrances.get((given.get("port", -1), label)) == device:
                continue
            port = self.ports.number(entrances.get((device, label), device) if "next_label" in given else device)
            rule: Forward | Replicate | Aggregate
            if action == "forward":
                rule = Forward(self.ports.number(given["port"]))
            elif action == "replicate":
                rule = Replicate(given["group"])
            else:
                rule = Aggregate(
                    given["slot_base"],
                    given["slot_mask"],
                    given["flow"],
                    given["everyone"],
                    given["next_label"],
                    given["partial_label"],
                    self.ports.number(given["port"]),
                )
            if (port, label) in found:
                rule = Forward(BROKEN_PORT)
            found[port, label] = LabelEntry(port, label, rule)
        return tuple(found.values())

    def _comes_back(self, device: int) -> bool:
        """Return whether packets that arrive on a device port were sent out by it: a loopback or recirculation port."""
        own = {self.ports.named(port.name) for port in self.ports.panel.loopback}
        return device in own or self.program.chip.recirculates(device)

    def _without_broken(self, rules: RuleSet) -> RuleSet:
        """Return the rule set with everything marked as broken whose entries are not exactly those of `entries`."""
        there, possible = set(self.entries), points(rules, self.ports, chip=self.program.chip, strict=False)
        whole = [point for point in possible if set(self.program.entries_of(point)) <= there]
        good = {flow.key for point in whole for flow in point.flows}
        labels = {
            (label.ingress_port, label.label): label
            if not isinstance(label.action, Aggregate) or (label.ingress_port, label.label) in good
            else LabelEntry(label.ingress_port, label.label, Forward(BROKEN_PORT))
            for label in rules.labels
        }
        explained = {entry for point in whole for entry in self.program.entries_of(point)}
        for entry in self.entries:
            if entry.action is not None and local(entry.action) == READ_OUT and entry not in explained:
                device, label = self.program.label_key(entry)
                key = self.ports.number(device), label
                labels.setdefault(key, LabelEntry(*key, Forward(BROKEN_PORT)))
        return replace(rules, labels=tuple(labels.values()))

    def _groups(self) -> tuple[MulticastGroup, ...]:
        members: dict[int, tuple[int, ...]] = {}
        numbers = set()
        for entry in self.entries:
            if entry.table == NODES:
                devices = dict(entry.data)["$DEV_PORT"]
                assert isinstance(devices, tuple)
                there = tuple(sorted(self.ports.number(device) for device in devices if isinstance(device, int)))
                members[number_of(entry) - FIRST_NODE] = there
            elif entry.table == GROUPS:
                numbers.add(number_of(entry))
        whole = numbers & set(members)
        return tuple(
            MulticastGroup(number, members[number] if number in whole else ())
            for number in sorted(numbers | set(members))
        )

    def _routes(self) -> tuple[Route, ...]:
        found = []
        for entry in self.entries:
            if entry.table == self.program.schema.table(ROUTE_TABLE).name:
                ((_, prefix),) = entry.key
                assert isinstance(prefix, Prefix)
                values = _values(entry)
                mac = values["destination_mac"].to_bytes(6, "big").hex(":")
                address = str(ipaddress.IPv4Address(prefix.value))
                found.append(Route(address, prefix.length, mac, self.ports.number(values["port"])))
        return tuple(found)

    def _bridges(self) -> tuple[Bridge, ...]:
        found = []
        for entry in self.entries:
            if entry.table == self.program.schema.table(BRIDGE_TABLE).name:
                key = {local(name): value for name, value in entry.key}
                port, address, priority = key["ingress_port"], key["destination"], key[PRIORITY]
                assert isinstance(port, Masked) and isinstance(address, Masked)
                assert isinstance(port.value, int) and isinstance(address.value, int) and isinstance(priority, int)
                values = _values(entry)
                action: Forward | Replicate | None = None
                if "port" in values:
                    action = Forward(self.ports.number(values["port"]))
                elif "group" in values:
                    action = Replicate(values["group"])
                mac, mask = (number.to_bytes(6, "big").hex(":") for number in (address.value, address.mask))
                at = self.ports.number(port.value) if port.mask else None
                found.append(Bridge(FIRST_PRIORITY - priority, at, mac, mask, action))
        return tuple(found)

    def _ports(self) -> tuple[FrontPanelPort, ...]:
        return tuple(
            read_port(self.ports.name(number_of(entry)), entry) for entry in self.entries if entry.table == PORTS
        )


def _values(entry: Entry) -> dict[str, int]:
    return {name: value for name, value in entry.data if isinstance(value, int)}
