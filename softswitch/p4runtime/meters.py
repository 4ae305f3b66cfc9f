"""``MeterEntry`` and ``DirectMeterEntry``: configurations and per-colour counters.

The P4Runtime specification describes this in "MeterEntry" and "DirectMeterEntry".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from softswitch.dataplane.device import Device
from softswitch.dataplane.meters import Colours, MeterConfig, MeterState
from softswitch.p4runtime.matches import decode_key, encode_match
from softswitch.p4runtime.schema import MeterSchema, Schema, TableSchema
from softswitch.p4runtime.status import invalid, out_of_range, unimplemented
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.undo import Journal

_Spec = p4info_pb2.MeterSpec


class MeterAccess:
    """Meters of one device under one schema; the caller holds the device's lock during calls."""

    def __init__(self, device: Device, schema: Schema) -> None:
        self._device = device
        self._schema = schema

    # --- indirect meters ---

    def write(self, kind: int, entry: p4rt.MeterEntry, journal: Journal) -> None:
        """Configure one element, or all of them when the index is unset (MODIFY only)."""
        meter = self._schema.meter(entry.meter_id)
        if kind != p4rt.Update.MODIFY:
            raise invalid(f"meter {meter.name} can only be modified")
        first, n = _elements(meter, entry)
        config = decode_config(meter.type, entry, f"meter {meter.name}")
        clear = decode_clear(entry.counter_data, f"meter {meter.name}") if entry.HasField("counter_data") else False
        if journal.active:
            old = self._device.meter_read(meter.name, first, n)
            journal.add(lambda: self._device.meter_restore(meter.name, old, first))
        self._device.meter_write(meter.name, config, first, n)
        if clear:
            self._device.meter_clear(meter.name, first, n)

    def read(self, query: p4rt.MeterEntry) -> Iterator[p4rt.Entity]:
        """Return the elements that a ``MeterEntry`` in a ReadRequest selects."""
        if query.meter_id == 0:
            if query.HasField("index"):
                raise invalid("a read of all meters (meter_id 0) takes no index")
            selected = [(meter, 0, meter.size) for meter in self._schema.meters.values()]
        else:
            meter = self._schema.meter(query.meter_id)
            selected = [(meter, *_elements(meter, query))]
        found = [(meter, first, self._device.meter_read(meter.name, first, n)) for meter, first, n in selected]
        with_counters = query.HasField("counter_data")
        return (
            _entity(meter, index, state, with_counters)
            for meter, first, states in found
            for index, state in enumerate(states, first)
        )

    # --- direct meters ---

    def write_direct(self, kind: int, entry: p4rt.DirectMeterEntry, journal: Journal) -> None:
        """Configure the meter of a table entry (MODIFY only)."""
        table = self._schema.table(entry.table_entry.table_id)
        type_ = require_direct_meter(table)
        if kind != p4rt.Update.MODIFY:
            raise invalid("a direct meter can only be modified: it comes and goes with its table entry")
        refuse_default(table, entry.table_entry)
        key, priority = decode_key(table, entry.table_entry)
        config = decode_config(type_, entry, f"table {table.name}")
        clear = decode_clear(entry.counter_data, f"table {table.name}") if entry.HasField("counter_data") else False
        if journal.active:
            old = self._device.direct_meter_read(table.name, key, priority)
            journal.add(lambda: self._device.direct_meter_restore(table.name, key, old, priority))
        self._device.direct_meter_write(table.name, key, config, priority)
        if clear:
            self._device.direct_meter_clear(table.name, key, priority)

    def read_direct(self, query: p4rt.DirectMeterEntry) -> Iterator[p4rt.Entity]:
        """Return the meters that a ``DirectMeterEntry`` in a ReadRequest selects."""
        wanted = query.table_entry
        if wanted.table_id == 0:
            if wanted.match or wanted.priority or wanted.is_default_action:
                raise invalid("a read of all direct meters (table_id 0) takes no other filter")
            tables = [table for table in self._schema.tables.values() if table.meter_type is not None]
        else:
            tables = [self._schema.table(wanted.table_id)]
            require_direct_meter(tables[0])
            refuse_default(tables[0], wanted)
        with_counters = query.HasField("counter_data")
        if wanted.match:
            key, priority = decode_key(tables[0], wanted)
            keys = [(tables[0], key, priority)]
        else:
            keys = [
                (table, entry.match, entry.priority)
                for table in tables
                for entry in self._device.entries(table.name)
                if not wanted.priority or entry.priority == wanted.priority
            ]
        found = [
            (table, key, priority, self._device.direct_meter_read(table.name, key, priority))
            for table, key, priority in keys
        ]

        def entity(table: TableSchema, key: tuple[Any, ...], priority: int, state: MeterState) -> p4rt.Entity:
            answer = p4rt.Entity()
            direct = answer.direct_meter_entry
            direct.table_entry.table_id = table.id
            encode_match(direct.table_entry, table, key, priority)
            encode_config(state.config, direct)
            if with_counters:
                encode_colours(state.colours, direct.counter_data)
            return answer

        return (entity(*one) for one in found)


