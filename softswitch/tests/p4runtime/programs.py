"""Small programs for these tests, compiled."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format

from softswitch.p4runtime.stubs import p4info_pb2

HERE = Path(__file__).parent


def program(name: str) -> tuple[bytes, p4info_pb2.P4Info]:
    """Return bmv2 JSON and P4Info of a program in this folder."""
    text = (HERE / f"{name}.p4info.txtpb").read_text()
    return (HERE / f"{name}.json").read_bytes(), text_format.Parse(text, p4info_pb2.P4Info())


def ids(p4info: p4info_pb2.P4Info) -> dict[str, int]:
    """Return P4Info ids by alias."""
    groups = (p4info.tables, p4info.actions, p4info.digests, p4info.counters)
    return {one.preamble.alias: one.preamble.id for group in groups for one in group}
