"""Table entries: which are accepted, which are refused with which code, and what reads return."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import code_pb2

from softswitch.bmv2json.model import Match
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.p4runtime.client import (
    ACL,
    CONST,
    DROP,
    EXACT,
    FORWARD,
    KEYLESS,
    LPM,
    NO_ACTION,
    ROUTE,
    Client,
    acl_entry,
    action,
    between,
    exact,
    exact_entry,
    insert,
    lpm,
    optional,
    ternary,
)
from softswitch.tests.p4runtime.conftest import Served
from softswitch.tests.support.p4runtime import DELETE, INSERT, MODIFY, batch_errors, update

INVALID, DENIED, RANGE = code_pb2.INVALID_ARGUMENT, code_pb2.PERMISSION_DENIED, code_pb2.OUT_OF_RANGE
ROUTED = action(ROUTE, b"\x0a", b"\x01")


def lpm_entry(*matches: p4rt.FieldMatch, **more: object) -> p4rt.TableEntry:
    more.setdefault("action", action(DROP))
    return p4rt.TableEntry(table_id=LPM, match=matches, **more)


def table_query(**fields: object) -> p4rt.Entity:
    return p4rt.Entity(table_entry=p4rt.TableEntry(**fields))


def code(client: Client, one: p4rt.Update) -> int:
    (error,) = client.outcomes(one)
    assert bool(error.message) == (error.canonical_code != 0)
    return error.canonical_code


def read_code(client: Client, query: p4rt.Entity) -> int:
    with pytest.raises(grpc.RpcError) as caught:
        client.read(query)
    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    (error,) = batch_errors(caught.value)
    return error.canonical_code


@pytest.mark.parametrize(
    "entry",
    [
        exact_entry(b"\xff" * 6, b"\x01\xff", metadata=b"note", controller_metadata=7),
        exact_entry(b"\x00", b"\x00", action=action(DROP)),
        lpm_entry(lpm(b"\x0a\x00\x00\x00", 8), action=ROUTED),
        lpm_entry(lpm(b"\x0a\x01\x02\x03", 32)),
        lpm_entry(),  # matches anything
        acl_entry([ternary(b"\x00", b"\x01"), between(b"\x01", b"\xff\xff"), optional(b"\x00")]),
        acl_entry([ternary(b"\x12\x00", b"\xff\x00")], priority=2**31 - 1),
        acl_entry([optional(b"\xff")]),
        acl_entry(),
    ],
    ids=str,
)
def test_written_entries_are_read_back(primary: Client, entry: p4rt.TableEntry) -> None:
    primary.write(insert(entry))
    assert primary.read(table_query(table_id=entry.table_id)) == [p4rt.Entity(table_entry=entry)]
    assert primary.read(p4rt.Entity(table_entry=entry)) == [p4rt.Entity(table_entry=entry)]
    primary.write(update(DELETE, table_entry=entry))
    assert primary.read(table_query(table_id=entry.table_id)) == []


def test_the_device_gets_integers(served: Served, primary: Client) -> None:
    entry = acl_entry(
        [ternary(b"\x12\x00", b"\xff\x00"), between(b"\x05", b"\x01\x00")], action=action(FORWARD, b"\x07")
    )
    primary.write(insert(entry))
    (found,) = served.devices[1].entries("MyIngress.acl")
    assert found.match == (
        Match("ternary", 0x1200, mask=0xFF00),
        Match("range", 5, high=256),
        Match("ternary", 0, mask=0),
        Match("exact", 1),
    )
    assert (found.priority, found.action, found.params) == (10, "MyIngress.forward", (7,))


def test_values_with_leading_zeros_are_the_same_values(primary: Client) -> None:
    primary.write(insert(exact_entry(b"\x00\x00\x02", b"\x00\x01", action=action(FORWARD, b"\x00\x00\x05"))))
    assert primary.read(table_query(table_id=EXACT)) == [p4rt.Entity(table_entry=exact_entry())]
    assert code(primary, insert(exact_entry())) == code_pb2.ALREADY_EXISTS


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (exact_entry(b"\x01" + b"\x00" * 6), RANGE),
        (exact_entry(port=b"\x02\x00"), RANGE),
        (exact_entry(b""), INVALID),
        (exact_entry(action=action(FORWARD, b"\x02\x00")), RANGE),
        (exact_entry(action=action(FORWARD, b"")), INVALID),
        (exact_entry(action=action(FORWARD)), INVALID),
        (exact_entry(action=action(FORWARD, b"\x01", b"\x01")), INVALID),
        (exact_entry(action=action(ROUTE, b"\x01", b"\x01")), INVALID),
        (exact_entry(action=action(NO_ACTION)), DENIED),  # only as default action
        (exact_entry(action=p4rt.TableAction()), INVALID),
        (exact_entry(action=p4rt.TableAction(action_profile_member_id=1)), INVALID),
        (exact_entry(priority=1), INVALID),
        (exact_entry(idle_timeout_ns=1), INVALID),
        (exact_entry(time_since_last_hit=p4rt.TableEntry.IdleTimeout()), INVALID),
        (exact_entry(meter_config=p4rt.MeterConfig()), INVALID),
        (exact_entry(is_const=True), INVALID),
        (p4rt.TableEntry(table_id=EXACT, match=[exact(1, b"\x01")], action=action(DROP)), INVALID),
        (p4rt.TableEntry(table_id=EXACT, match=[exact(1, b"\x01")] * 2, action=action(DROP)), INVALID),
        (p4rt.TableEntry(table_id=EXACT, match=[exact(1, b"\x01"), exact(3, b"\x01")], action=action(DROP)), INVALID),
        (p4rt.TableEntry(table_id=EXACT, match=[p4rt.FieldMatch(field_id=1)], action=action(DROP)), INVALID),
        (p4rt.TableEntry(table_id=12345, action=action(DROP)), INVALID),
        (p4rt.TableEntry(table_id=0, action=action(DROP)), INVALID),
        (p4rt.TableEntry(table_id=FORWARD, action=action(DROP)), INVALID),
        (p4rt.TableEntry(table_id=KEYLESS, action=action(NO_ACTION)), INVALID),
        (lpm_entry(lpm(b"\x0a\x00\x00\x01", 8)), INVALID),
        (lpm_entry(lpm(b"\x00", 0)), INVALID),
        (lpm_entry(lpm(b"\x0a", 33)), INVALID),
        (lpm_entry(lpm(b"\x0a", -1)), INVALID),
        (lpm_entry(exact(1, b"\x0a")), INVALID),
        (lpm_entry(counter_data=p4rt.CounterData()), INVALID),  # no direct counter
        (acl_entry([ternary(b"\x01", b"\x00")]), INVALID),
        (acl_entry([ternary(b"\x03", b"\x01")]), INVALID),
        (acl_entry([between(b"\x05", b"\x04")]), INVALID),
        (acl_entry([between(b"\x00", b"\xff\xff")]), INVALID),
        (acl_entry([optional(b"\x01\x00")]), RANGE),
        (acl_entry(priority=0), INVALID),
        (acl_entry(priority=-1), INVALID),
    ],
    ids=lambda value: str(value)[:150],
)
def test_bad_entries_are_refused_and_change_nothing(
    served: Served, primary: Client, entry: p4rt.TableEntry, expected: int
) -> None:
    before = primary.read(table_query())
    assert code(primary, insert(entry)) == expected
    assert primary.read(table_query()) == before


def test_insert_modify_delete_and_their_errors(primary: Client) -> None:
    changed = exact_entry(action=action(FORWARD, b"\x09"))
    assert code(primary, update(MODIFY, table_entry=changed)) == code_pb2.NOT_FOUND
    assert code(primary, update(DELETE, table_entry=changed)) == code_pb2.NOT_FOUND
    primary.write(insert(exact_entry()))
    assert code(primary, insert(changed)) == code_pb2.ALREADY_EXISTS
    primary.write(update(MODIFY, table_entry=changed))
    assert primary.read(table_query(table_id=EXACT)) == [p4rt.Entity(table_entry=changed)]
    nonsense = exact_entry(action=action(99), idle_timeout_ns=5)  # a delete considers only the key
    primary.write(update(DELETE, table_entry=nonsense))
    assert primary.read(table_query(table_id=EXACT)) == []
    assert code(primary, update(p4rt.Update.UNSPECIFIED, table_entry=exact_entry())) == INVALID


def test_modify_without_action_keeps_the_action(primary: Client) -> None:
    bare = exact_entry()
    bare.ClearField("action")
    assert code(primary, insert(bare)) == INVALID
    assert code(primary, update(MODIFY, table_entry=bare)) == code_pb2.NOT_FOUND
    primary.write(insert(exact_entry(metadata=b"kept")))
    primary.write(update(MODIFY, table_entry=bare))
    assert primary.read(table_query(table_id=EXACT)) == [p4rt.Entity(table_entry=exact_entry(metadata=b"kept"))]


def test_full_table(primary: Client) -> None:
    primary.write(*(insert(exact_entry(bytes([number]))) for number in range(64)))
    assert code(primary, insert(exact_entry(b"\xff"))) == code_pb2.RESOURCE_EXHAUSTED


def test_default_entry(primary: Client) -> None:
    def default(table_id: int, **more: object) -> p4rt.TableEntry:
        return p4rt.TableEntry(table_id=table_id, is_default_action=True, **more)

    query = p4rt.Entity(table_entry=default(LPM))
    original = [p4rt.Entity(table_entry=default(LPM, action=action(DROP)))]
    assert primary.read(query) == original
    entry = default(LPM, action=action(ROUTE, b"\x01", b"\x02"))
    assert code(primary, update(MODIFY, table_entry=entry)) == DENIED  # TABLE_ONLY
    changed = default(EXACT, action=action(FORWARD, b"\x04"), metadata=b"mine")
    primary.write(update(MODIFY, table_entry=changed))
    assert primary.read(p4rt.Entity(table_entry=default(EXACT))) == [p4rt.Entity(table_entry=changed)]
    assert primary.read(table_query(table_id=EXACT)) == []
    primary.write(update(MODIFY, table_entry=default(EXACT)))  # back to the program's default
    (reset,) = primary.read(p4rt.Entity(table_entry=default(EXACT)))
    assert reset.table_entry == default(EXACT, action=action(NO_ACTION))
    for kind in (INSERT, DELETE):
        assert code(primary, update(kind, table_entry=changed)) == INVALID
    for extra in ({"priority": 1}, {"match": [exact(1, b"\x01")]}, {"idle_timeout_ns": 1}):
        assert code(primary, update(MODIFY, table_entry=default(EXACT, action=action(DROP), **extra))) == INVALID
    assert code(primary, update(MODIFY, table_entry=default(CONST, action=action(NO_ACTION)))) == DENIED
    keyless = default(KEYLESS, action=action(FORWARD, b"\x01"))
    primary.write(update(MODIFY, table_entry=keyless))
    assert primary.read(p4rt.Entity(table_entry=keyless)) == [p4rt.Entity(table_entry=keyless)]


def test_const_table(primary: Client) -> None:
    (found,) = primary.read(table_query(table_id=CONST))
    assert found.table_entry.is_const
    key = p4rt.TableEntry(table_id=CONST, match=[exact(1, b"\x08\x00")])
    acting = p4rt.TableEntry(table_id=CONST, match=[exact(1, b"\x08\x00")], action=action(FORWARD, b"\x01"))
    other = p4rt.TableEntry(table_id=CONST, match=[exact(1, b"\x09")], action=action(FORWARD, b"\x01"))
    assert [code(primary, insert(other)), code(primary, update(MODIFY, table_entry=acting))] == [DENIED, DENIED]
    assert code(primary, update(DELETE, table_entry=key)) == DENIED
    key.counter_data.packet_count = 5
    primary.write(update(MODIFY, table_entry=key))
    (counted,) = primary.read(table_query(table_id=CONST, counter_data=p4rt.CounterData()))
    assert counted.table_entry.counter_data.packet_count == 5


def test_reads_with_filters(primary: Client) -> None:
    first = exact_entry(b"\x01", metadata=b"a", controller_metadata=1)
    second = exact_entry(b"\x02", action=action(DROP), metadata=b"b")
    acls = [acl_entry(priority=5), acl_entry([optional(b"\x01")], priority=5), acl_entry(priority=6)]
    primary.write(*map(insert, [first, second, *acls]))

    def found(**fields: object) -> list[p4rt.TableEntry]:
        return [entity.table_entry for entity in primary.read(table_query(**fields))]

    assert len(found()) == 6  # these and the const entry; default entries are not among them
    assert found(table_id=EXACT, action=action(DROP)) == [second]
    assert found(table_id=EXACT, action=action(FORWARD)) == [first]
    assert found(table_id=EXACT, action=action(FORWARD, b"\x06")) == []
    assert found(table_id=EXACT, metadata=b"b") == [second]
    assert found(table_id=EXACT, controller_metadata=1) == [first]
    assert found(table_id=EXACT, match=second.match) == [second]
    assert found(table_id=EXACT, match=[exact(1, b"\x77"), exact(2, b"\x01")]) == []
    assert found(table_id=ACL, priority=5) == acls[:2]
    assert found(table_id=ACL, match=acls[0].match) == [acls[0], acls[2]]
    assert found(table_id=ACL, match=acls[0].match, priority=6) == [acls[2]]
    for bad in (
        {"table_id": 999},
        {"match": first.match},
        {"priority": 1},
        {"is_default_action": True},
        {"table_id": EXACT, "match": [exact(1, b"\x01")]},
        {"table_id": EXACT, "action": action(ROUTE)},
        {"table_id": LPM, "counter_data": p4rt.CounterData()},
    ):
        assert read_code(primary, table_query(**bad)) == INVALID


def test_direct_counters(served: Served, primary: Client) -> None:
    counted = exact_entry(counter_data=p4rt.CounterData(packet_count=3, byte_count=300))
    primary.write(insert(counted), insert(exact_entry(b"\x09")))
    assert primary.read(table_query(table_id=EXACT, counter_data=p4rt.CounterData()))[0].table_entry == counted
    everything = primary.read(table_query(counter_data=p4rt.CounterData()))
    assert all(entity.table_entry.HasField("counter_data") for entity in everything)

    def counter(entry: p4rt.TableEntry, **more: object) -> p4rt.DirectCounterEntry:
        key = p4rt.TableEntry(table_id=entry.table_id, match=entry.match, is_default_action=entry.is_default_action)
        return p4rt.DirectCounterEntry(table_entry=key, **more)

    def read(**fields: object) -> list[tuple[int, int]]:
        query = p4rt.Entity(direct_counter_entry=p4rt.DirectCounterEntry(table_entry=p4rt.TableEntry(**fields)))
        answers = [entity.direct_counter_entry.data for entity in primary.read(query)]
        return [(data.packet_count, data.byte_count) for data in answers]

    data = p4rt.CounterData(packet_count=8, byte_count=80)
    primary.write(update(MODIFY, direct_counter_entry=counter(counted, data=data)))
    primary.write(update(MODIFY, direct_counter_entry=counter(counted)))  # without data there is nothing to do
    assert read(table_id=EXACT, match=counted.match) == [(8, 80)]
    assert read(table_id=EXACT) == [(8, 80), (0, 0)]
    assert len(read()) == 3
    default = p4rt.TableEntry(table_id=EXACT, is_default_action=True)
    primary.write(update(MODIFY, direct_counter_entry=counter(default, data=data)))
    assert read(table_id=EXACT, is_default_action=True) == [(8, 80)]
    primary.write(update(MODIFY, table_entry=exact_entry(action=action(DROP))))  # this does not change the counter
    assert read(table_id=EXACT, match=counted.match) == [(8, 80)]
    missing = exact_entry(b"\x55")
    assert code(primary, update(MODIFY, direct_counter_entry=counter(missing, data=data))) == code_pb2.NOT_FOUND
    assert code(primary, update(INSERT, direct_counter_entry=counter(counted, data=data))) == INVALID
    assert code(primary, update(DELETE, direct_counter_entry=counter(counted))) == INVALID
    assert code(primary, update(MODIFY, direct_counter_entry=counter(lpm_entry(), data=data))) == INVALID
    negative = counter(counted, data=p4rt.CounterData(packet_count=-1))
    assert code(primary, update(MODIFY, direct_counter_entry=negative)) == INVALID
    query = p4rt.Entity(direct_counter_entry=counter(missing))
    assert read_code(primary, query) == code_pb2.NOT_FOUND


def test_large_tables_come_in_several_messages(primary: Client) -> None:
    entries = [
        p4rt.TableEntry(table_id=LPM, match=[lpm(number.to_bytes(4, "big"), 32)], action=ROUTED, metadata=bytes(1000))
        for number in range(0x01000000, 0x01000000 + 1024)
    ]
    primary.write(*map(insert, entries))
    request = p4rt.ReadRequest(device_id=1, entities=[table_query(table_id=LPM)])
    responses = list(primary.stub.Read(request, timeout=10))
    assert len(responses) > 1
    assert max(response.ByteSize() for response in responses) < 1 << 20
    assert [entity.table_entry for response in responses for entity in response.entities] == entries
