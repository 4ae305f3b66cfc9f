"""The P4Runtime client of a switch that runs one of our programs: entries, groups and counters by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.protobuf import text_format

from p4src.artifacts import Artifact
from softswitch.p4runtime.stubs import p4info_pb2, p4runtime_pb2
from softswitch.tests.support import p4runtime
from softswitch.tests.support.p4runtime import INSERT, as_bytes


class Client(p4runtime.Client):
    """A client that is primary controller of device 1 at ``address``, which may still be starting."""

    def __init__(self, address: str, artifact: Artifact) -> None:
        super().__init__(address)
        self.artifact = artifact
        self.info = text_format.Parse(artifact.p4info.read_text(), p4info_pb2.P4Info())
        self.ready()
        self.become_primary()

    def _id(self, kind: str, name: str) -> int:
        for item in getattr(self.info, kind):
            if item.preamble.name == name:
                return item.preamble.id
        raise KeyError(f"the P4Runtime description has no {kind} {name!r}")

    def load(self) -> None:
        """Set the pipeline: tables, groups and registers start fresh."""
        self.set_pipeline(self.artifact.program.read_bytes(), self.info)

    def insert(self, entities: Iterable[p4runtime_pb2.Entity]) -> None:
        """Write new entities in one request."""
        self.write(*(p4runtime_pb2.Update(type=INSERT, entity=entity) for entity in entities))

    def entry(
        self,
        table: str,
        match: Sequence[int | tuple[int, int]],
        action: str,
        values: Sequence[int],
        priority: int = 0,
    ) -> p4runtime_pb2.Entity:
        """Return a table entry; a match field is a value, or (value, prefix length), with ``priority`` (value,
        mask).
        """
        entity = p4runtime_pb2.Entity()
        entry = entity.table_entry
        entry.table_id = self._id("tables", table)
        for index, key in enumerate(match):
            if priority and isinstance(key, tuple):
                if key[1]:
                    field = entry.match.add(field_id=index + 1)
                    field.ternary.value, field.ternary.mask = as_bytes(key[0] & key[1]), as_bytes(key[1])
                continue
            field = entry.match.add(field_id=index + 1)
            if isinstance(key, tuple):
                field.lpm.value, field.lpm.prefix_len = as_bytes(key[0]), key[1]
            else:
                field.exact.value = as_bytes(key)
        entry.priority = priority
        entry.action.action.action_id = self._id("actions", action)
        for index, value in enumerate(values):
            entry.action.action.params.add(param_id=index + 1, value=as_bytes(value))
        return entity

    def group(self, group: int, ports: Sequence[int]) -> p4runtime_pb2.Entity:
        """Return a multicast group."""
        entity = p4runtime_pb2.Entity()
        multicast = entity.packet_replication_engine_entry.multicast_group_entry
        multicast.multicast_group_id = group
        for index, port in enumerate(ports):
            multicast.replicas.add(egress_port=port, instance=index + 1)
        return entity

    def counter(self, name: str) -> dict[int, int]:
        """Return the packets of an indirect counter, by index."""
        return {index: data.packet_count for index, data in self._cells(name)}

    def counter_bytes(self, name: str) -> dict[int, int]:
        """Return the bytes of an indirect counter, by index."""
        return {index: data.byte_count for index, data in self._cells(name)}

    def _cells(self, name: str) -> Iterable[tuple[int, p4runtime_pb2.CounterData]]:
        entity = p4runtime_pb2.Entity()
        entity.counter_entry.counter_id = self._id("counters", name)
        return ((found.counter_entry.index.index, found.counter_entry.data) for found in self.read(entity))

    def direct_counters(self, table: str) -> dict[tuple[int, ...], tuple[int, int]]:
        """Return (packets, bytes) of each entry of a table of exact keys, by its key."""
        entity = p4runtime_pb2.Entity()
        entity.direct_counter_entry.table_entry.table_id = self._id("tables", table)
        counters = {}
        for found in self.read(entity):
            entry = found.direct_counter_entry
            key = tuple(int.from_bytes(field.exact.value, "big") for field in entry.table_entry.match)
            counters[key] = entry.data.packet_count, entry.data.byte_count
        return counters
