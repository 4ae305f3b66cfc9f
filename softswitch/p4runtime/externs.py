"""``CounterEntry`` and ``RegisterEntry``: arrays that are accessed by index or as a whole.

The P4Runtime specification describes this in "CounterEntry" and "RegisterEntry".
"""

from __future__ import annotations

from collections.abc import Iterator

from softswitch.dataplane.device import Device
from softswitch.p4runtime import bytestring
from softswitch.p4runtime.schema import CounterSchema, RegisterSchema, Schema
from softswitch.p4runtime.status import invalid, out_of_range, unimplemented
from softswitch.p4runtime.stubs import p4data_pb2
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.tables import counter_values
from softswitch.p4runtime.undo import Journal


class ExternAccess:
    """Counters and registers of one device under one schema; the caller holds the device's lock during calls."""

    def __init__(self, device: Device, schema: Schema) -> None:
        self._device = device
        self._schema = schema

    def write_counter(self, kind: int, entry: p4rt.CounterEntry, journal: Journal) -> None:
        """Set one element, or all of them when the index is unset (MODIFY only)."""
        counter = self._schema.counter(entry.counter_id)
        if kind != p4rt.Update.MODIFY:
            raise invalid(f"counter {counter.name} can only be modified")
        indices = _indices(counter, entry)
        if not entry.HasField("data"):
            return
        packets, bytes_ = counter_values(entry.data, f"counter {counter.name}")
        if journal.active:
            old = [(index, *self._device.counter_read(counter.name, index)) for index in indices]

            def restore() -> None:
                for index, old_packets, old_bytes in old:
                    self._device.counter_write(counter.name, index, old_packets, old_bytes)

            journal.add(restore)
        for index in indices:
            self._device.counter_write(counter.name, index, packets, bytes_)

    def read_counters(self, query: p4rt.CounterEntry) -> Iterator[p4rt.Entity]:
        """Return the elements that a ``CounterEntry`` in a ReadRequest selects."""
        if query.counter_id == 0:
            if query.HasField("index"):
                raise invalid("a read of all counters (counter_id 0) takes no index")
            found = [(counter, self._read_counter(counter)) for counter in self._schema.counters.values()]
        else:
            counter = self._schema.counter(query.counter_id)
            if query.HasField("index"):
                (index,) = _indices(counter, query)
                found = [(counter, [(index, *self._device.counter_read(counter.name, index))])]
            else:
                found = [(counter, self._read_counter(counter))]
        return (
            p4rt.Entity(
                counter_entry=p4rt.CounterEntry(
                    counter_id=counter.id,
                    index=p4rt.Index(index=index),
                    data=p4rt.CounterData(packet_count=packets, byte_count=bytes_),
                )
            )
            for counter, values in found
            for index, packets, bytes_ in values
        )

    def _read_counter(self, counter: CounterSchema) -> list[tuple[int, int, int]]:
        return [(index, *value) for index, value in enumerate(self._device.counter_read_all(counter.name))]

    def write_register(self, kind: int, entry: p4rt.RegisterEntry, journal: Journal) -> None:
        """Set one element, or all of them when the index is unset (MODIFY only)."""
        register = self._schema.register(entry.register_id)
        if kind != p4rt.Update.MODIFY:
            raise invalid(f"register {register.name} can only be modified")
        indices = _indices(register, entry)
        if not entry.HasField("data"):
            raise invalid(f"register {register.name}: the entry has no data")
        value = _decode_data(register, entry.data)
        if journal.active:
            old = [(index, self._device.register_read(register.name, index)) for index in indices]

            def restore() -> None:
                for index, old_value in old:
                    self._device.register_write(register.name, index, old_value)

            journal.add(restore)
        for index in indices:
            self._device.register_write(register.name, index, value)

    def read_registers(self, query: p4rt.RegisterEntry) -> Iterator[p4rt.Entity]:
        """Return the elements that a ``RegisterEntry`` in a ReadRequest selects."""
        if query.register_id == 0:
            if query.HasField("index"):
                raise invalid("a read of all registers (register_id 0) takes no index")
            # Registers whose type P4Runtime cannot express are left out here, and refused when they are read by id.
            registers = [register for register in self._schema.registers.values() if register.kind]
            found = [(register, self._read_register(register)) for register in registers]
        else:
            register = self._schema.register(query.register_id)
            _require_known_type(register)
            if query.HasField("index"):
                (index,) = _indices(register, query)
                found = [(register, [(index, self._device.register_read(register.name, index))])]
            else:
                found = [(register, self._read_register(register))]
        return (
            p4rt.Entity(
                register_entry=p4rt.RegisterEntry(
                    register_id=register.id, index=p4rt.Index(index=index), data=_encode_data(register, value)
                )
            )
            for register, values in found
            for index, value in values
        )

    def _read_register(self, register: RegisterSchema) -> list[tuple[int, int]]:
        return list(enumerate(self._device.register_read_all(register.name)))


def _indices(array: CounterSchema | RegisterSchema, entry: p4rt.CounterEntry | p4rt.RegisterEntry) -> range:
    """Return the indices that an entry selects: the one at its index, or all."""
    if not entry.HasField("index"):
        return range(array.size)
    index = entry.index.index
    if index < 0:
        raise invalid(f"{array.name}: the index {index} is negative")
    if index >= array.size:
        raise out_of_range(f"{array.name}: the index {index} is beyond its {array.size} elements")
    return range(index, index + 1)


def _require_known_type(register: RegisterSchema) -> None:
    if register.kind is None:
        raise unimplemented(f"register {register.name}: only elements of type bit<W>, int<W> and bool are supported")


def _decode_data(register: RegisterSchema, data: p4data_pb2.P4Data) -> int:
    _require_known_type(register)
    expected = "bool" if register.kind == "bool" else "bitstring"
    given = data.WhichOneof("data")
    if given != expected:
        raise invalid(f"register {register.name}: its elements are {expected} data, the entry gives {given or 'none'}")
    if register.kind == "bool":
        return int(data.bool)
    decode = bytestring.decode_signed if register.kind == "int" else bytestring.decode
    return decode(data.bitstring, register.width, f"register {register.name}")


def _encode_data(register: RegisterSchema, value: int) -> p4data_pb2.P4Data:
    if register.kind == "bool":
        return p4data_pb2.P4Data(bool=bool(value))
    if register.kind == "int":
        return p4data_pb2.P4Data(bitstring=bytestring.encode_signed(value, register.width))
    return p4data_pb2.P4Data(bitstring=bytestring.encode(value))
