"""Our P4 program as a P4Runtime server sees it: device configuration, p4info, and rule sets as P4Runtime entities."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format

from controlplane.planner.entries import (
    Aggregate,
    Bridge,
    Forward,
    Item,
    LabelEntry,
    MulticastGroup,
    Replicate,
    Route,
    RuleSet,
)
from controlplane.planner.frontpanel import FrontPanelPort
from controlplane.targets.base import Change, Operation, TargetError
from controlplane.targets.p4runtime.stubs import p4info_pb2, p4runtime_pb2

Found = TypeVar("Found")
LABEL_TABLE = "label_table"
ROUTE_TABLE = "ipv4_table"
BRIDGE_TABLE = "bridge_table"
VERDICT_COUNTER = "verdict_counter"
OTHER_RECEIVED, OTHER_SENT = "other_received", "other_sent"
"""Counters by port of packets that are not aggregated; a program of an earlier version has none."""

LAST_GROUP = (1 << 15) - 1
"""Highest number of a multicast group: bmv2's P4Runtime server reserves those from 2^15 on for clone sessions."""

UPDATE_TYPES = {
    Operation.INSERT: p4runtime_pb2.Update.INSERT,
    Operation.MODIFY: p4runtime_pb2.Update.MODIFY,
    Operation.DELETE: p4runtime_pb2.Update.DELETE,
}


class ProgramMismatch(TargetError):
    """The p4info is not that of our program, or an entry does not fit it; the message says what differs."""


