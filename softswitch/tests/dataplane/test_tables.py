"""Tables agree with a plain model: a look-up finds the right entry after any inserts, modifications and deletions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch import (
    AlreadyExists,
    CapacityExceeded,
    Device,
    Fabric,
    InvalidValue,
    Match,
    NoSuchObject,
    NotFound,
    Program,
)
from softswitch.tests.dataplane.programs import json_path, program
from softswitch.tests.dataplane.scenarios import matching_frame

A = st.sampled_from([0, 1, 2, 0x0A000000, 0x0A000001, 0x0A010203, 0xFFFFFFFE, 0xFFFFFFFF])
E64 = st.sampled_from([0, 1, 1 << 63, (1 << 64) - 1])
OFFSET = {"exact_one": 0, "exact_many": 2, "prefix": 4, "prefix_wide": 6, "masked": 8, "ranged": 10}
HEADER = 30  # bytes of keys before the answers
Key = tuple[Match, ...]


@st.composite
def lpm(draw: st.DrawFn) -> Key:
    length = draw(st.integers(0, 32))
    return (Match("lpm", draw(A) >> (32 - length) << (32 - length), prefix_len=length),)


@st.composite
def ternary(draw: st.DrawFn, width: int, values: st.SearchStrategy[int]) -> Match:
    mask = draw(st.sampled_from([0, (1 << width) - 1, 1, 1 << (width - 1), ((1 << width) - 1) ^ 1]))
    return Match("ternary", draw(values) & mask, mask=mask)


@st.composite
def optional(draw: st.DrawFn) -> Match:
    return Match("optional", draw(st.integers(0, 1)), mask=127) if draw(st.booleans()) else Match("optional", 0, mask=0)


@st.composite
def span(draw: st.DrawFn, values: st.SearchStrategy[int]) -> Match:
    low, high = sorted((draw(values), draw(values)))
    return Match("range", low, high=high)


def exact(values: st.SearchStrategy[int]) -> st.SearchStrategy[Match]:
    return values.map(lambda v: Match("exact", v))


KEYS: dict[str, st.SearchStrategy[Key]] = {
    "exact_one": st.tuples(exact(A)),
    "prefix": lpm(),
    "masked": st.tuples(ternary(32, A), ternary(64, E64), exact(st.integers(0, 1)), optional()),
    "ranged": st.tuples(span(A), span(st.integers(0, 3)), ternary(7, st.integers(0, 127))),
}


def matches(m: Match, value: int, width: int) -> bool:
    if m.kind == "exact":
        return m.value == value
    if m.kind == "lpm":
        return m.value == value >> (width - m.prefix_len) << (width - m.prefix_len)
    if m.kind == "range":
        return m.value <= value <= m.high
    return value & m.mask == m.value


@dataclass
class Model:
    """A table as a list of (key, priority, answer, handle)."""

    table: str
    entries: dict[tuple[Key, int], tuple[int, int]] = field(default_factory=dict)

    def answer(self, values: tuple[int, ...], widths: tuple[int, ...]) -> int | None:
        best: tuple[int, int, int] | None = None
        for (key, priority), (answer, handle) in self.entries.items():
            if all(matches(m, v, w) for m, v, w in zip(key, values, widths, strict=True)):
                rank = key[0].prefix_len if self.table == "prefix" else priority
                if best is None or (rank, -handle) > (best[0], -best[1]):
                    best = (rank, handle, answer)
        return None if best is None else best[2]


def ask(device: Device, table: str, *keys: int) -> int:
    """Return a table's answer for keys a, b, c and e."""
    a, b, c, e = keys
    ((_, frame),) = device.process(1, matching_frame(a, b, c, 0, e))
    at = HEADER + OFFSET[table]
    return int.from_bytes(frame[at : at + 2], "big")


def name(table: str) -> str:
    return f"MyIngress.{table}"


