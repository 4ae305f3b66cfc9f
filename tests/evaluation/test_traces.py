"""Recorded training steps: what is recorded is what training asks for, and it is replayed by ours and by gloo."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from evaluation.collectives.ranks import in_order
from evaluation.traces import record
from evaluation.traces.__main__ import bound_of, cases_of, main
from evaluation.traces.execution_trace import from_execution_trace, read
from evaluation.traces.trace import HOW, Operation, Trace
from examples.train_gpt import GPT
from tests.outside.copies import copy_in

WIDTH, LAYERS, WORKERS = 16, 2, 2


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    return {how: record.record(how, WORKERS, WIDTH, LAYERS) for how in HOW}


def test_a_step_s_operations_move_the_model_once_or_as_sharding_does(traces: dict[str, Trace]) -> None:
    model = 4 * sum(one.numel() for one in GPT(WIDTH, LAYERS, record.HEADS, record.LENGTH).parameters())

    def moved(how: str, op: str) -> int:
        return sum(one.nbytes for one in traces[how].operations if one.op == op)

    assert moved("ddp", "allreduce") == model
    assert moved("fsdp2", "reduce_scatter") == pytest.approx(model, rel=0.02), "parts are padded"
    assert moved("fsdp2", "all_gather") >= model
    assert moved("hsdp", "allreduce") == pytest.approx(model / record.RANKS_OF_A_NODE, rel=0.02)
    assert {one.op for one in traces["hsdp"].operations} == {"allreduce"}, "the rest stays within the node"


def test_gathers_ahead_are_recorded_beside_the_reduce_scatters_that_they_run_beside(traces: dict[str, Trace]) -> None:
    alone, ahead = traces["fsdp2"].operations, traces["fsdp2-ahead"].operations
    assert [(one.op, one.nbytes) for one in ahead] == [(one.op, one.nbytes) for one in alone]
    assert not any(one.beside for one in alone), "on the CPU FSDP2 waits for each by itself"
    pairs = [(ahead[other].op, one.op) for one in ahead for other in one.beside]
    assert pairs == [("all_gather", "reduce_scatter")] * (LAYERS - 1), "while the layer above it scatters"
    groups = traces["fsdp2-ahead"].groups()
    assert [one for group in groups for one in group] == list(ahead)
    assert len(groups) == len(ahead) - len(pairs)


def test_the_least_time_counts_what_is_under_way_together_by_direction() -> None:
    gather, scatter = (Operation(op, "bfloat16", 510 * 2 * 40) for op in ("all_gather", "reduce_scatter"))
    whole = 40 * 8 * 1090 / 200e6
    trace = Trace("x", 4, (gather, replace(scatter, beside=(0,)), gather))
    assert bound_of(trace, cases_of(trace, 200.0)) == pytest.approx(whole * (1 + 1 / 4) + whole * 3 / 4)


def test_operations_begin_when_those_have_ended_that_were_waited_for() -> None:
    seen: list[str] = []

    def begin(place: int) -> Callable[[], Mock]:
        def one() -> Mock:
            seen.append(f"begin {place}")
            return Mock(wait=lambda: seen.append(f"wait {place}"))

        return one

    in_order([begin(place) for place in range(3)], [[], [0], [1]])()
    assert seen == ["begin 0", "begin 1", "wait 0", "begin 2", "wait 1", "wait 2"]
    seen.clear()
    in_order([begin(place) for place in range(2)], [])()
    assert seen == ["begin 0", "wait 0", "begin 1", "wait 1"]
    seen.clear()
    in_order([begin(place) for place in range(4)], [[], [0]], warm=2)()
    assert seen == ["begin 0", "wait 0", "begin 1", "wait 1", "begin 2", "begin 3", "wait 2", "wait 3"]


def test_a_trace_survives_a_file_and_what_is_none_is_refused(traces: dict[str, Trace]) -> None:
    for trace in traces.values():
        assert Trace.from_json(json.loads(json.dumps(asdict(trace)))) == trace
        assert [case.nbytes for case in cases_of(trace, 100.0)] == [one.nbytes for one in trace.operations]
    with pytest.raises(ValueError, match="no trace"):
        Trace.from_json({"name": "x", "workers": 2})
    with pytest.raises(ValueError, match="no trace: operation 0 is beside"):
        Trace.from_json(
            {"name": "x", "workers": 2, "operations": [asdict(Operation("all_gather", "float32", 8, (0,)))]}
        )
    with pytest.raises(ValueError, match="alltoall of float32 is none"):
        cases_of(Trace("x", 2, (Operation("alltoall", "float32", 400),)), 100.0)


def communication(what: str, tensors: object, kind: str, *more: object, size: int = 2) -> dict[str, Any]:
    """A node of an execution trace: tensors are [id, storage, offset, elements, bytes of one, device]."""
    values = [tensors, 33, ["0", "default_pg"], 0, what, [], [], *more, size]
    return {"name": "record_param_comms", "inputs": {"values": values, "types": [f"GenericList[Tensor({kind})]"]}}


def test_an_execution_trace_of_others_is_read_as_what_its_groups_were_asked_for(tmp_path: Path) -> None:
    nodes = [
        {"name": "aten::empty", "inputs": {"values": [], "types": []}},
        communication("broadcast", [[1, 2, 0, 53, 8, "cuda:1"]], "long", 0, 1),
        {"name": "record_param_comms", "inputs": {"values": [33, ["", ""], 1, "wait", [], [], -1, -1, 1], "types": []}},
        communication("allreduce", [[3, 4, 0, 2049000, 4, "cuda:1"]], "float", 0, 1),
        communication("_allgather_base", [5, 6, 0, 100, 2, "cuda:1"], "c10::BFloat16"),
        communication("_reduce_scatter_base", [7, 8, 0, 200, 2, "cuda:1"], "c10::BFloat16"),
    ]
    file = tmp_path / "resnet.json.gz"
    with gzip.open(file, "wt") as out:
        json.dump({"schema": "1.1.0-chakra.0.0.4", "nodes": nodes}, out)
    assert read(file) == Trace("resnet", 2, (
        Operation("broadcast", "float32", 424), Operation("allreduce", "float32", 8196000),
        Operation("all_gather", "bfloat16", 400), Operation("reduce_scatter", "bfloat16", 400),
    ))  # fmt: skip
    assert len(cases_of(read(file), 100.0)) == 4


@pytest.mark.parametrize(
    "nodes, why",
    [
        ([], "of groups of nobody"),
        ([communication("allreduce", [[1, 2, 0, 8, 4, "cpu"]], "float", size=1)], "one rank alone"),
        ([communication("alltoall_base", [[1, 2, 0, 8, 4, "cpu"]], "float")], "'alltoall_base' is none of"),
        ([{"name": "record_param_comms"}], "no execution trace: KeyError"),
        (
            [communication("allreduce", [[1, 2, 0, 8, 4, "cpu"]], "float", size=n) for n in (2, 4)],
            r"groups of \[2, 4\]",
        ),
    ],
)
def test_an_execution_trace_that_cannot_be_replayed_is_refused(nodes: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_execution_trace({"nodes": nodes}, "x")


def chakra_file(file: Path, collectives: list[tuple[int, int]]) -> None:
    """Write a trace as Chakra's protobuf has it: metadata, then nodes (type, bytes), each with its length before it."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2]) + varint(len(content)) + content

    def varint(number: int) -> bytes:
        found = b""
        while number >= 0x80:
            found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
        return found + bytes([number])

    def attribute(name: str, number: int) -> bytes:
        return field(10, field(1, name.encode()) + bytes([9 << 3]) + varint(number))  # an int64

    nodes = [field(1, b"1.0")]  # the metadata: a version
    nodes.append(field(2, b"aten::mm") + bytes([3 << 3, 4]))  # a node that computes
    for kind, size in collectives:
        nodes.append(
            field(2, b"nccl") + bytes([3 << 3, 7]) + attribute("comm_type", kind) + attribute("comm_size", size)
        )
    file.write_bytes(b"".join(varint(len(each)) + each for each in nodes))


