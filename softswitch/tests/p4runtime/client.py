"""Entities of the demonstration program (demo.p4), and a client that loads it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from google.protobuf import text_format

from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.support import p4runtime
from softswitch.tests.support.p4runtime import INSERT, update

EXACT, LPM, ACL, CONST, KEYLESS = range(0x02000001, 0x02000006)
NO_ACTION = 21257015  # p4c's id of NoAction
DROP, FORWARD, ROUTE, REPLICATE, COPY = range(0x01000002, 0x01000007)
VERDICTS, SUMS, SIGNED = 0x12000001, 0x16000001, 0x16000002


def demo_p4info() -> p4info_pb2.P4Info:
    text = (Path(__file__).parent / "demo.p4info.txtpb").read_text()
    return text_format.Parse(text, p4info_pb2.P4Info())


class Client(p4runtime.Client):
    """A client that uses the demonstration program's P4Info if a test gives none."""

    def set_pipeline(
        self,
        device_config: bytes | None,
        p4info: p4info_pb2.P4Info | None = None,
        action: int = p4rt.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        cookie: int | None = None,
    ) -> None:
        super().set_pipeline(device_config, p4info or demo_p4info(), action, cookie)


def action(action_id: int, *values: bytes) -> p4rt.TableAction:
    params = [p4rt.Action.Param(param_id=index, value=value) for index, value in enumerate(values, 1)]
    return p4rt.TableAction(action=p4rt.Action(action_id=action_id, params=params))


def exact(field_id: int, value: bytes) -> p4rt.FieldMatch:
    return p4rt.FieldMatch(field_id=field_id, exact=p4rt.FieldMatch.Exact(value=value))


def lpm(value: bytes, prefix_len: int) -> p4rt.FieldMatch:
    return p4rt.FieldMatch(field_id=1, lpm=p4rt.FieldMatch.LPM(value=value, prefix_len=prefix_len))


def ternary(value: bytes, mask: bytes) -> p4rt.FieldMatch:
    return p4rt.FieldMatch(field_id=1, ternary=p4rt.FieldMatch.Ternary(value=value, mask=mask))


def between(low: bytes, high: bytes) -> p4rt.FieldMatch:
    return p4rt.FieldMatch(field_id=2, range=p4rt.FieldMatch.Range(low=low, high=high))


def optional(value: bytes) -> p4rt.FieldMatch:
    return p4rt.FieldMatch(field_id=3, optional=p4rt.FieldMatch.Optional(value=value))


def exact_entry(dst: bytes = b"\x02", port: bytes = b"\x01", **more: object) -> p4rt.TableEntry:
    """Return an entry of exact_table that forwards to port 5 unless ``more`` says otherwise."""
    more.setdefault("action", action(FORWARD, b"\x05"))
    return p4rt.TableEntry(table_id=EXACT, match=[exact(1, dst), exact(2, port)], **more)


def acl_entry(matches: Iterable[p4rt.FieldMatch] = (), priority: int = 10, **more: object) -> p4rt.TableEntry:
    more.setdefault("action", action(DROP))
    return p4rt.TableEntry(table_id=ACL, match=[*matches, exact(4, b"\x01")], priority=priority, **more)


def insert(entry: p4rt.TableEntry) -> p4rt.Update:
    return update(INSERT, table_entry=entry)


def group(kind: int, number: int, *replicas: p4rt.Replica, metadata: bytes = b"") -> p4rt.Update:
    entry = p4rt.MulticastGroupEntry(multicast_group_id=number, replicas=replicas, metadata=metadata)
    return update(kind, packet_replication_engine_entry=p4rt.PacketReplicationEngineEntry(multicast_group_entry=entry))


def clone(kind: int, number: int, *replicas: p4rt.Replica, length: int = 0, service: int = 0) -> p4rt.Update:
    entry = p4rt.CloneSessionEntry(
        session_id=number, replicas=replicas, packet_length_bytes=length, class_of_service=service
    )
    return update(kind, packet_replication_engine_entry=p4rt.PacketReplicationEngineEntry(clone_session_entry=entry))