@dataclass(frozen=True)
class Program:
    """A compiled program: the device configuration, and the ids by which P4Runtime names its tables and actions."""

    device_config: bytes
    p4info: p4info_pb2.P4Info
    cookie: int
    _tables: dict[str, p4info_pb2.Table] = field(repr=False)
    _actions: dict[str, p4info_pb2.Action] = field(repr=False)
    _counters: dict[str, p4info_pb2.Counter] = field(repr=False)

    @classmethod
    def load(cls, device_config: Path, p4info: Path) -> Program:
        """Read the compiler's two outputs. Raise ProgramMismatch where they are not those of our program."""
        info = p4info_pb2.P4Info()
        try:
            config, text = device_config.read_bytes(), p4info.read_text()
            text_format.Parse(text, info)
        except OSError as error:
            raise ProgramMismatch(f"cannot read the compiled program: {error}") from None
        except text_format.ParseError as error:
            raise ProgramMismatch(f"{p4info} is no p4info in text format: {error}") from None
        digest = hashlib.sha256(len(config).to_bytes(8, "big") + config + text.encode()).digest()
        program = cls(
            device_config=config,
            p4info=info,
            cookie=int.from_bytes(digest[:8], "big"),
            _tables={_local(table.preamble): table for table in info.tables},
            _actions={_local(action.preamble): action for action in info.actions},
            _counters={_local(counter.preamble): counter for counter in info.counters},
        )
        for table in (LABEL_TABLE, ROUTE_TABLE, BRIDGE_TABLE):
            program.table(table)
        for action in ("forward", "replicate", "aggregate", "route", "bridge", "flood", "discard"):
            program.action(action)
        return program

    def pipeline_config(self) -> p4runtime_pb2.ForwardingPipelineConfig:
        return p4runtime_pb2.ForwardingPipelineConfig(
            p4info=self.p4info,
            p4_device_config=self.device_config,
            cookie=p4runtime_pb2.ForwardingPipelineConfig.Cookie(cookie=self.cookie),
        )

    def table(self, name: str) -> p4info_pb2.Table:
        return _named(self._tables, name, "table")

    def action(self, name: str) -> p4info_pb2.Action:
        return _named(self._actions, name, "action")

    def counter(self, name: str) -> p4info_pb2.Counter:
        return _named(self._counters, name, "counter")

    def has_counter(self, name: str) -> bool:
        return name in self._counters

    # -- rule sets to P4Runtime -------------------------------------------------------------------------------------

    def write_request(self, changes: Iterable[Change]) -> p4runtime_pb2.WriteRequest:
        """Return the changes as one Write request, in order. Raise ProgramMismatch where a value does not fit its
        field."""
        request = p4runtime_pb2.WriteRequest()
        for change in changes:
            update = request.updates.add(type=UPDATE_TYPES[change.operation])
            item, bare = change.item, change.operation is Operation.DELETE
            if isinstance(item, MulticastGroup):
                _fill_group(update.entity.packet_replication_engine_entry.multicast_group_entry, item)
            elif isinstance(item, LabelEntry):
                self._fill_label(update.entity.table_entry, item, bare)
            elif isinstance(item, FrontPanelPort):
                raise ProgramMismatch(f"port {item.name}: P4Runtime cannot configure ports")
            elif isinstance(item, Bridge):
                self._fill_bridge(update.entity.table_entry, item, bare)
            else:
                self._fill_route(update.entity.table_entry, item, bare)
        return request

    def _fill_label(self, entry: p4runtime_pb2.TableEntry, item: LabelEntry, bare: bool) -> None:
        table = self.table(LABEL_TABLE)
        entry.table_id = table.preamble.id
        for name, value in (("ingress_port", item.ingress_port), ("label", item.label)):
            match_field = _match_field(table, name)
            match = entry.match.add(field_id=match_field.id)
            match.exact.value = _encode(value, match_field.bitwidth, item, name)
        if bare:
            return
        action = item.action
        if isinstance(action, Forward):
            self._set_action(entry, "forward", item, port=action.port)
        elif isinstance(action, Replicate):
            self._set_action(entry, "replicate", item, group=action.group)
        else:
            self._set_action(
                entry,
                "aggregate",
                item,
                slot_base=action.slot_base,
                slot_mask=action.slot_mask,
                flow=action.flow,
                everyone=action.everyone,
                next_label=action.next_label,
                partial_label=action.partial_label,
                port=action.port,
            )

    def _fill_route(self, entry: p4runtime_pb2.TableEntry, item: Route, bare: bool) -> None:
        table = self.table(ROUTE_TABLE)
        entry.table_id = table.preamble.id
        if item.prefix_length:
            match = entry.match.add(field_id=table.match_fields[0].id)
            match.lpm.value = _encode(int(ipaddress.IPv4Address(item.address)), 32, item, "address")
            match.lpm.prefix_len = item.prefix_length
        if not bare:
            mac = int(item.mac.replace(":", ""), 16)
            self._set_action(entry, "route", item, destination_mac=mac, port=item.port)

    def _fill_bridge(self, entry: p4runtime_pb2.TableEntry, item: Bridge, bare: bool) -> None:
        table = self.table(BRIDGE_TABLE)
        entry.table_id = table.preamble.id
        entry.priority = item.priority
        mac, mask = (int(address.replace(":", ""), 16) for address in (item.mac, item.mask))
        port = (0, 0) if item.ingress_port is None else (item.ingress_port, None)
        for name, (value, wanted) in (("ingress_port", port), ("destination", (mac, mask))):
            match_field = _match_field(table, name)
            bits = (1 << match_field.bitwidth) - 1 if wanted is None else wanted
            if bits:  # P4Runtime leaves out fields that may be anything.
                match = entry.match.add(field_id=match_field.id)
                match.ternary.value = _encode(value, match_field.bitwidth, item, name)
                match.ternary.mask = _encode(bits, match_field.bitwidth, item, name)
        if bare:
            return
        if item.action is None:
            self._set_action(entry, "discard", item)
        elif isinstance(item.action, Forward):
            self._set_action(entry, "bridge", item, port=item.action.port)
        else:
            self._set_action(entry, "flood", item, group=item.action.group)

    def _set_action(self, entry: p4runtime_pb2.TableEntry, name: str, item: Item, **values: int) -> None:
        action = self.action(name)
        entry.action.action.action_id = action.preamble.id
        params = {param.name: param for param in action.params}
        if set(params) != set(values):
            raise ProgramMismatch(f"action {name} of the program takes {sorted(params)}, not {sorted(values)}")
        for param_name, value in values.items():
            param = params[param_name]
            encoded = _encode(value, param.bitwidth, item, param_name)
            entry.action.action.params.add(param_id=param.id, value=encoded)

    # -- and back ---------------------------------------------------------------------------------------------------

    def read_requests(self) -> list[p4runtime_pb2.Entity]:
        """Return wildcard reads of everything that a rule set consists of."""
        tables = [
            p4runtime_pb2.Entity(table_entry=p4runtime_pb2.TableEntry(table_id=self.table(name).preamble.id))
            for name in (LABEL_TABLE, ROUTE_TABLE, BRIDGE_TABLE)
        ]
        groups = p4runtime_pb2.Entity()
        groups.packet_replication_engine_entry.multicast_group_entry.multicast_group_id = 0
        return [*tables, groups]

    def rule_set(self, switch: str, entities: Iterable[p4runtime_pb2.Entity]) -> RuleSet:
        """Return the rule set in a switch's answer to `read_requests`."""
        labels, groups, routes, bridge = [], [], [], []
        for entity in entities:
            if entity.HasField("packet_replication_engine_entry"):
                group = entity.packet_replication_engine_entry.multicast_group_entry
                ports = sorted(
                    int.from_bytes(replica.port, "big") if replica.port else replica.egress_port
                    for replica in group.replicas
                )
                groups.append(MulticastGroup(group.multicast_group_id, tuple(ports)))
            elif entity.HasField("table_entry") and not entity.table_entry.is_default_action:
                entry = entity.table_entry
                if entry.table_id == self.table(LABEL_TABLE).preamble.id:
                    labels.append(self._read_label(entry))
                elif entry.table_id == self.table(ROUTE_TABLE).preamble.id:
                    routes.append(self._read_route(entry))
                elif entry.table_id == self.table(BRIDGE_TABLE).preamble.id:
                    bridge.append(self._read_bridge(entry))
        return RuleSet(switch, tuple(labels), tuple(groups), tuple(routes), bridge=tuple(bridge))

    def label_key(self, entry: p4runtime_pb2.TableEntry) -> tuple[int, int]:
        """Return the ingress port and the label of an entry of the label table."""
        table = self.table(LABEL_TABLE)
        values = {match.field_id: int.from_bytes(match.exact.value, "big") for match in entry.match}
        port, label = (values.get(_match_field(table, name).id, 0) for name in ("ingress_port", "label"))
        return port, label

    def _read_label(self, entry: p4runtime_pb2.TableEntry) -> LabelEntry:
        name, values = self._read_action(entry)
        action: Forward | Replicate | Aggregate
        if name == "forward":
            action = Forward(**values)
        elif name == "replicate":
            action = Replicate(**values)
        else:
            action = Aggregate(**values)
        port, label = self.label_key(entry)
        return LabelEntry(ingress_port=port, label=label, action=action)

    def _read_route(self, entry: p4runtime_pb2.TableEntry) -> Route:
        _, values = self._read_action(entry)
        address, length = 0, 0
        for match in entry.match:
            address, length = int.from_bytes(match.lpm.value, "big"), match.lpm.prefix_len
        mac = values["destination_mac"].to_bytes(6, "big").hex(":")
        return Route(str(ipaddress.IPv4Address(address)), length, mac, values["port"])

    def _read_bridge(self, entry: p4runtime_pb2.TableEntry) -> Bridge:
        table = self.table(BRIDGE_TABLE)
        name, values = self._read_action(entry)
        found = {match.field_id: match.ternary for match in entry.match}
        port = found.get(_match_field(table, "ingress_port").id)
        address = found.get(_match_field(table, "destination").id)
        value, mask = (address.value, address.mask) if address is not None else (b"", b"")
        action: Forward | Replicate | None = None
        if name == "bridge":
            action = Forward(values["port"])
        elif name == "flood":
            action = Replicate(values["group"])
        return Bridge(
            entry.priority,
            None if port is None else int.from_bytes(port.value, "big"),
            value.rjust(6, b"\0").hex(":"),
            mask.rjust(6, b"\0").hex(":"),
            action,
        )

    def _read_action(self, entry: p4runtime_pb2.TableEntry) -> tuple[str, dict[str, int]]:
        for name, action in self._actions.items():
            if action.preamble.id == entry.action.action.action_id:
                given = {param.param_id: int.from_bytes(param.value, "big") for param in entry.action.action.params}
                return name, {param.name: given.get(param.id, 0) for param in action.params}
        raise ProgramMismatch(f"a table entry has action id {entry.action.action.action_id}, which the program lacks")


