"""The structures that the engines share with Python: one list of fields, which is the C header's."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from controlplane.common.native_build import load
from evaluation.hosts.numbers import NativeFields
from ps_server import server
from worker_agent import io_options, native_worker
from worker_agent.c_structures import Header
from worker_agent.native_engine import NATIVE

SHARED = {
    "inart_uplink": io_options.Uplink,
    "inart_io_config": io_options.IoConfig,
    "inart_io_stats": io_options.NativeIoStats,
    "inart_packet_stats": io_options.PacketStats,
    "inart_tree_config": native_worker.NativeTreeConfig,
    "inart_worker_config": native_worker.NativeConfig,
    "inart_part_range": native_worker.NativeRange,
    "inart_gathered": native_worker.NativeGathered,
    "inart_encoding": native_worker.NativeEncoding,
    "inart_completion": native_worker.NativeCompletion,
    "inart_tree_stats": native_worker.NativeTreeStats,
    "inart_worker_stats": native_worker.NativeStats,
    "inart_root_flow": server._Flow,
    "inart_root_tree_config": server._TreeConfig,
    "inart_root_config": server._Config,
    "inart_root_tree_stats": server._TreeStats,
    "inart_fields": NativeFields,
}


def test_every_field_is_where_the_compiler_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INART_CACHE", str(tmp_path / "cache"))
    fields = [(structure, name) for structure, kind in SHARED.items() for name, *_ in kind._fields_]
    offsets = ", ".join(
        f"offsetof(struct {structure}, {name}), sizeof(((struct {structure} *)0)->{name})" for structure, name in fields
    )
    source = tmp_path / "offsets.c"
    source.write_text(
        '#define _GNU_SOURCE\n#include <stddef.h>\n#include "worker/worker.h"\n#include "uplink.h"\n'
        f'#include "fields.h"\n#include "root.h"\nconst size_t offsets[] = {{{offsets}}};\n'
    )
    library = load(source, include=[NATIVE, Path(server.__file__).parent / "native"])
    found = (ctypes.c_size_t * (2 * len(fields))).in_dll(library, "offsets")
    for place, (structure, name) in enumerate(fields):
        field = getattr(SHARED[structure], name)
        assert (found[2 * place], found[2 * place + 1]) == (field.offset, field.size), f"{structure}.{name}"


def test_exchanging_two_counters_in_c_exchanges_them_in_python(tmp_path: Path) -> None:
    text = (NATIVE / "worker" / "worker.h").read_text()
    changed = tmp_path / "worker.h"
    changed.write_text(text.replace("duplicates, refused,", "refused, duplicates,"))
    names = [name for name, *_ in Header(changed).fields("inart_tree_stats")]
    ours = [name for name, *_ in native_worker.NativeTreeStats._fields_]
    place = ours.index("duplicates")
    assert names[place : place + 2] == ["refused", "duplicates"] and sorted(names) == sorted(ours)


@pytest.mark.parametrize(
    ("body", "error"),
    [("uint32_t a:3;", "cannot read 'a:3'"), ("short a;", "cannot read 'a'"), ("int (*call)(void);", "cannot read")],
)
def test_a_declaration_that_it_cannot_read_is_an_error(tmp_path: Path, body: str, error: str) -> None:
    header = tmp_path / "one.h"
    header.write_text(f"struct one {{ /* a comment; */\n    uint64_t first, *second;\n    {body}\n}};\n")
    with pytest.raises(ValueError, match=rf"one.h: struct one: {error.replace('(', '.')}"):
        Header(header).fields("one")
    with pytest.raises(ValueError, match="there is no struct two"):
        Header(header).fields("two")
