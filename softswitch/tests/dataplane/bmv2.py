"""A real ``simple_switch_grpc`` in a network namespace of its own, for comparison."""

from __future__ import annotations

import select
import socket
import struct
import tempfile
import time
from pathlib import Path
from types import TracebackType

from google.protobuf import text_format

from softswitch.p4runtime.stubs import p4info_pb2, p4runtime_pb2
from softswitch.tests.dataplane.programs import json_path, p4info_path
from softswitch.tests.dataplane.scenario import Frames, Row, Scenario, ordered
from softswitch.tests.support import switches
from softswitch.tests.support.p4runtime import Client, as_bytes, connect
from softswitch.tests.support.switches import SOL_PACKET, Cables

PACKET_AUXDATA = 8
TP_STATUS_VLAN_VALID, TP_STATUS_VLAN_TPID_VALID = 0x10, 0x40
DEADLINE = 20.0
QUIET = 0.08  # seconds without a frame after which a packet's answer counts as complete


def receive(raw: socket.socket) -> bytes:
    """Receive a frame, and put back the VLAN tag that the kernel removes."""
    frame, ancillary, _, _ = raw.recvmsg(65536, 256)
    for level, kind, data in ancillary:
        if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
            status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", data[:20])
            if status & TP_STATUS_VLAN_VALID:
                tag = tpid if status & TP_STATUS_VLAN_TPID_VALID else 0x8100
                frame = frame[:12] + struct.pack(">HH", tag, tci) + frame[12:]
    return frame


class Bmv2:
    """One bmv2 switch that runs a scenario's program with its configuration."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.directory = tempfile.TemporaryDirectory(prefix="inart-t-")
        self.client: Client | None = None
        self.cables = Cables(scenario.ports, mtu=3000)
        self.sockets = self.cables.sockets
        for raw in self.sockets.values():
            raw.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        self.switch = switches.Switch("bmv2", Path(self.directory.name), cables=self.cables)
        try:
            self.switch.start()
            self._configure()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Bmv2:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _configure(self) -> None:
        self.info = text_format.Parse(p4info_path(self.scenario.program).read_text(), p4info_pb2.P4Info())
        self.client = connect(self.switch.address)
        self.client.set_pipeline(json_path(self.scenario.program).read_bytes(), self.info)
        write = p4runtime_pb2.WriteRequest()
        for row in self.scenario.rows:
            self._entry(row, write.updates.add(type=p4runtime_pb2.Update.INSERT).entity.table_entry)
        for group, replicas in self.scenario.groups.items():
            engine = write.updates.add(type=p4runtime_pb2.Update.INSERT).entity.packet_replication_engine_entry
            engine.multicast_group_entry.multicast_group_id = group
            for port, instance in replicas:
                engine.multicast_group_entry.replicas.add(egress_port=port, instance=instance)
        for session, replicas in self.scenario.sessions.items():
            engine = write.updates.add(type=p4runtime_pb2.Update.INSERT).entity.packet_replication_engine_entry
            engine.clone_session_entry.session_id = session
            for port, instance in replicas:
                engine.clone_session_entry.replicas.add(egress_port=port, instance=instance)
        if write.updates:
            self.client.write(*write.updates)

    def _entry(self, row: Row, entry: p4runtime_pb2.TableEntry) -> None:
        table = next(t for t in self.info.tables if t.preamble.name == row.table)
        action = next(a for a in self.info.actions if a.preamble.name == row.action)
        entry.table_id = table.preamble.id
        entry.priority = row.priority
        for key, m in zip(table.match_fields, row.match, strict=True):
            if m is None or (m[0] == "lpm" and m[2] == 0):
                continue  # P4Runtime leaves out fields that may be anything.
            out = entry.match.add(field_id=key.id)
            if m[0] == "exact":
                out.exact.value = as_bytes(m[1])
            elif m[0] == "optional":
                out.optional.value = as_bytes(m[1])
            elif m[0] == "lpm":
                out.lpm.value, out.lpm.prefix_len = as_bytes(m[1]), m[2]
            elif m[0] == "range":
                out.range.low, out.range.high = as_bytes(m[1]), as_bytes(m[2])
            elif m[2]:
                out.ternary.value, out.ternary.mask = as_bytes(m[1]), as_bytes(m[2])
            else:
                entry.match.pop()
        entry.action.action.action_id = action.preamble.id
        for param, value in zip(action.params, row.params, strict=True):
            entry.action.action.params.add(param_id=param.id, value=as_bytes(value))

    def process(self, port: int, frame: bytes, at_least: int = 0) -> Frames:
        """Return the frames that leave because of a frame: at least `at_least`, and until none has left for ``QUIET``
        seconds.
        """
        self.sockets[port].send(frame)
        by_fd = {raw.fileno(): (number, raw) for number, raw in self.sockets.items()}
        frames: Frames = []
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            ready, _, _ = select.select(list(by_fd), [], [], QUIET)
            if not ready and len(frames) >= at_least:
                break
            for fd in ready:
                number, raw = by_fd[fd]
                frames.append((number, receive(raw)))
        return ordered(frames)

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
        self.switch.close()
        self.cables.close()
        self.directory.cleanup()
