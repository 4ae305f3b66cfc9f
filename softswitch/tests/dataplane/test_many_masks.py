"""Tables with many masks and ranges, where bitmaps replace trying one by one, answer like a plain model."""

from __future__ import annotations

import random

import pytest

from softswitch import Fabric, Match, Program
from softswitch.tests.dataplane.programs import json_path, program
from softswitch.tests.dataplane.test_tables import Key, Model, ask, name

VALUES = (0, 1, 5, 0x0A000000, 0x0A000001, 0x0A010203, 0xFFFFFFFF)


def ternary(source: random.Random, width: int) -> Match:
    mask = source.getrandbits(width) | source.getrandbits(width) if source.random() < 0.7 else 0
    return Match("ternary", source.choice((source.getrandbits(width), *VALUES)) & mask, mask=mask)


def span(source: random.Random, width: int) -> Match:
    top = (1 << width) - 1
    low, high = sorted(min(top, source.choice((source.getrandbits(width), *VALUES))) for _ in range(2))
    return Match("range", low, high=high)


def key(source: random.Random, table: str) -> Key:
    if table == "prefix":
        length = source.randint(0, 32)
        return (Match("lpm", source.choice((*VALUES, source.getrandbits(32))) >> (32 - length) << (32 - length),
                      prefix_len=length),)  # fmt: skip
    if table == "masked":
        optional = Match("optional", 1, mask=127) if source.random() < 0.3 else Match("optional", 0, mask=0)
        return (ternary(source, 32), ternary(source, 64), Match("exact", source.randrange(2)), optional)
    return (span(source, 32), span(source, 9), ternary(source, 7) if source.random() < 0.3 else Match("ternary", 0))


@pytest.mark.parametrize("table", ["prefix", "masked", "ranged"])
def test_same_answers_as_a_model(fabric: Fabric, table: str) -> None:
    source = random.Random(table)
    device = fabric.add_device(1)
    device.load(program("matching"))
    model = Model(table)
    widths = {"prefix": (32,), "masked": (32, 64, 9, 7), "ranged": (32, 9, 7)}[table]
    for step in range(1200):
        wanted = 250 if step < 900 else 5  # a full table with entries added and removed, then a nearly empty one
        if len(model.entries) < wanted and source.random() < 0.75:
            k, priority = key(source, table), 0 if table == "prefix" else source.randrange(1, 60)
            if (k, priority) not in model.entries:
                handle = device.insert(name(table), k, "MyIngress.answer", [step % 65535 + 1], priority)
                model.entries[k, priority] = (step % 65535 + 1, handle)
        elif model.entries:
            k, priority = source.choice(list(model.entries))
            device.delete(name(table), k, priority)
            del model.entries[k, priority]
        if step % 3:
            continue
        a, b, c, e = source.choice((*VALUES, source.getrandbits(32))), source.randrange(4), 0, source.getrandbits(64)
        if model.entries and source.random() < 0.7:  # a key that matches an entry
            match, _ = source.choice(list(model.entries))
            a = match[0].value | source.getrandbits(32) & ~match[0].mask if table != "ranged" else match[0].high
            e = match[1].value | source.getrandbits(64) & ~match[1].mask if table == "masked" else e
        values = {"prefix": (a,), "masked": (a, e, b, c), "ranged": (a, b, c)}[table]
        assert ask(device, table, a, b, c, e) == (model.answer(values, widths) or 0)


def test_answers_stay_while_bitmaps_come_and_go(fabric: Fabric) -> None:
    """Bitmaps are freed when there are many more entries than masks and long chains; tuples and chains are sorted
    again.
    """
    source = random.Random("come and go")
    device = fabric.add_device(1)
    device.load(Program.load(json_path("matching").read_text().replace('"max_size":256', '"max_size":30000')))
    model = Model("masked")

    def masked(value: int, mask: int, exact: int = 0) -> Key:
        first = Match("ternary", value & mask, mask=mask)
        return (first, Match("ternary", 0), Match("exact", exact), Match("optional", 0, mask=0))

    def insert(k: Key, priority: int) -> None:
        if (k, priority) not in model.entries:
            answer = source.randrange(1, 65535)
            handle = device.insert(name("masked"), k, "MyIngress.answer", [answer], priority)
            model.entries[k, priority] = (answer, handle)

    def delete(k: Key, priority: int) -> None:
        device.delete(name("masked"), k, priority)
        del model.entries[k, priority]

    def check() -> None:
        for _ in range(60):
            a = source.choice(VALUES)
            assert ask(device, "masked", a, 0, 0, 0) == (model.answer((a, 0, 0, 0), (32, 64, 9, 7)) or 0)

    for length in range(18):  # many masks, and a chain of 18 for each of two of them
        for _ in range(2):
            insert(masked(source.choice(VALUES), (1 << length) - 1), source.randrange(1, 1000))
        for mask in (0, 1):
            insert(masked(mask, mask), source.randrange(1, 1000))
    check()
    others = [masked(i, 0xFFFFFFFF, exact=1) for i in range(4000)]
    for k in others:
        device.insert(name("masked"), k, "MyIngress.answer", [1], 1)
    check()
    for k, priority in sorted(model.entries, key=lambda entry: entry[1])[::2]:
        delete(k, priority)
    check()
    for k in others:
        device.delete(name("masked"), k, 1)
    for length in range(18):  # bitmaps are built again
        insert(masked(0, (1 << length) - 1), 2000 + length)
    check()
    assert {e.handle for e in device.entries(name("masked"))} == {handle for _, handle in model.entries.values()}
    while model.entries:
        delete(*max(model.entries, key=lambda entry: entry[1]))
        if len(model.entries) % 8 == 0:
            check()