def _named(there: Mapping[str, Found], name: str, what: str) -> Found:
    if name not in there:
        raise ProgramMismatch(f"the program has no {what} {name!r}; it has {', '.join(sorted(there))}")
    return there[name]


def _local(preamble: p4info_pb2.Preamble) -> str:
    return preamble.alias or preamble.name.rpartition(".")[2]


def _match_field(table: p4info_pb2.Table, name: str) -> p4info_pb2.MatchField:
    for match_field in table.match_fields:
        if match_field.name.rpartition(".")[2] == name:
            return match_field
    fields = ", ".join(match_field.name for match_field in table.match_fields)
    raise ProgramMismatch(f"table {table.preamble.name} has no key field {name!r}; it has {fields}")


def _fill_group(entry: p4runtime_pb2.MulticastGroupEntry, item: MulticastGroup) -> None:
    if not 1 <= item.group <= LAST_GROUP:
        raise ProgramMismatch(f"multicast group {item.group} is outside 1..{LAST_GROUP}")
    if len(set(item.ports)) != len(item.ports):
        raise ProgramMismatch(f"multicast group {item.group} has a port twice: {item.ports}")
    entry.multicast_group_id = item.group
    for port in sorted(item.ports):
        # All replicas have the same id: the egress pipeline does not tell the copies apart.
        entry.replicas.add(egress_port=port, instance=1)


def _encode(value: int, bitwidth: int, item: Item, name: str) -> bytes:
    """Return a canonical P4Runtime bytestring: big-endian, without leading zero bytes, of at least one byte."""
    if not 0 <= value < 1 << bitwidth:
        raise ProgramMismatch(f"{item}: {name} {value} does not fit in {bitwidth} bits")
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
