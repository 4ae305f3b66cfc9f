"""Our TNA program as a BRI server sees it: converts rule sets to table entries, and entries to rule sets.

An aggregation in a rule set becomes several entries (docs/tofino.md, "Tables and actions"), so a change of one rule may
change the entries of others. Entries are therefore made from whole rule sets, and compared as entries.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from controlplane.planner.entries import (
    Bridge,
    Forward,
    MulticastGroup,
    Replicate,
    Route,
    RuleSet,
)
from controlplane.planner.frontpanel import FrontPanelPort
from controlplane.targets.bri.chip import TOFINO_1, TOFINO_2, TOFINO_2_FOLDED, Chip
from controlplane.targets.bri.entries import DataValue, Entry, KeyValue, Masked, Port, Prefix
from controlplane.targets.bri.points import Point, points
from controlplane.targets.bri.ports import PortMap, port_data, read_port
from controlplane.targets.bri.schema import Schema, SchemaError, local

LABEL_TABLE, ROUTE_TABLE, BRIDGE_TABLE = "label_table", "ipv4_table", "bridge_table"
VERDICT_COUNTER = "verdict_counter"
GROUPS, NODES, PORTS, PORT_NAMES = "$pre.mgid", "$pre.node", "$PORT", "$PORT_HDL_INFO"
PORT_STATISTICS = "$PORT_STAT"
FIXED = Path(__file__).with_name("fixed.json")
ACTIONS = {
    LABEL_TABLE: ("forward", "replicate", "aggregate"),
    ROUTE_TABLE: ("route",),
    BRIDGE_TABLE: ("bridge", "flood", "discard"),
}
READ_OUT = "read_out"
"""An action that only programs have in which sums recirculate."""
FOLDED = "slot_ticket"
"""A register that only the folded program has."""
REMOVED = "half_owner"
"""A register that only the folded program for Tofino 1 had, which is no longer supported."""

OF_THE_PROGRAM = ("MatchAction_Direct", "Register", "Counter")
"""Kinds of tables that the P4 program decides; the compiler decides about other tables (snapshots, hashes,
debugging)."""

FIRST_NODE = 0x1A0000
"""Base of the numbers of multicast nodes: node FIRST_NODE + g belongs to our group g. Groups with other nodes are not
ours and stay as they are."""

REPLICATION_ID = 0

PRIORITY = "$MATCH_PRIORITY"
FIRST_PRIORITY = 1 << 16
"""Offset that reverses priorities: in BRI the smallest number has the highest priority, in a rule set the largest."""
PORT_MASK = (1 << 9) - 1

BROKEN_PORT = 0
"""A port number that no topology has. A label of a damaged aggregation is read as if it forwarded there, so that it
differs from every wanted rule and is written again or removed."""


@cache
def fixed_tables() -> Schema:
    """Return the schema of the fixed-function tables that we use: ports and the packet replication engine."""
    return Schema.load(FIXED)


@dataclass(frozen=True)
class Program:
    """A compiled program: its name on the switch, its tables, and these together with the fixed-function ones."""

    name: str
    own: Schema
    schema: Schema

    @classmethod
    def load(cls, path: Path, name: str = "inart") -> Program:
        """Read a bf-rt.json. Raise SchemaError where it is not that of our program."""
        own = Schema.load(path)
        for table, actions in ACTIONS.items():
            for action in actions:
                own.table(table).action(action)
        if REMOVED in map(local, own.tables):
            raise SchemaError(
                f"{path}: this program adds 128 values on Tofino 1, which is no longer supported; use a program of 64 "
                'values (artifacts = "tna-64" in --config)'
            )
        return cls(name, own, own.with_tables(fixed_tables()))

    @property
    def chip(self) -> Chip:
        """The chip that the program was compiled for, recognised by its registers and actions."""
        if FOLDED in map(local, self.own.tables):
            return TOFINO_2_FOLDED
        actions = map(local, self.own.table(LABEL_TABLE).actions)
        return TOFINO_1 if READ_OUT in actions else TOFINO_2

    def other_than(self, running: Schema) -> str:
        """Return in words how a program that a switch runs differs from ours, apart from ids; "" where it is ours."""
        for name, table in self.own.tables.items():
            if table.kind not in OF_THE_PROGRAM:
                continue
            if name not in running.tables:
                return f"it has no table {name}"
            if table.shape != running.tables[name].shape:
                return f"its table {name} has other keys, actions, data or another size"
        return ""

    def tables(self) -> list[str]:
        """Return the full names of the tables that rule sets are written to, in an order in which they can be
        filled."""
        return [self.schema.table(name).name for name in (PORTS, NODES, GROUPS, LABEL_TABLE, ROUTE_TABLE, BRIDGE_TABLE)]

    # -- rule sets to entries ------------------------------------------------------------------------------------

    def entries(self, rules: RuleSet, ports: PortMap) -> list[Entry]:
        """Return all entries of a rule set. Raise SchemaError or TargetError where Tofino cannot have one."""
        made = [self._port(port, ports) for port in rules.ports]
        made += [self._node(group, ports) for group in rules.groups]
        made += [self._group(group.group) for group in rules.groups]
        for point in points(rules, ports, chip=self.chip):
            made += self.entries_of(point)
        for entry in rules.labels:
            key = ports.device(entry.ingress_port), entry.label
            if entry.action == Forward(BROKEN_PORT):
                continue
            if isinstance(entry.action, Forward):
                made.append(self._labelled(key, "forward", {"port": ports.device(entry.action.port)}))
            elif isinstance(entry.action, Replicate):
                made.append(self._labelled(key, "replicate", {"group": entry.action.group}))
        made += [self._route(route, ports) for route in rules.routes]
        return made + [self._bridge(entry, ports) for entry in rules.bridge]

    def _port(self, port: FrontPanelPort, ports: PortMap) -> Entry:
        return Entry(PORTS, (("$DEV_PORT", ports.named(port.name)),), None, port_data(port))

    def _node(self, group: MulticastGroup, ports: PortMap) -> Entry:
        members = tuple(ports.device(number) for number in sorted(group.ports))
        data: tuple[tuple[str, DataValue], ...] = (
            ("$MULTICAST_RID", REPLICATION_ID),
            ("$MULTICAST_LAG_ID", ()),
            ("$DEV_PORT", members),
        )
        return Entry(NODES, (("$MULTICAST_NODE_ID", FIRST_NODE + group.group),), None, data)

    def _group(self, number: int) -> Entry:
        data: tuple[tuple[str, DataValue], ...] = (
            ("$MULTICAST_NODE_ID", (FIRST_NODE + number,)),
            ("$MULTICAST_NODE_L1_XID_VALID", (False,)),
            ("$MULTICAST_NODE_L1_XID", (0,)),
        )
        return Entry(GROUPS, (("$MGID", number),), None, data)

    def entries_of(self, point: Point) -> Iterable[Entry]:
        """Yield the entries of an aggregation point: those of each flow and, where sums recirculate, those of the sums'
        second halves."""
        slots = {"slot_base": point.slot_base, "slot_mask": point.slot_mask}
        if self.chip.rounds and point.loopback is not None:
            for label in dict.fromkeys((point.next_label, point.partial_label)):
                yield self._labelled((point.loopback, label), READ_OUT, {**slots, "port": point.port})
        for flow in point.flows:
            values: dict[str, DataValue] = {
                **slots,
                "flow": flow.bit,
                "everyone": point.everyone,
                "next_label": point.next_label,
                "partial_label": point.partial_label,
                "port": point.port,
            }
            entrance = flow.port
            if point.loopback is not None:
                if self.chip.rounds:
                    values["loopback"] = point.loopback
                if flow.through_loopback:
                    yield self._labelled((flow.port, flow.label), "forward", {"port": point.loopback})
                    entrance = point.loopback
            yield self._labelled((entrance, flow.label), "aggregate", values)

    def _labelled(self, key: tuple[Port, int], action: str, values: Mapping[str, DataValue]) -> Entry:
        table = self.schema.table(LABEL_TABLE)
        fields: list[tuple[str, KeyValue]] = [
            (table.key("ingress_port").name, key[0]),
            (table.key("label").name, key[1]),
        ]
        return self._with_action(LABEL_TABLE, fields, action, values)

    def _route(self, route: Route, ports: PortMap) -> Entry:
        (destination,) = self.schema.table(ROUTE_TABLE).keys
        prefix = Prefix(int(ipaddress.IPv4Address(route.address)), route.prefix_length)
        mac = int(route.mac.replace(":", ""), 16)
        values = {"destination_mac": mac, "port": ports.device(route.port)}
        return self._with_action(ROUTE_TABLE, [(destination, prefix)], "route", values)

    def _bridge(self, entry: Bridge, ports: PortMap) -> Entry:
        table = self.schema.table(BRIDGE_TABLE)
        port = Masked(0, 0)
        if entry.ingress_port is not None:
            port = Masked(ports.device(entry.ingress_port), PORT_MASK)
        mac, mask = (int(address.replace(":", ""), 16) for address in (entry.mac, entry.mask))
        keys: list[tuple[str, KeyValue]] = [
            (table.key("ingress_port").name, port),
            (table.key("destination").name, Masked(mac, mask)),
            (PRIORITY, FIRST_PRIORITY - entry.priority),
        ]
        if entry.action is None:
            return self._with_action(BRIDGE_TABLE, keys, "discard", {})
        if isinstance(entry.action, Forward):
            return self._with_action(BRIDGE_TABLE, keys, "bridge", {"port": ports.device(entry.action.port)})
        return self._with_action(BRIDGE_TABLE, keys, "flood", {"group": entry.action.group})

    def _with_action(
        self, name: str, key: Iterable[tuple[str, KeyValue]], action: str, values: Mapping[str, DataValue]
    ) -> Entry:
        table = self.schema.table(name)
        found = table.action(action)
        if set(values) != set(found.fields):
            raise SchemaError(
                f"action {found.name} of the program takes {', '.join(found.fields)}; "
                f"this control plane gives {', '.join(values)}"
            )
        return Entry(table.name, tuple(key), found.name, tuple((field, values[field]) for field in found.fields))

    # -- what is ours --------------------------------------------------------------------------------------------

    def label_key(self, entry: Entry) -> tuple[int, int]:
        """Return the device port and the label of an entry of the label table."""
        key = {local(name): value for name, value in entry.key}
        port, label = key["ingress_port"], key["label"]
        assert isinstance(port, int) and isinstance(label, int)
        return port, label

    def is_ours(self, entry: Entry) -> bool:
        """Return whether an entry on a switch is one that we write. (Of ports, the target knows which ones it made.)"""
        if entry.table == NODES:
            return 0 < number_of(entry) - FIRST_NODE < 1 << 16
        if entry.table == GROUPS:
            return dict(entry.data).get("$MULTICAST_NODE_ID") == (FIRST_NODE + number_of(entry),)
        return True

    def only_ours(self, entry: Entry) -> Entry:
        """Return the entry as `entries` would make it, without data that we do not write (counters, other settings)."""
        if entry.table == PORTS:
            return Entry(PORTS, entry.key, None, port_data(read_port("1/0", entry)))
        if entry.table == NODES:
            devices = dict(entry.data).get("$DEV_PORT", ())
            assert isinstance(devices, tuple)
            rest = {**dict(entry.data), "$DEV_PORT": tuple(sorted(devices, key=str)), "$MULTICAST_LAG_ID": ()}
            return Entry(
                NODES, entry.key, None, tuple((name, rest[name]) for name in fixed_tables().tables[NODES].data)
            )
        if entry.action is None:
            return Entry(entry.table, entry.key, None, self._group(number_of(entry)).data)
        data = dict(entry.data)
        fields = self.schema.tables[entry.table].actions[entry.action].fields
        return Entry(entry.table, entry.key, entry.action, tuple((name, data.get(name, 0)) for name in fields))


def number_of(entry: Entry) -> int:
    """Return the number in the only key field of an entry."""
    ((_, number),) = entry.key
    assert isinstance(number, int)
    return number