@pytest.mark.parametrize("table", sorted(KEYS))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_sequence_of_writes(table: str, data: st.DataObject) -> None:
    prioritised = table in ("masked", "ranged")
    model = Model(table)
    with Fabric() as fabric:
        device = fabric.add_device(1)
        device.load(program("matching"))
        for number in range(data.draw(st.integers(1, 25))):
            key = data.draw(KEYS[table])
            priority = data.draw(st.integers(1, 4)) if prioritised else 0
            known = (key, priority) in model.entries
            kind = data.draw(st.sampled_from(["insert", "insert", "insert", "delete", "modify"]))
            params = (number + 1,)
            if kind == "insert":
                if known:
                    with pytest.raises(AlreadyExists):
                        device.insert(name(table), key, "MyIngress.answer", params, priority)
                else:
                    handle = device.insert(name(table), key, "MyIngress.answer", params, priority)
                    model.entries[key, priority] = (number + 1, handle)
            elif not known:
                with pytest.raises(NotFound):
                    if kind == "delete":
                        device.delete(name(table), key, priority)
                    else:
                        device.modify(name(table), key, "MyIngress.answer", params, priority)
            elif kind == "delete":
                device.delete(name(table), key, priority)
                del model.entries[key, priority]
            else:
                device.modify(name(table), key, "MyIngress.answer", params, priority)
                model.entries[key, priority] = (number + 1, model.entries[key, priority][1])
        listed = {(e.handle, e.priority, e.params[0]) for e in device.entries(name(table))}
        assert listed == {(handle, priority, answer) for (_, priority), (answer, handle) in model.entries.items()}
        for _ in range(12):
            a, b = data.draw(A), data.draw(st.integers(0, 3))
            c, e = data.draw(st.integers(0, 2)), data.draw(E64)
            values, widths = {
                "exact_one": ((a,), (32,)),
                "prefix": ((a,), (32,)),
                "masked": ((a, e, b, c), (32, 64, 9, 7)),
                "ranged": ((a, b, c), (32, 9, 7)),
            }[table]
            assert ask(device, table, a, b, c, e) == (model.answer(values, widths) or 0)


def test_entries_read_back_as_written(fabric: Fabric) -> None:
    device = fabric.add_device(1)
    device.load(program("matching"))
    masked = (Match("ternary", 0x0A000000, mask=0xFF000000), Match("ternary", 0, mask=0), Match("exact", 1),
              Match("optional", 5, mask=127))  # fmt: skip
    device.insert("MyIngress.masked", masked, "MyIngress.answer", [3], 17)
    entry = device.get("MyIngress.masked", masked, 17)
    assert (entry.action, entry.params, entry.priority, entry.is_const) == ("MyIngress.answer", (3,), 17, False)
    assert entry.match[0] == masked[0] and entry.match[3] == Match("ternary", 5, mask=127)
    wide = (1 << 128) - 2
    device.insert("MyIngress.exact_one", [Match("exact", 9)], "MyIngress.wide", [wide, 127, 65535])
    assert device.get("MyIngress.exact_one", [Match("exact", 9)]).params == (wide, 127, 65535)
    span = (Match("range", 5, high=9), Match("range", 0, high=511), Match("ternary", 0, mask=0))
    device.insert("MyIngress.ranged", span, "MyIngress.answer", [1], 2)
    assert device.entries("MyIngress.ranged")[0].match == span


def test_a_full_table_takes_no_more_until_one_goes(fabric: Fabric) -> None:
    device = fabric.add_device(1)
    device.load(program("matching"))
    size = device.program.tables["MyIngress.prefix"].size if device.program else 0
    for i in range(size):
        device.insert("MyIngress.prefix", [Match("lpm", i << 8, prefix_len=24)], "MyIngress.answer", [1])
    extra = [Match("lpm", 0x0B000000, prefix_len=8)]
    with pytest.raises(CapacityExceeded):
        device.insert("MyIngress.prefix", extra, "MyIngress.answer", [1])
    device.delete("MyIngress.prefix", [Match("lpm", 0, prefix_len=24)])
    device.insert("MyIngress.prefix", extra, "MyIngress.answer", [2])
    assert ask(device, "prefix", 0x0B000001, 0, 0, 0) == 2


def test_default_actions(fabric: Fabric) -> None:
    device = fabric.add_device(1)
    device.load(program("matching"))
    assert device.get_default("MyIngress.exact_many") == ("MyIngress.answer", (9,))
    assert ask(device, "exact_many", 0, 0, 0, 0) == 9
    device.set_default("MyIngress.exact_many", "MyIngress.answer", [77])
    assert ask(device, "exact_many", 0, 0, 0, 0) == 77
    device.set_default("MyIngress.exact_many", None)
    assert ask(device, "exact_many", 0, 0, 0, 0) == 9
    sums = fabric.add_device(2)
    sums.load(program("sums"))
    with pytest.raises(InvalidValue, match="const"):
        sums.set_default("MyIngress.operations", "MyIngress.add")
    with pytest.raises(InvalidValue, match="const entries"):
        sums.insert("MyIngress.operations", [Match("exact", 8)], "MyIngress.add", [])
    assert all(e.is_const for e in sums.entries("MyIngress.operations"))


