"""SetForwardingPipelineConfig and GetForwardingPipelineConfig."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest

from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.tests.p4runtime.client import Client, demo_p4info, exact_entry, group, insert
from softswitch.tests.p4runtime.conftest import Served
from softswitch.tests.p4runtime.fake import PROGRAM_JSON

SET, GET = p4rt.SetForwardingPipelineConfigRequest, p4rt.GetForwardingPipelineConfigRequest
ALL_TABLES = p4rt.Entity(table_entry=p4rt.TableEntry())


def refusal(call: Callable, *args: object, **named: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **named)
    return caught.value.code(), caught.value.details() or ""


@pytest.fixture
def client(served: Served) -> Client:
    one = served.client()
    one.become_primary()
    return one


def test_without_pipeline(client: Client) -> None:
    assert not client.get_pipeline().HasField("config")
    for call in (lambda: client.write(insert(exact_entry())), lambda: client.read(ALL_TABLES)):
        assert refusal(call)[0] == grpc.StatusCode.FAILED_PRECONDITION


def test_get_returns_the_requested_parts(client: Client) -> None:
    client.set_pipeline(PROGRAM_JSON, cookie=1 << 63)
    everything = client.get_pipeline().config
    assert everything.p4_device_config == PROGRAM_JSON
    assert everything.p4info == demo_p4info()
    assert everything.cookie.cookie == 1 << 63
    expected = {
        GET.COOKIE_ONLY: {"cookie"},
        GET.P4INFO_AND_COOKIE: {"p4info", "cookie"},
        GET.DEVICE_CONFIG_AND_COOKIE: {"p4_device_config", "cookie"},
    }
    for response_type, names in expected.items():
        config = client.get_pipeline(response_type).config
        assert {field.name for field, _ in config.ListFields()} == names
    client.set_pipeline(PROGRAM_JSON)
    assert not client.get_pipeline().config.HasField("cookie")
    assert refusal(client.get_pipeline, 17)[0] == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("begins", [b"\x08\x01", b"", b"\x12\x00"])
def test_the_message_that_bmv2_takes_around_its_json_is_taken(client: Client, begins: bytes) -> None:
    """p4lang's tutorials send it: P4DeviceConfig with reassign (field 1) and device_data (3)."""
    size = len(PROGRAM_JSON)
    length = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    message = begins + b"\x1a" + length + PROGRAM_JSON
    client.set_pipeline(message)
    assert client.get_pipeline().config.p4_device_config == message
    for cut in (message[:-1], b"\x08", b"\x08\x01\x20"):
        assert refusal(client.set_pipeline, cut)[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_verify_changes_nothing(served: Served, client: Client) -> None:
    client.set_pipeline(PROGRAM_JSON, action=SET.VERIFY)
    assert served.devices[1].program is None
    assert not client.get_pipeline().HasField("config")


def test_commit_clears_the_state(served: Served, client: Client) -> None:
    client.set_pipeline(PROGRAM_JSON)
    client.write(insert(exact_entry(metadata=b"old")), group(p4rt.Update.INSERT, 1))
    client.set_pipeline(PROGRAM_JSON)
    assert len(client.read(ALL_TABLES)) == 1  # the const entry
    client.write(insert(exact_entry()), group(p4rt.Update.INSERT, 1))
    (_, found) = sorted(client.read(ALL_TABLES), key=lambda entity: not entity.table_entry.is_const)
    assert found.table_entry.metadata == b""


def test_save_then_commit(served: Served, client: Client) -> None:
    assert refusal(client.set_pipeline, None, action=SET.COMMIT)[0] == grpc.StatusCode.NOT_FOUND
    client.set_pipeline(PROGRAM_JSON, action=SET.VERIFY_AND_SAVE, cookie=4)
    assert served.devices[1].program is None
    assert not client.get_pipeline().HasField("config")  # the running config, not the saved one
    client.write(insert(exact_entry()))
    assert refusal(client.set_pipeline, PROGRAM_JSON, action=SET.COMMIT)[0] == grpc.StatusCode.INVALID_ARGUMENT
    client.set_pipeline(None, action=SET.COMMIT)
    assert client.get_pipeline().config.cookie.cookie == 4
    assert len(client.read(ALL_TABLES)) == 2
    assert refusal(client.set_pipeline, None, action=SET.COMMIT)[0] == grpc.StatusCode.NOT_FOUND


def test_reconcile(client: Client) -> None:
    client.set_pipeline(PROGRAM_JSON, action=SET.RECONCILE_AND_COMMIT)  # there is nothing to preserve yet
    client.write(insert(exact_entry()))
    client.set_pipeline(PROGRAM_JSON, action=SET.RECONCILE_AND_COMMIT, cookie=9)
    assert len(client.read(ALL_TABLES)) == 2
    assert client.get_pipeline().config.cookie.cookie == 9
    other = demo_p4info()
    other.pkg_info.name = "other"
    client.set_pipeline(PROGRAM_JSON, p4info=other, action=SET.RECONCILE_AND_COMMIT)
    assert len(client.read(ALL_TABLES)) == 2
    assert client.get_pipeline().config.p4info == other


@pytest.mark.parametrize("action", [SET.UNSPECIFIED, 99])
def test_unknown_action(client: Client, action: int) -> None:
    assert refusal(client.set_pipeline, PROGRAM_JSON, action=action)[0] == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("action", [SET.VERIFY, SET.VERIFY_AND_SAVE, SET.VERIFY_AND_COMMIT, SET.RECONCILE_AND_COMMIT])
def test_programs_that_cannot_run_are_refused_with_the_reason(served: Served, client: Client, action: int) -> None:
    client.set_pipeline(PROGRAM_JSON)
    client.write(insert(exact_entry()))
    for device_config, text in (
        (b"{}", "not a bmv2 JSON"),
        (b'{"program": "unsupported"}', "demo.p4:17: header union"),
        (b"", "p4_device_config"),
        (None, "no config"),
    ):
        code, details = refusal(client.set_pipeline, device_config, action=action)
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert text in details
    assert len(client.read(ALL_TABLES)) == 2  # the old pipeline goes on


def _edit(path: str, value: object) -> Callable[[p4info_pb2.P4Info], None]:
    """Return a function that changes one member, such as ``tables.0.match_fields.0.bitwidth``."""

    def change(p4info: p4info_pb2.P4Info) -> None:
        *steps, last = path.split(".")
        place: object = p4info
        for step in steps:
            place = place[int(step)] if step.isdecimal() else getattr(place, step)  # type: ignore[index]
        setattr(place, last, value)

    return change


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("tables.0.preamble.name", "MyIngress.other", "MyIngress.other"),
        ("tables.0.preamble.id", 0x01000002, "is both"),
        ("tables.0.preamble.id", 0, "id 0"),
        ("tables.0.match_fields.0.bitwidth", 32, "hdr.eth.dst has 32 bits"),
        ("tables.0.match_fields.0.match_type", p4info_pb2.MatchField.LPM, "hdr.eth.dst is lpm"),
        ("tables.0.match_fields.0.id", 2, "two match fields"),
        ("tables.0.action_refs.0.id", 77, "no action with id 77"),
        ("tables.4.action_refs.0.id", 0x01000004, "has no action MyIngress.route"),
        ("tables.3.is_const_table", False, ""),
        ("actions.2.params.0.bitwidth", 16, "parameter port has 16 bits"),
        ("counters.0.size", 9, "verdicts has 9 elements"),
        ("counters.0.preamble.name", "MyIngress.other", "MyIngress.other"),
        ("direct_counters.0.direct_table_id", 0x02000002, "exact_counter"),
        ("registers.0.size", 5, "sums has 5 elements"),
        ("registers.0.type_spec.bitstring.bit.bitwidth", 31, "31-bit"),
        ("controller_packet_metadata.0.metadata.0.bitwidth", 10, "packet_in has fields of 10, 7 bits"),
    ],
)
def test_p4info_must_describe_the_program(client: Client, path: str, value: object, text: str) -> None:
    p4info = demo_p4info()
    _edit(path, value)(p4info)
    if path.endswith("is_const_table"):
        p4info.tables[3].has_initial_entries = False
        text = "const entries"
    code, details = refusal(client.set_pipeline, PROGRAM_JSON, p4info=p4info)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert text in details


