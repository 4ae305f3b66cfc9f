"""A P4Runtime client that fills either switch."""

from __future__ import annotations

import queue
from collections.abc import Sequence

import grpc
from google.protobuf import text_format

from evaluation.softswitch.workloads import Row, Workload
from softswitch.p4runtime.stubs import p4info_pb2, p4runtime_pb2, p4runtime_pb2_grpc

DEADLINE = 60.0  # seconds for a switch to start and for each call to it
DEVICE_ID = 1


class Client:
    """The primary client of device 1 behind ``address``."""

    def __init__(self, address: str) -> None:
        self._requests: queue.Queue[p4runtime_pb2.StreamMessageRequest | None] = queue.Queue()
        self._channel = grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)])
        try:
            grpc.channel_ready_future(self._channel).result(DEADLINE)
            self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
            self._stream = self._stub.StreamChannel(iter(self._requests.get, None))
            hello = p4runtime_pb2.StreamMessageRequest()
            hello.arbitration.device_id = DEVICE_ID
            hello.arbitration.election_id.low = 1
            self._requests.put(hello)
            next(self._stream)
        except BaseException:
            self.close()
            raise

    def load(self, workload: Workload) -> None:
        """Push the workload's program."""
        self.info = text_format.Parse(workload.p4info.read_text(), p4info_pb2.P4Info())
        commit = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=DEVICE_ID, action=commit)
        request.election_id.low = 1
        request.config.p4info.CopyFrom(self.info)
        request.config.p4_device_config = workload.program.read_bytes()
        self._stub.SetForwardingPipelineConfig(request, timeout=DEADLINE)

    def requests(self, rows: Sequence[Row], batch: int, *, delete: bool = False) -> list[p4runtime_pb2.WriteRequest]:
        """Return the Write requests that insert (or delete) the rows, `batch` in each."""
        kind = p4runtime_pb2.Update.DELETE if delete else p4runtime_pb2.Update.INSERT
        tables = {t.preamble.name: t for t in self.info.tables}
        actions = {a.preamble.name: a.preamble.id for a in self.info.actions}
        made: list[p4runtime_pb2.WriteRequest] = []
        for start in range(0, len(rows), batch):
            request = p4runtime_pb2.WriteRequest(device_id=DEVICE_ID)
            request.election_id.low = 1
            for row in rows[start : start + batch]:
                entry = request.updates.add(type=kind).entity.table_entry
                entry.table_id, entry.priority = tables[row.table].preamble.id, row.priority
                for key, match in zip(tables[row.table].match_fields, row.match, strict=True):
                    if match.kind == "ternary" and not match.mask:
                        continue  # P4Runtime leaves out fields that may be anything.
                    field = entry.match.add(field_id=key.id)
                    if match.kind == "lpm":
                        field.lpm.value, field.lpm.prefix_len = _bytes(match.value), match.prefix_len
                    elif match.kind == "ternary":
                        field.ternary.value, field.ternary.mask = _bytes(match.value), _bytes(match.mask)
                    else:
                        field.exact.value = _bytes(match.value)
                if delete:
                    continue
                entry.action.action.action_id = actions[row.action]
                for number, value in enumerate(row.params, 1):
                    entry.action.action.params.add(param_id=number, value=_bytes(value))
            made.append(request)
        return made

    def group_requests(self, groups: int, replicas: int, batch: int) -> list[p4runtime_pb2.WriteRequest]:
        """Return the Write requests that insert multicast groups of `replicas` ports, `batch` in each."""
        made: list[p4runtime_pb2.WriteRequest] = []
        for start in range(1, groups + 1, batch):
            request = p4runtime_pb2.WriteRequest(device_id=DEVICE_ID)
            request.election_id.low = 1
            for number in range(start, min(start + batch, groups + 1)):
                entity = request.updates.add(type=p4runtime_pb2.Update.INSERT).entity
                group = entity.packet_replication_engine_entry.multicast_group_entry
                group.multicast_group_id = number
                for port in range(replicas):
                    group.replicas.add(egress_port=port, instance=1)
            made.append(request)
        return made

    def send(self, requests: Sequence[p4runtime_pb2.WriteRequest]) -> None:
        """Send the requests one after the other."""
        for request in requests:
            self._stub.Write(request, timeout=DEADLINE)

    def read_all(self, table: str, expected: int) -> None:
        """Read a table, which must have `expected` entries."""
        request = p4runtime_pb2.ReadRequest(device_id=DEVICE_ID)
        entry = request.entities.add().table_entry
        entry.table_id = next(t.preamble.id for t in self.info.tables if t.preamble.name == table)
        found = sum(len(answer.entities) for answer in self._stub.Read(request, timeout=DEADLINE))
        if found != expected:
            raise RuntimeError(f"table {table} has {found} entries, not {expected}")

    def close(self) -> None:
        self._requests.put(None)
        self._channel.close()


def _bytes(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