@pytest.mark.parametrize(
    ("match", "action", "params_priority", "error"),
    [
        ([Match("exact", 1 << 32)], "MyIngress.answer", ([1], 0), InvalidValue),
        ([Match("lpm", 1, prefix_len=32)], "MyIngress.answer", ([1], 0), InvalidValue),
        ([Match("exact", 1), Match("exact", 1)], "MyIngress.answer", ([1], 0), InvalidValue),
        ([Match("exact", 1)], "MyIngress.answer", ([1 << 16], 0), InvalidValue),
        ([Match("exact", 1)], "MyIngress.answer", ([], 0), InvalidValue),
        ([Match("exact", 1)], "MyIngress.answer", ([1], 5), InvalidValue),
        ([Match("exact", 1)], "nothing", ([1], 0), NoSuchObject),
    ],
)
def test_wrong_entries_are_refused(
    fabric: Fabric, match: list[Match], action: str, params_priority: tuple[list[int], int], error: type[Exception]
) -> None:
    params, priority = params_priority
    device = fabric.add_device(1)
    device.load(program("matching"))
    with pytest.raises(error):
        device.insert("MyIngress.exact_one", match, action, params, priority)
    assert device.entries("MyIngress.exact_one") == []


def test_wrong_prefixes_masks_and_ranges_are_refused(fabric: Fabric) -> None:
    device = fabric.add_device(1)
    device.load(program("matching"))
    with pytest.raises(InvalidValue, match="outside the mask"):
        device.insert("MyIngress.prefix", [Match("lpm", 1, prefix_len=24)], "MyIngress.answer", [1])
    with pytest.raises(InvalidValue, match="prefix length"):
        device.insert("MyIngress.prefix", [Match("lpm", 0, prefix_len=33)], "MyIngress.answer", [1])
    rest = [Match("range", 0, high=511), Match("ternary", 0, mask=0)]
    with pytest.raises(InvalidValue, match="range"):
        device.insert("MyIngress.ranged", [Match("range", 2, high=1), *rest], "MyIngress.answer", [1], 1)
    with pytest.raises(NoSuchObject, match="no table"):
        device.insert("nothing", [], "MyIngress.answer", [1])


def test_direct_counters_follow_their_entries(fabric: Fabric) -> None:
    device = fabric.add_device(1)
    device.load(program("matching"))
    key = [Match("ternary", 1, mask=0xFFFFFFFF), Match("ternary", 0, mask=0), Match("exact", 0),
           Match("optional", 0, mask=0)]  # fmt: skip
    device.insert("MyIngress.masked", key, "MyIngress.answer", [1], 1)
    for a in (1, 1, 2):
        device.process(1, matching_frame(a, 0, 0, 0, 0))
    size = len(matching_frame(0, 0, 0, 0, 0))
    assert device.direct_counter_read("MyIngress.masked", key, 1) == (2, 2 * size)
    assert device.direct_counter_read("MyIngress.masked", None) == (1, size)
    device.direct_counter_write("MyIngress.masked", key, 10, 20, 1)
    device.modify("MyIngress.masked", key, "MyIngress.answer", [2], 1)
    device.process(1, matching_frame(1, 0, 0, 0, 0))
    assert device.direct_counter_read("MyIngress.masked", key, 1) == (11, 20 + size)
    assert device.counter_read("MyIngress.hit_counter", 0) == (4, 4 * size)


def test_const_entries_may_have_bits_outside_their_mask(fabric: Fabric) -> None:
    """P4 compares value and key under the mask, and p4c writes the value as the program has it."""
    root = json.loads(json_path("router").read_text())
    tables = {t["name"]: t for p in root["pipelines"] for t in p["tables"]}
    ternary = tables["MyIngress.classes"]["entries"][0]["match_key"][1]
    assert ternary["mask"] == "0x80"
    ternary["key"] = "0xff"
    device = fabric.add_device(1)
    device.load(Program.load(json.dumps(root)))
    first = device.entries("MyIngress.classes")[0]
    assert first.match == (Match("exact", 17), Match("ternary", 0x80, mask=0x80))
