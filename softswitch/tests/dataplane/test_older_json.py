"""JSON of p4c-bm and older versions of p4c, which omit what bmv2 does not need."""

from __future__ import annotations

import copy
import json
import logging
from typing import Any

import pytest
from google.protobuf import text_format

from softswitch import Device, Fabric, Match, Program, SoftswitchError
from softswitch.bmv2json.reader import read_program
from softswitch.compiler.codegen import generate
from softswitch.dataplane.profiles import Member
from softswitch.p4runtime.schema import Schema
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.tests.conformance.test_conformance import PROGRAMS
from softswitch.tests.support.waiting import wait_until as until

Json = dict[str, Any]
P4C_BM = "https://github.com/p4lang/p4c-bm"


def field(header: str, name: str) -> Json:
    return {"type": "field", "value": [header, name]}


def action(number: int, name: str, params: list[str], *primitives: Json) -> Json:
    data = [{"name": param, "bitwidth": 16} for param in params]
    return {"name": name, "id": number, "runtime_data": data, "primitives": list(primitives)}


def transition(value: str | None, state: str | None, kind: str | None = None) -> Json:
    found = {"value": value, "mask": None, "next_state": state}
    return found if kind is None else found | {"type": kind}


def old_program() -> Json:
    """Return a program in the form of p4c-bm: table `routes` and a table with an action profile of its own.

    A frame is kind (8 bits), then a key of 3 and 13 bits, then a value of 16 bits.
    """
    standard = [["ingress_port", 9], ["packet_length", 32], ["egress_spec", 9], ["egress_port", 9],
                ["egress_instance", 32], ["instance_type", 32], ["clone_spec", 32], ["_padding", 5]]  # fmt: skip
    set_value = {"op": "modify_field", "parameters": [field("h", "value"), {"type": "runtime_data", "value": 0}]}
    five = {"type": "hexstr", "value": "0x0005"}
    send = {"op": "modify_field", "parameters": [field("standard_metadata", "egress_spec"), five]}
    key = [{"match_type": "exact", "target": ["h", "kind"], "mask": None}]
    common = {"match_type": "exact", "max_size": 16, "with_counters": False, "direct_meters": None,
              "support_timeout": False, "key": key, "base_default_next": None}  # fmt: skip
    routes = common | {"name": "routes", "id": 0, "type": "simple", "actions": ["_drop", "set_value"],
                       "next_tables": dict.fromkeys(("_drop", "set_value"), "choice"),
                       "base_default_next": "choice"}  # fmt: skip
    choice = common | {"name": "choice", "id": 1, "type": "indirect", "act_prof_name": "members",
                       "actions": ["send"], "next_tables": {"send": None}}  # fmt: skip
    states = [
        {"name": "start", "id": 0, "parser_ops": [{"op": "extract", "parameters": [{"type": "regular", "value": "h"}]}],
         "transition_key": [field("h", "value")],
         "transitions": [transition("chosen", "again", "parse_vset"), transition("default", None)]},
        {"name": "again", "id": 1, "parser_ops": [{"op": "set", "parameters": [field("h", "value"),
                                                                               {"type": "hexstr", "value": "0x1"}]}],
         "transition_key": [field("h", "high"), field("h", "low")],
         "transitions": [transition("chosen", "last", "parse_vset"), transition("default", None)]},
        {"name": "last", "id": 2, "parser_ops": [{"op": "set", "parameters": [field("h", "value"),
                                                                              {"type": "hexstr", "value": "0x2"}]}],
         "transition_key": [], "transitions": [transition("default", None)]},
    ]  # fmt: skip
    log = {"op": "log_msg", "parameters": [{"type": "string", "value": "sent {}"},
                                           {"type": "parameters_vector", "value": [field("h", "value")]}]}  # fmt: skip
    return {
        "__meta__": {"version": [2, 5], "compiler": P4C_BM},
        "header_types": [
            {"name": "standard_metadata_t", "id": 0, "fields": standard},
            {"name": "h_t", "id": 1, "fields": [["kind", 8], ["high", 3], ["low", 13], ["value", 16]]},
        ],
        "headers": [
            {"name": "standard_metadata", "id": 0, "header_type": "standard_metadata_t", "metadata": True},
            {"name": "h", "id": 1, "header_type": "h_t"},
        ],
        "parsers": [{"name": "parser", "id": 0, "init_state": "start", "parse_states": states}],
        "parse_vsets": [{"name": "chosen", "id": 0, "compressed_bitwidth": 16}],
        "deparsers": [{"name": "deparser", "id": 0, "order": ["h"], "primitives": [log]}],
        "field_lists": [{"id": 1, "name": "fl", "elements": [field("h", "value"), {"type": "hexstr", "value": "0x7"}]}],
        "actions": [
            action(0, "_drop", [], {"op": "drop", "parameters": []}),
            action(1, "set_value", ["value"], set_value),
            action(2, "send", [], send),
        ],
        "pipelines": [
            {"name": "ingress", "id": 0, "init_table": "routes", "tables": [routes, choice], "conditionals": []},
            {"name": "egress", "id": 1, "init_table": None, "tables": [], "conditionals": []},
        ],
    }