# --- what table entries need too ---


def require_direct_meter(table: TableSchema) -> int:
    """Return the ``MeterSpec.Type`` of a table's direct meter."""
    if table.meter_type is None:
        raise invalid(f"table {table.name} has no direct meter")
    return table.meter_type


def refuse_default(table: TableSchema, entry: p4rt.TableEntry) -> None:
    if entry.is_default_action:
        raise unimplemented(f"table {table.name}: a default entry has no direct meter, since a miss executes none")


def decode_config(
    type_: int, entry: p4rt.MeterEntry | p4rt.DirectMeterEntry | p4rt.TableEntry, what: str
) -> MeterConfig | None:
    """Return the configuration that a message gives to a meter of a type; ``None`` if it gives none."""
    name = "meter_config" if isinstance(entry, p4rt.TableEntry) else "config"
    if not entry.HasField(name):
        return None
    config: p4rt.MeterConfig = getattr(entry, name)
    if min(config.cir, config.cburst, config.pir, config.pburst, config.eburst) < 0:
        raise invalid(f"{what}: a rate or burst is negative")
    if type_ == _Spec.TWO_RATE_THREE_COLOR:
        if config.cir > config.pir:
            raise invalid(f"{what}: the committed rate {config.cir} is above the peak rate {config.pir}")
    elif config.pir != config.cir or config.pburst != config.cburst:
        raise invalid(f"{what} is of a single rate: pir and pburst must be the same as cir and cburst")
    if type_ == _Spec.SINGLE_RATE_THREE_COLOR:
        return MeterConfig(config.cir, config.cburst, config.cir, config.eburst, single_rate=True)
    if config.eburst:
        raise invalid(f"{what}: eburst is for meters of a single rate and three colors")
    return MeterConfig(config.cir, config.cburst, config.pir, config.pburst)


def encode_config(config: MeterConfig | None, out: p4rt.MeterEntry | p4rt.DirectMeterEntry | p4rt.TableEntry) -> None:
    """Fill in a meter's configuration, the inverse of :func:`decode_config`."""
    if config is None:
        return
    message = out.meter_config if isinstance(out, p4rt.TableEntry) else out.config
    message.cir, message.cburst, message.pir = config.cir, config.cburst, config.pir
    if config.single_rate:
        message.pburst, message.eburst = config.cburst, config.pburst
    else:
        message.pburst = config.pburst
    message.SetInParent()


def decode_clear(data: p4rt.MeterCounterData, what: str) -> bool:
    """Check that a ``MeterCounterData`` in a write sets the counters to 0, which is all it can do, and return True."""
    if any(c.packet_count or c.byte_count for c in (data.green, data.yellow, data.red)):
        raise invalid(f"{what}: the counters of a meter can only be set to 0")
    return True


def encode_colours(colours: Colours, out: p4rt.MeterCounterData) -> None:
    for message, (packets, bytes_) in zip((out.green, out.yellow, out.red), colours, strict=True):
        message.packet_count, message.byte_count = packets, bytes_
        message.SetInParent()


def _elements(meter: MeterSchema, entry: p4rt.MeterEntry) -> tuple[int, int]:
    """Return (first, number) of the elements that an entry selects."""
    if not entry.HasField("index"):
        return 0, meter.size
    index = entry.index.index
    if index < 0:
        raise invalid(f"{meter.name}: the index {index} is negative")
    if index >= meter.size:
        raise out_of_range(f"{meter.name}: the index {index} is beyond its {meter.size} elements")
    return index, 1


def _entity(meter: MeterSchema, index: int, state: MeterState, with_counters: bool) -> p4rt.Entity:
    answer = p4rt.Entity()
    entry = answer.meter_entry
    entry.meter_id, entry.index.index = meter.id, index
    encode_config(state.config, entry)
    if with_counters:
        encode_colours(state.colours, entry.counter_data)
    return answer
