"""Election of the primary, notifications, and the right to write (P4Runtime specification, "Client Arbitration")."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2
from hypothesis import given
from hypothesis import strategies as st

from softswitch.p4runtime.arbitration import MAX_ROLES, Arbiter, Session
from softswitch.p4runtime.roles import P4RoleConfig
from softswitch.p4runtime.status import P4RuntimeError
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.p4runtime.client import ACL, EXACT, VERDICTS, Client, acl_entry, exact_entry, group, insert
from softswitch.tests.p4runtime.conftest import Served, serving
from softswitch.tests.p4runtime.fake import PROGRAM_JSON, FakeDevice, FakeProgram
from softswitch.tests.support.p4runtime import INSERT

OK, NOT_FOUND, ALREADY_EXISTS = 0, 5, 6


def refusal(call: object, *args: object, **named: object) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **named)  # type: ignore[operator]
    return caught.value.code()


def test_highest_election_id_is_primary_and_all_are_told(served: Served) -> None:
    low, high, lowest = (served.client(election_id=number).stream() for number in (5, 7, 3))
    low.arbitrate(5)
    assert low.status() == (OK, 5)
    high.arbitrate(7)
    assert low.status() == (ALREADY_EXISTS, 7)
    assert high.status() == (OK, 7)
    lowest.arbitrate(3)
    assert lowest.status() == (ALREADY_EXISTS, 7)
    assert low.quiet() and high.quiet()


def test_election_ids_have_128_bits(served: Served) -> None:
    first, second = served.client().stream(), served.client().stream()
    first.arbitrate((1 << 64) - 1)
    assert first.status() == (OK, (1 << 64) - 1)
    second.arbitrate(1 << 64)
    assert second.status() == (OK, 1 << 64)
    assert first.status() == (ALREADY_EXISTS, 1 << 64)
    first.arbitrate((1 << 128) - 1)
    assert first.status() == (OK, (1 << 128) - 1)


def test_election_id_zero_is_an_id_and_unset_is_none(served: Served) -> None:
    unset, zero = served.client().stream(), served.client().stream()
    unset.arbitrate(None)
    assert unset.status() == (NOT_FOUND, None)
    zero.arbitrate(0)
    assert zero.status() == (OK, 0)
    assert unset.status() == (ALREADY_EXISTS, 0)


def test_two_clients_may_both_leave_the_election_id_unset(served: Served) -> None:
    first, second = served.client().stream(), served.client().stream()
    for stream in (first, second):
        stream.arbitrate(None)
        assert stream.status() == (NOT_FOUND, None)


@pytest.mark.parametrize("leave", ["vanish", "half_close"])
def test_primary_that_leaves_is_not_replaced_until_somebody_asks(served: Served, leave: str) -> None:
    primary, backup = served.client().stream(), served.client().stream()
    primary.arbitrate(9)
    primary.status()
    backup.arbitrate(4)
    assert backup.status() == (ALREADY_EXISTS, 9)
    getattr(primary, leave)()
    assert backup.status() == (NOT_FOUND, 9)
    backup.arbitrate(8)  # still lower than the highest id ever seen
    assert backup.status() == (NOT_FOUND, 9)
    backup.arbitrate(9)
    assert backup.status() == (OK, 9)


def test_duplicate_election_id_ends_the_stream(served: Served) -> None:
    first, second, third = (served.client().stream() for _ in range(3))
    first.arbitrate(5)
    assert first.status() == (OK, 5)
    second.arbitrate(5)
    assert second.ended() == grpc.StatusCode.INVALID_ARGUMENT
    third.arbitrate(6)
    assert third.status() == (OK, 6)
    assert first.status() == (ALREADY_EXISTS, 6)
    third.arbitrate(5)  # A live client that takes another's id loses its stream, too.
    assert third.ended() == grpc.StatusCode.INVALID_ARGUMENT
    assert first.status() == (NOT_FOUND, 6)


def test_primary_that_lowers_its_id_becomes_backup(served: Served) -> None:
    client, other = served.client(election_id=9), served.client(election_id=4)
    stream, watcher = client.stream(), other.stream()
    stream.arbitrate(9)
    assert stream.status() == (OK, 9)
    watcher.arbitrate(4)
    assert watcher.status() == (ALREADY_EXISTS, 9)
    client.set_pipeline(PROGRAM_JSON)
    stream.arbitrate(2)
    assert stream.status() == (NOT_FOUND, 9)
    assert watcher.status() == (NOT_FOUND, 9)
    for election_id in (9, 2):
        client.election_id = election_id
        assert refusal(client.write, insert(exact_entry())) == grpc.StatusCode.PERMISSION_DENIED


def test_arbitration_again_with_the_same_id_changes_nothing(served: Served) -> None:
    client = served.client(election_id=3)
    stream = client.become_primary()
    stream.arbitrate(3)
    assert stream.status() == (OK, 3)
    client.set_pipeline(PROGRAM_JSON)


def test_devices_have_separate_primaries(served: Served) -> None:
    one, two = served.client(device_id=1, election_id=5), served.client(device_id=2, election_id=5)
    one.become_primary()
    two.become_primary()
    two.election_id = 4
    assert refusal(two.set_pipeline, PROGRAM_JSON) == grpc.StatusCode.PERMISSION_DENIED
    one.set_pipeline(PROGRAM_JSON)
    assert served.devices[1].program is not None
    assert served.devices[2].program is None


def test_roles_have_separate_primaries(served: Served) -> None:
    default, named = served.client(election_id=5), served.client(election_id=5, role="routing")
    assert refusal(named.set_pipeline, PROGRAM_JSON) == grpc.StatusCode.NOT_FOUND
    default.become_primary()
    stream = named.stream()
    stream.arbitrate(5)
    message = stream.next().arbitration
    assert (message.role.name, message.status.code) == ("routing", OK)
    named.set_pipeline(PROGRAM_JSON)
    default.write(insert(exact_entry()))
    assert len(named.read(p4rt.Entity(table_entry=p4rt.TableEntry()))) == 2  # with the const entry


def configured(election_id: int, role: str, config: any_pb2.Any) -> p4rt.StreamMessageRequest:
    message = p4rt.StreamMessageRequest()
    message.arbitration.device_id = 1
    message.arbitration.election_id.low = election_id
    message.arbitration.role.name = role
    message.arbitration.role.config.CopyFrom(config)
    return message


def scheme(**fields: Any) -> any_pb2.Any:
    wanted = fields.pop("packet_in_filter", None)
    config = P4RoleConfig()
    for name, value in fields.items():
        getattr(config, name).extend(value) if isinstance(value, list) else setattr(config, name, value)
    if wanted is not None:
        config.packet_in_filter.metadata_id, config.packet_in_filter.value = wanted
    packed = any_pb2.Any()
    packed.Pack(config)
    return packed


@pytest.mark.parametrize(
    ("role", "config"),
    [
        ("routing", any_pb2.Any(type_url="x")),
        ("routing", any_pb2.Any(type_url="type.googleapis.com/stratum.P4RoleConfig", value=b"\xff\xff")),
        ("routing", scheme(exclusive_p4_ids=[EXACT], shared_p4_ids=[EXACT])),
        ("routing", scheme(packet_in_filter=(1, b"\x01"))),
        ("", scheme()),
    ],
)
def test_role_config_of_another_scheme_or_nonsense(served: Served, role: str, config: any_pb2.Any) -> None:
    stream = served.client().stream()
    stream.send(configured(1, role, config))
    assert stream.ended() == grpc.StatusCode.INVALID_ARGUMENT


def test_role_config_limits_what_a_role_may_do(served: Served) -> None:
    everything = served.client()
    everything.become_primary()
    everything.set_pipeline(PROGRAM_JSON)
    limited = served.client(role="limited")
    stream = limited.stream()
    config = scheme(shared_p4_ids=[EXACT, VERDICTS], receives_packet_ins=True, packet_in_filter=(2, b"\x00\x05"))
    stream.send(configured(1, "limited", config))
    told = stream.next().arbitration
    assert (told.status.code, told.role.config.value) == (OK, config.value)
    limited.write(insert(exact_entry()))
    denied = limited.outcomes(insert(acl_entry()), group(INSERT, 1), insert(exact_entry(b"\x09")))
    assert [one.canonical_code for one in denied] == [7, 7, 0]
    assert {one.table_entry.table_id for one in limited.read(p4rt.Entity(table_entry=p4rt.TableEntry()))} == {EXACT}
    assert refusal(limited.set_pipeline, PROGRAM_JSON) == grpc.StatusCode.PERMISSION_DENIED
    served.devices[1].packet_in(b"\x80\x83frame")  # type: ignore[misc]  # reason 3
    served.devices[1].packet_in(b"\x80\x85frame")  # type: ignore[misc]  # reason 5
    assert [one.metadata_id for one in stream.next().packet.metadata] == [1, 2]
    assert stream.quiet()
    everything.write(insert(acl_entry()))  # the default role still has everything


def test_a_new_role_config_is_announced_to_all_and_holds_at_once(served: Served) -> None:
    first, second = served.client(role="r").stream(), served.client(role="r").stream()
    first.send(configured(2, "r", scheme(shared_p4_ids=[EXACT])))
    first.next()
    second.send(configured(1, "r", scheme(shared_p4_ids=[ACL])))  # a backup's configuration does not count
    assert second.next().arbitration.role.config.value == scheme(shared_p4_ids=[EXACT]).value
    first.send(configured(2, "r", scheme(shared_p4_ids=[ACL])))
    assert second.next().arbitration.role.config.value == scheme(shared_p4_ids=[ACL]).value
    assert served.server.targets[1].arbiter.scope_of("r").ids == {ACL}


def test_exclusive_entities_belong_to_one_role(served: Served) -> None:
    first, second, third = (served.client(role=name).stream() for name in "abc")
    first.send(configured(1, "a", scheme(exclusive_p4_ids=[EXACT])))
    assert first.status()[0] == OK
    second.send(configured(1, "b", scheme(shared_p4_ids=[EXACT])))
    assert second.ended() == grpc.StatusCode.INVALID_ARGUMENT
    third.send(configured(1, "c", scheme(shared_p4_ids=[ACL])))
    assert third.status()[0] == OK


@pytest.mark.parametrize("change", [{"device_id": 2}, {"role": "other"}])
def test_a_stream_keeps_its_device_and_role(served: Served, change: dict) -> None:
    stream = served.client(election_id=3).become_primary()
    stream.arbitrate(4, **change)
    assert stream.ended() == grpc.StatusCode.FAILED_PRECONDITION


def test_unknown_device(served: Served) -> None:
    client = served.client(device_id=77)
    stream = client.stream()
    stream.arbitrate(1)
    assert stream.ended() == grpc.StatusCode.NOT_FOUND
    assert refusal(client.write, insert(exact_entry())) == grpc.StatusCode.NOT_FOUND
    assert refusal(client.read, p4rt.Entity(table_entry=p4rt.TableEntry())) == grpc.StatusCode.NOT_FOUND
    assert refusal(client.set_pipeline, PROGRAM_JSON) == grpc.StatusCode.NOT_FOUND
    assert refusal(client.get_pipeline) == grpc.StatusCode.NOT_FOUND


def test_only_the_primary_writes(served: Served, primary: Client) -> None:
    backup = served.client(election_id=0)
    stream = backup.stream()
    stream.arbitrate(0)
    assert stream.status() == (ALREADY_EXISTS, 1)
    for election_id in (0, 2, None):
        backup.election_id = election_id
        assert refusal(backup.write, insert(exact_entry())) == grpc.StatusCode.PERMISSION_DENIED
        assert refusal(backup.set_pipeline, PROGRAM_JSON) == grpc.StatusCode.PERMISSION_DENIED
    assert backup.read(p4rt.Entity(table_entry=exact_entry())) == []  # all clients may read
    primary.write(insert(exact_entry()))
    assert len(backup.read(p4rt.Entity(table_entry=exact_entry()))) == 1


def test_write_without_election_id_is_refused_even_when_the_primary_has_id_zero(served: Served) -> None:
    client = served.client(election_id=0)
    client.become_primary()
    client.set_pipeline(PROGRAM_JSON)
    client.election_id = None
    assert refusal(client.write, insert(exact_entry())) == grpc.StatusCode.PERMISSION_DENIED


def test_new_primary_waits_for_the_writes_of_the_old_one(served: Served, primary: Client) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert leave.wait(10)

    served.devices[1].before_write = hold
    writer = threading.Thread(target=primary.write, args=(insert(exact_entry()),))
    writer.start()
    assert entered.wait(10)
    watcher = served.client(election_id=0).stream()
    watcher.arbitrate(0)
    assert watcher.status() == (ALREADY_EXISTS, 1)
    other = served.client(election_id=2)
    stream = other.stream()
    stream.arbitrate(2)
    assert watcher.status() == (ALREADY_EXISTS, 2)  # the other clients are told at once,
    assert stream.quiet()  # the new primary only when the old one's write is done
    leave.set()
    writer.join(10)
    assert stream.status() == (OK, 2)
    assert len(other.read(p4rt.Entity(table_entry=exact_entry()))) == 1
    assert refusal(primary.write, insert(exact_entry(b"\x09"))) == grpc.StatusCode.PERMISSION_DENIED
    other.write(insert(exact_entry(b"\x09")))


def test_restarted_device_forgets_clients_and_election_ids(served: Served, primary: Client) -> None:
    stream = served.client(election_id=40).become_primary()
    served.server.targets[1].shut()
    assert stream.ended() == grpc.StatusCode.UNAVAILABLE
    assert refusal(primary.get_pipeline) == grpc.StatusCode.UNAVAILABLE
    again = served.client(election_id=1)
    early = again.stream()
    early.arbitrate(1)
    assert early.ended() == grpc.StatusCode.UNAVAILABLE
    served.server.targets[1].open()
    again.become_primary()
    assert not again.get_pipeline().HasField("config")
    again.set_pipeline(PROGRAM_JSON)


def test_role_names_cannot_pile_up() -> None:
    arbiter = Arbiter(1, threading.RLock())

    def come_and_go(name: str, election_id: int | None) -> None:
        session = Session(lambda _: True, lambda _: None)
        message = p4rt.MasterArbitrationUpdate(device_id=1, role=p4rt.Role(name=name))
        if election_id is not None:
            message.election_id.low = election_id
        arbiter.update(session, message)
        arbiter.disconnect(session)

    for number in range(2 * MAX_ROLES):
        come_and_go(f"without primary {number}", None)
    for number in range(MAX_ROLES - 1):  # these and the default role
        come_and_go(f"role {number}", 1)
    for name, code in (("one more", code_pb2.RESOURCE_EXHAUSTED), ("x" * 2000, code_pb2.INVALID_ARGUMENT)):
        with pytest.raises(P4RuntimeError) as refused:
            come_and_go(name, 1)
        assert refused.value.code == code
    come_and_go("role 3", 2)


# Histories of five clients that arbitrate (an election id or none) and leave.
STEPS = st.lists(st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 4), st.just("leave"))), max_size=30)


@given(STEPS)
def test_any_history_leaves_everybody_with_the_truth(steps: list[tuple[int, int | str | None]]) -> None:
    arbiter = Arbiter(1, threading.RLock())
    sessions: dict[int, Session] = {}
    heard: dict[int, p4rt.MasterArbitrationUpdate] = {}
    ids: dict[int, int | None] = {}  # of live clients
    highest: int | None = None
    primary: int | None = None

    def hear(client: int, message: p4rt.StreamMessageResponse) -> bool:
        heard[client] = message.arbitration
        return True

    def leave(client: int) -> None:
        nonlocal primary
        if client in ids:
            arbiter.disconnect(sessions[client])
            del ids[client], sessions[client], heard[client]
            if primary == client:
                primary = None

    for client, step in steps:
        if isinstance(step, str):
            leave(client)
        else:
            session = sessions.setdefault(client, Session(partial(hear, client), lambda error: None))
            message = p4rt.MasterArbitrationUpdate(device_id=1)
            if step is not None:
                message.election_id.low = step
            if step is not None and step in [number for other, number in ids.items() if other != client]:
                with pytest.raises(P4RuntimeError):
                    arbiter.update(session, message)
                leave(client)
                sessions.pop(client, None)
            else:
                arbiter.update(session, message)
                ids[client] = step
                if step is not None and (highest is None or step >= highest):
                    primary, highest = client, step
                elif primary == client:
                    primary = None
        assert [one for one, _ in arbiter.primaries()] == ([] if primary is None else [sessions[primary]])
        for number in (None, *range(5)):
            if primary is not None and number == ids[primary]:
                arbiter.require_primary("", number)
            else:
                with pytest.raises(P4RuntimeError):
                    arbiter.require_primary("", number)
        for live in ids:
            expected = OK if primary == live else NOT_FOUND if primary is None else ALREADY_EXISTS
            assert heard[live].status.code == expected
            assert heard[live].HasField("election_id") == (highest is not None)
            assert heard[live].election_id.low == (highest or 0)


def test_a_stream_that_never_arbitrates_ends() -> None:
    """A silent stream ends, since it uses a place that other clients need; one that has arbitrated does not."""
    with serving({1: FakeDevice(1)}, load_program=FakeProgram.load, arbitration_s=0.3) as served:
        stream = served.client().become_primary()
        silent = served.client().stream()
        silent.send(p4rt.StreamMessageRequest(packet=p4rt.PacketOut(payload=b"frame")))
        assert silent.ended() == grpc.StatusCode.DEADLINE_EXCEEDED
        stream.arbitrate(1)
        assert stream.status()[0] == code_pb2.OK


@pytest.mark.parametrize(
    ("numbers", "served_ids"),
    [((0,), "the only device of this switch has the id 0"), ((1, 2), "the devices have the ids 1, 2")],
)
def test_a_device_that_does_not_exist(numbers: tuple[int, ...], served_ids: str) -> None:
    devices = {number: FakeDevice(number) for number in numbers}
    with serving(devices, load_program=FakeProgram.load) as served, pytest.raises(grpc.RpcError) as caught:
        served.client(device_id=7).get_pipeline()
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == f"device 7 does not exist; {served_ids}"