def test_chakra_s_protobuf_traces_are_read(tmp_path: Path) -> None:
    """The number of ranks is that of the files; a file that lies alone is of as many as are said."""
    for rank in range(2):
        chakra_file(tmp_path / f"gpt.{rank}.et", [(0, 40_000), (2, 400), (7, 802), (9, 0), (5, 53)])
    assert read(tmp_path / "gpt.0.et") == Trace("gpt", 2, (
        Operation("allreduce", "float32", 40_000), Operation("all_gather", "float32", 800),
        Operation("reduce_scatter", "float32", 808), Operation("broadcast", "float32", 56),
    ))  # fmt: skip
    chakra_file(tmp_path / "alone.0.et", [(0, 400)])
    assert read(tmp_path / "alone.0.et", 8).workers == 8


@pytest.mark.parametrize(
    "collectives, cut, why",
    [
        ([], 0, "no collective in it"),
        ([(6, 400)], 0, "is of the kind all-to-all: these go in the network: all_gather, allreduce"),
        ([(0, 400)], 1, "no trace of Chakra's: it ends in the middle of a message"),
    ],
)
def test_a_protobuf_trace_that_cannot_be_replayed_is_refused(
    tmp_path: Path, collectives: list[tuple[int, int]], cut: int, why: str
) -> None:
    file = tmp_path / "a.0.et"
    chakra_file(file, collectives)
    file.write_bytes(file.read_bytes()[: -cut or None])
    with pytest.raises(ValueError, match=why):
        read(file)


def test_chakra_s_and_param_s_own_traces_are_read() -> None:
    folder = copy_in("INART_TRACES", "others' execution traces (*.json, *.json.gz, *.et)", lambda _: "")
    files = sorted(file for file in folder.iterdir() if file.name.endswith((".json", ".json.gz", ".et")))
    assert files
    for file in files:
        trace = read(file)
        assert trace.workers > 1 and len(cases_of(trace, 200.0)) == len(trace.operations) > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
def test_traces_are_replayed_by_ours_and_by_gloo(
    traces: dict[str, Trace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(asdict(traces["fsdp2-ahead"])))
    assert main(["--trace", str(file), "--mbps", "200", "--repeat", "1", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    operations = traces["fsdp2-ahead"].operations
    assert (result["operations"], result["bytes"]) == (len(operations), sum(one.nbytes for one in operations))
    assert result["seconds"] >= 0.5 * result["bound_seconds"] > 0, "a burst of 256 KB leaves at once"
    assert result["gloo_seconds"] > 0
