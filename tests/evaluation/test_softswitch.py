"""The benchmark beside bmv2: its workloads do what they promise, and its report states whether larger or smaller values
are better.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from evaluation.softswitch import __main__ as command
from evaluation.softswitch import growth, tcp
from evaluation.softswitch.bench import Bench, records
from evaluation.softswitch.figures import Row
from evaluation.softswitch.report import page, ratio
from evaluation.softswitch.workloads import WORKLOADS, Workload, table
from softswitch import Device, Fabric, Program
from softswitch.tests.dataplane.superframe import UDP, Sent, cut


def filled(fabric: Fabric, workload: Workload) -> Device:
    device = fabric.add_device(1)
    device.load(Program.load(workload.program.read_bytes()))
    for row in workload.rows:
        device.insert(row.table, row.match, row.action, row.params, row.priority)
    return device


@pytest.mark.parametrize("kind", ["exact", "lpm", "ternary"])
def test_frames_of_a_table_hit_it(kind: str) -> None:
    workload = table(kind, 300)
    with Fabric() as fabric:
        device = filled(fabric, workload)
        assert all([port for port, _ in device.process(1, frame)] == [2] for frame in workload.frames(0))


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_as_many_frames_leave_as_is_counted_on(name: str) -> None:
    workload = WORKLOADS[name]()
    with Fabric() as fabric:
        device = filled(fabric, workload)
        frames = workload.frames(0)
        left = [port for frame in frames for port, _ in device.process(1, frame)]
        assert left == [2] * (len(frames) // workload.per_output)


@pytest.mark.parametrize("name", [name for name in sorted(WORKLOADS) if name.endswith("superframes")])
def test_superframes_are_whole(name: str) -> None:
    """The packets that the generator gets are those that the switch's tests use for one flow."""
    workload = WORKLOADS[name]()
    packets = workload.frames(0)[: workload.superframe]
    (record,) = records(packets, workload.superframe)
    length, size = struct.unpack("<II", record[:8])
    pieces = cut(Sent(record[8:], UDP, size, 34))
    assert length == len(record) - 8 <= 65535
    assert [piece[42:] for piece in pieces] == [packet[42:] for packet in packets]
    # These bytes are addresses and ports.
    assert [piece[26:38] for piece in pieces] == [packet[26:38] for packet in packets]


@pytest.mark.parametrize("kind", growth.TABLE_KINDS, ids=lambda kind: kind[0])
def test_growth_of_a_table(kind: growth.Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "LOOKUP_SECONDS", 0.01)
    what, number, make, _ = kind
    rows = list(growth.table(what, number, make, (30, 60)))  # raises if a frame misses
    assert {row.entries for row in rows} == {30, 60}
    assert {row.what for row in rows} >= {f"{what}: insert", f"{what}: delete", f"{what}: look-up"}


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_connection_is_measured_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "REPEAT", 1)
    with Bench() as bench:
        rows = list(tcp.tcp(bench, 0.05))
    assert [row.unit for row in rows] == ["Mbit/s", "us of CPU/MB"] * 2
    assert all(row.value > 0 for row in rows)


def test_ratios_state_whether_larger_or_smaller_is_better() -> None:
    def row(switch: str, value: float, unit: str) -> Row:
        return Row("traffic", "forwarding", switch, value, unit)

    assert ratio(row("softswitch", 200, "packets/s"), row("bmv2", 4, "packets/s")) == "50 times"
    assert ratio(row("softswitch", 2, "us of CPU/packet"), row("bmv2", 50, "us of CPU/packet")) == "25 times"
    assert ratio(row("softswitch", 60, "MiB"), row("bmv2", 15, "MiB")) == "1/4"
    text = page([row("softswitch", 200, "packets/s"), row("bmv2", 4, "packets/s")], "2 CPUs")
    assert "| forwarding | packets/s | 200 | 4 | 50 times |" in text


def test_a_run_of_one_section_keeps_the_others(tmp_path: Path) -> None:
    first = [Row("memory", "process", "softswitch", 60, "MiB"), Row("traffic", "forwarding", "bmv2", 5, "packets/s")]
    command.save(first, "2 CPUs", tmp_path)
    command.save([Row("traffic", "forwarding", "softswitch", 300, "packets/s")], "2 CPUs", tmp_path)
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
    assert [(row["section"], row["switch"]) for row in rows] == [("traffic", "softswitch"), ("memory", "softswitch")]
    assert (tmp_path / "report.md").read_text().index("## Traffic") > 0
    assert (tmp_path / "beside-bmv2.png").stat().st_size > 1000