@pytest.fixture(name="device")
def _device(fabric: Fabric) -> Device:
    device = fabric.add_device(1)
    device.load(Program.load(json.dumps(old_program())))
    return device


def exact(value: int) -> tuple[Match, ...]:
    return (Match("exact", value),)


def answer(device: Device, kind: int, key: int, value: int) -> tuple[int, int]:
    """Return the port by which a frame leaves, and the value in it."""
    frame = bytes([kind]) + key.to_bytes(2, "big") + value.to_bytes(2, "big")
    ((port, out),) = device.process(1, frame)
    assert out[:3] == frame[:3]
    return port, int.from_bytes(out[3:], "big")


def test_tables_without_action_ids_default_entry_and_profile(device: Device) -> None:
    """A miss without a default action does nothing; a profile that only a table names has no size."""
    assert answer(device, 1, 0, 9) == (0, 9)
    device.insert("routes", exact(1), "set_value", (7,))
    profile = device.profiles["members"]
    profile.insert_member(1, "send", ())
    device.insert("choice", exact(1), Member(1))
    assert answer(device, 1, 0, 9) == (5, 7)
    assert answer(device, 2, 0, 9) == (0, 9)
    device.insert("routes", exact(2), "_drop", ())
    assert device.process(1, bytes([2, 0, 0, 0, 9])) == []


def test_value_sets_without_size_and_for_fields_of_other_widths(device: Device) -> None:
    """P4-14 uses one value set for a field of 16 bits and for fields of 3 and 13 bits."""
    assert answer(device, 1, 0, 9) == (0, 9)
    device.value_set_write("chosen", [exact(9), exact(0xA001)])
    assert answer(device, 1, 0, 9) == (0, 1)
    assert answer(device, 1, 0xA001, 9) == (0, 2)
    assert answer(device, 1, 0xA000, 9) == (0, 1)


def test_deparser_logs(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert answer(device, 1, 0, 9) == (0, 9)
        until(lambda: "sent 9" in caplog.text, "the message of the deparser")


def test_p4info_gives_the_sizes_that_the_json_omits() -> None:
    root = json.loads((PROGRAMS / "value_sets.json").read_text())
    for value_set in root["parse_vsets"]:
        del value_set["max_size"]
    info = p4info_pb2.P4Info()
    text_format.Parse((PROGRAMS / "value_sets.p4info.txtpb").read_text(), info)
    schema = Schema(info, Program.load(json.dumps(root)))
    assert [one.size for one in schema.value_sets.values()] == [one.size for one in info.value_sets]


def test_fields_of_the_last_union_of_a_stack(fabric: Fabric) -> None:
    """bmv2 can select by a field of the union that was extracted last, and PI's tests have such a program."""
    root = json.loads((PROGRAMS / "union_stacks.json").read_text())
    short = next(s for s in root["parsers"][0]["parse_states"] if s["name"] == "short")
    short["transition_key"] = [{"type": "union_stack_field", "value": ["items", "s", "value"]}]
    following = short["transitions"][0]["next_state"]
    short["transitions"] = [transition("0x77", None, "hexstr"), transition(None, following, "default")]
    device = fabric.add_device(1)
    program = Program.load(json.dumps(root))
    device.load(program)
    program.traced()  # The traced variant compiles, too.
    # Mode 7 puts the last index into the result; kinds say: three short items.
    frame = bytes([7, 0b010101, 0])
    assert device.process(0, frame + b"\x01\x02\x03")[0][1][2] & 0xF == 2
    assert device.process(0, frame + b"\x01\x77\x03")[0][1][2] & 0xF == 0  # Parsing ended at the second item.
    assert device.process(0, frame + b"\x77\x02\x03")[0][1][2] & 0xF == 0
    short["transition_key"][0]["value"][1] = "x"
    with pytest.raises(SoftswitchError, match="has no header 'x'"):
        read_program(json.dumps(root))


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        (("headers", 1, "header_type"), "object 'h' has no member 'header_type'"),
        (("actions", 1, "primitives", 0, "parameters"), "object 'modify_field' has no member 'parameters'"),
        (("parsers", 0, "parse_states", 0, "transitions", 0, "next_state"), "has no member 'next_state'"),
        (("actions", 2), "table 'choice' has the action 'send', which the program does not declare"),
        (("parsers",), "0 parsers"),
        (("header_types", 0, "fields", 0), "without standard_metadata.ingress_port"),
        (("pipelines",), "without ingress or egress pipeline"),
    ],
)
def test_a_refusal_names_member_compiler_and_remedy(remove: tuple[str | int, ...], message: str) -> None:
    root = copy.deepcopy(old_program())
    at: Any = root
    for step in remove[:-1]:
        at = at[step]
    del at[remove[-1]]
    with pytest.raises(SoftswitchError) as error:
        generate(read_program(json.dumps(root)))
    assert message in str(error.value)
    assert "KeyError" not in str(error.value)
    assert f"(written by {P4C_BM}, JSON version 2.5; compile the program with p4c-bm2-ss" in str(error.value)


def test_todays_compiler_is_not_blamed() -> None:
    root = json.loads((PROGRAMS / "value_sets.json").read_text())
    del root["pipelines"]
    with pytest.raises(SoftswitchError) as error:
        read_program(json.dumps(root))
    assert "written by" not in str(error.value)