def test_p4info_with_fewer_params_or_fields_is_refused(client: Client) -> None:
    p4info = demo_p4info()
    del p4info.actions[3].params[0]
    assert "1 parameters in the P4Info and 2" in refusal(client.set_pipeline, PROGRAM_JSON, p4info=p4info)[1]
    p4info = demo_p4info()
    del p4info.tables[0].match_fields[0]
    assert "1 match fields in the P4Info and 2" in refusal(client.set_pipeline, PROGRAM_JSON, p4info=p4info)[1]


def test_p4info_of_another_version_of_the_program_is_refused(client: Client) -> None:
    def said(p4info: p4info_pb2.P4Info) -> str:
        code, details = refusal(client.set_pipeline, PROGRAM_JSON, p4info=p4info)
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        return details

    assert "of the program is not in the P4Info" in said(p4info_pb2.P4Info(pkg_info={"arch": "v1model"}))
    p4info = demo_p4info()
    del p4info.tables[0]
    del p4info.direct_counters[:]
    assert "table MyIngress.exact_table of the program is not in the P4Info" in said(p4info)
    p4info = demo_p4info()
    del p4info.tables[0].action_refs[0]
    assert "in the program and not in the P4Info" in said(p4info)


def test_p4info_in_another_order_is_refused(client: Client) -> None:
    p4info = demo_p4info()
    action = next(action for action in p4info.actions if len(action.params) > 1)
    first, second = action.params[0], action.params[1]
    first.name, second.name = second.name, first.name
    first.bitwidth, second.bitwidth = second.bitwidth, first.bitwidth
    assert "is number 1 in the P4Info" in refusal(client.set_pipeline, PROGRAM_JSON, p4info=p4info)[1]


def test_capabilities_name_the_version(served: Served) -> None:
    answer = served.client().stub.Capabilities(p4rt.CapabilitiesRequest(), timeout=10)
    assert answer.p4runtime_api_version.startswith("1.4")


def test_one_program_on_all_devices_is_compiled_once(served: Served) -> None:
    for number in (1, 2):
        one = served.client(device_id=number)
        one.become_primary()
        one.set_pipeline(PROGRAM_JSON)
    assert served.devices[1].program is served.devices[2].program
