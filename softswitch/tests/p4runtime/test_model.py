"""Random batches against a dictionary: the server never forgets, invents or confuses an entry."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from google.rpc import code_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch.dataplane.fabric import Fabric
from softswitch.dataplane.program import Program
from softswitch.p4runtime.arbitration import Session
from softswitch.p4runtime.pipeline import Loader, config_of
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.target import Target
from softswitch.p4runtime.timer import Timer
from softswitch.tests.p4runtime.client import (
    ACL,
    DROP,
    EXACT,
    FORWARD,
    LPM,
    ROUTE,
    acl_entry,
    action,
    between,
    demo_p4info,
    exact_entry,
    lpm,
    optional,
    ternary,
)
from softswitch.tests.p4runtime.fake import PROGRAM_JSON, FakeDevice, FakeProgram
from softswitch.tests.support.p4runtime import DELETE, INSERT, MODIFY, update

CONFIG = config_of(demo_p4info(), PROGRAM_JSON)
KINDS = st.sampled_from([INSERT, MODIFY, DELETE])
ROLLBACK = p4rt.WriteRequest.ROLLBACK_ON_ERROR

# There are few values, so that batches often name the same entry; some have leading zeros, which mean the same.
forwards = st.sampled_from([action(FORWARD, b"\x01"), action(FORWARD, b"\x00\x02"), action(DROP)])
metadata = st.sampled_from([b"", b"note"])
exact_entries = st.builds(
    lambda dst, port, act, meta: exact_entry(dst, port, action=act, metadata=meta),
    st.sampled_from([b"\x01", b"\x00\x01", b"\x02"]),
    st.sampled_from([b"\x00", b"\x01\xff"]),
    forwards,
    metadata,
)
lpm_entries = st.builds(
    lambda matches, act: p4rt.TableEntry(table_id=LPM, match=matches, action=act),
    st.sampled_from([[], [lpm(b"\x0a\x00\x00\x00", 8)], [lpm(b"\x0a\x00\x00\x00", 16)], [lpm(b"\x80\x00\x00\x00", 1)]]),
    st.sampled_from([action(ROUTE, b"\x01", b"\x02"), action(DROP)]),
)
acl_entries = st.builds(
    lambda first, second, third, priority, act: acl_entry([*first, *second, *third], priority, action=act),
    st.sampled_from([[], [ternary(b"\x01", b"\x01")], [ternary(b"\x00", b"\xff\xff")]]),
    st.sampled_from([[], [between(b"\x00", b"\x05")]]),
    st.sampled_from([[], [optional(b"\x00")]]),
    st.integers(1, 2),
    forwards,
)
updates = st.builds(
    lambda kind, entry: update(kind, table_entry=entry), KINDS, st.one_of(exact_entries, lpm_entries, acl_entries)
)
batches = st.lists(
    st.tuples(st.lists(updates, max_size=8), st.sampled_from([p4rt.WriteRequest.CONTINUE_ON_ERROR, ROLLBACK])),
    max_size=6,
)


def number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def key_of(entry: p4rt.TableEntry) -> tuple:
    """Return what identifies an entry, with byte strings as numbers."""
    fields = []
    for match in entry.match:
        kind = match.WhichOneof("field_match_type")
        values = getattr(match, str(kind))
        numbers = [value if isinstance(value, int) else number(value) for _, value in values.ListFields()]
        fields.append((match.field_id, kind, *numbers))
    return entry.table_id, tuple(sorted(fields)), entry.priority


def content_of(entry: p4rt.TableEntry) -> tuple:
    params = tuple((param.param_id, number(param.value)) for param in entry.action.action.params)
    return entry.action.action.action_id, params, entry.metadata


class Model:
    """INSERT, MODIFY, DELETE and atomicity as the specification defines them, on a dictionary."""

    def __init__(self) -> None:
        self.entries: dict[tuple, tuple] = {}

    def write(self, changes: list[p4rt.Update], atomicity: int) -> list[int]:
        before = dict(self.entries)
        codes = []
        for position, change in enumerate(changes):
            codes.append(self._apply(change))
            if atomicity == ROLLBACK and codes[-1] != code_pb2.OK:
                self.entries = before
                codes = [code_pb2.ABORTED] * len(changes)
                codes[position] = code_pb2.ALREADY_EXISTS if change.type == INSERT else code_pb2.NOT_FOUND
                break
        return codes

    def _apply(self, change: p4rt.Update) -> int:
        entry = change.entity.table_entry
        key = key_of(entry)
        if change.type == INSERT and key in self.entries:
            return code_pb2.ALREADY_EXISTS
        if change.type != INSERT and key not in self.entries:
            return code_pb2.NOT_FOUND
        if change.type == DELETE:
            del self.entries[key]
        else:
            self.entries[key] = content_of(entry)
        return code_pb2.OK


def read(target: Target, **query: object) -> Iterator[p4rt.TableEntry]:
    request = p4rt.ReadRequest(entities=[p4rt.Entity(table_entry=p4rt.TableEntry(**query))])
    answers, outcomes = target.read(request)
    assert outcomes == [None]
    return (entity.table_entry for answer in answers for entity in answer)


@pytest.fixture(scope="module", params=["fake", "data plane"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    if request.param == "fake":
        yield Target(FakeDevice(1), Loader(FakeProgram.load), Timer())
        return
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")
    with Fabric() as fabric:
        yield Target(fabric.add_device(1), Loader(Program.load), Timer())


@settings(max_examples=100, deadline=None)
@given(sequence=batches)
def test_tables_behave_like_a_dictionary(target: Target, sequence: list[tuple[list[p4rt.Update], int]]) -> None:
    target.shut()
    target.open()
    target.install(CONFIG)
    arbitration = p4rt.MasterArbitrationUpdate(election_id=p4rt.Uint128(low=1))
    target.arbiter.update(Session(lambda message: True, lambda error: None), arbitration)
    model = Model()
    for changes, atomicity in sequence:
        request = p4rt.WriteRequest(updates=changes, atomicity=atomicity, election_id=p4rt.Uint128(low=1))
        codes = [0 if outcome is None else outcome.code for outcome in target.write(request)]
        assert codes == model.write(changes, atomicity)
        found = [entry for entry in read(target) if not entry.is_const]
        assert {key_of(entry): content_of(entry) for entry in found} == model.entries
        assert len(found) == len(model.entries)
    for table_id in (EXACT, LPM, ACL):
        for entry in read(target, table_id=table_id):
            if entry.match:  # An empty match reads all entries.
                (same,) = read(target, table_id=table_id, match=entry.match, priority=entry.priority)
                assert same == entry
