"""A small P4Runtime client for one switch: what the tests need to fill it and to read its counters."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence

import grpc
from google.protobuf import text_format

from controlplane.targets.p4runtime.stubs import p4info_pb2, p4runtime_pb2, p4runtime_pb2_grpc
from p4src.artifacts import Artifact


def as_bytes(value: int) -> bytes:
    """An unsigned int as P4Runtime's canonical byte string."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


class Client:
    """Primary controller of device ``device_id`` at ``address``; every call has a deadline."""

    def __init__(self, address: str, device_id: int, artifact: Artifact, timeout: float = 20.0) -> None:
        self.device_id, self.artifact, self.timeout = device_id, artifact, timeout
        self.info = text_format.Parse(artifact.p4info.read_text(), p4info_pb2.P4Info())
        self.channel = grpc.insecure_channel(address)
        grpc.channel_ready_future(self.channel).result(timeout)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self.requests: queue.Queue[p4runtime_pb2.StreamMessageRequest | None] = queue.Queue()
        self.stream = self.stub.StreamChannel(iter(self.requests.get, None))
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = device_id
        request.arbitration.election_id.low = 1
        self.requests.put(request)
        answer = next(self.stream)
        if answer.arbitration.status.code:
            raise RuntimeError(f"not primary: {answer.arbitration.status.message}")

    def _id(self, kind: str, name: str) -> int:
        for item in getattr(self.info, kind):
            if item.preamble.name == name:
                return item.preamble.id
        raise KeyError(f"the P4Runtime description has no {kind} {name!r}")

    def load(self) -> None:
        """Set the pipeline: tables, groups and registers start fresh."""
        action = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=self.device_id, action=action)
        request.election_id.low = 1
        request.config.p4info.CopyFrom(self.info)
        request.config.p4_device_config = self.artifact.program.read_bytes()
        self.stub.SetForwardingPipelineConfig(request, timeout=self.timeout)

    def insert(self, entities: Sequence[p4runtime_pb2.Entity]) -> None:
        """Write new entities in one request."""
        request = p4runtime_pb2.WriteRequest(device_id=self.device_id)
        request.election_id.low = 1
        for entity in entities:
            request.updates.add(type=p4runtime_pb2.Update.INSERT).entity.CopyFrom(entity)
        self.stub.Write(request, timeout=self.timeout)

    def read(self, entity: p4runtime_pb2.Entity) -> Iterator[p4runtime_pb2.Entity]:
        """Everything that matches a (wildcard) entity."""
        request = p4runtime_pb2.ReadRequest(device_id=self.device_id, entities=[entity])
        for response in self.stub.Read(request, timeout=self.timeout):
            yield from response.entities

    def entry(
        self, table: str, match: Sequence[int | tuple[int, int]], action: str, values: Sequence[int]
    ) -> p4runtime_pb2.Entity:
        """A table entry; a match field is an exact value, or (value, prefix length)."""
        entity = p4runtime_pb2.Entity()
        entry = entity.table_entry
        entry.table_id = self._id("tables", table)
        for index, key in enumerate(match):
            field = entry.match.add(field_id=index + 1)
            if isinstance(key, tuple):
                field.lpm.value, field.lpm.prefix_len = as_bytes(key[0]), key[1]
            else:
                field.exact.value = as_bytes(key)
        entry.action.action.action_id = self._id("actions", action)
        for index, value in enumerate(values):
            entry.action.action.params.add(param_id=index + 1, value=as_bytes(value))
        return entity

    def group(self, group: int, ports: Sequence[int]) -> p4runtime_pb2.Entity:
        """A multicast group."""
        entity = p4runtime_pb2.Entity()
        multicast = entity.packet_replication_engine_entry.multicast_group_entry
        multicast.multicast_group_id = group
        for index, port in enumerate(ports):
            multicast.replicas.add(egress_port=port, instance=index + 1)
        return entity

    def counter(self, name: str) -> dict[int, int]:
        """Packets of an indirect counter, by index."""
        entity = p4runtime_pb2.Entity()
        entity.counter_entry.counter_id = self._id("counters", name)
        return {found.counter_entry.index.index: found.counter_entry.data.packet_count for found in self.read(entity)}

    def direct_counters(self, table: str) -> dict[tuple[int, ...], tuple[int, int]]:
        """(packets, bytes) of each entry of a table of exact keys, by its key."""
        entity = p4runtime_pb2.Entity()
        entity.direct_counter_entry.table_entry.table_id = self._id("tables", table)
        counters = {}
        for found in self.read(entity):
            entry = found.direct_counter_entry
            key = tuple(int.from_bytes(field.exact.value, "big") for field in entry.table_entry.match)
            counters[key] = entry.data.packet_count, entry.data.byte_count
        return counters

    def close(self) -> None:
        self.requests.put(None)
        self.channel.close()
