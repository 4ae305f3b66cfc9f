"""Recorded training steps: what is recorded is what training asks for, and it is replayed by ours and by gloo."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from evaluation.collectives.ranks import in_order
from evaluation.traces import record
from evaluation.traces.__main__ import bound_of, cases_of, main
from evaluation.traces.trace import HOW, Operation, Trace
from examples.train_gpt import GPT

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


def test_a_trace_survives_a_file_and_what_is_none_is_refused(traces: dict[str, Trace]) -> None:
    for trace in traces.values():
        assert Trace.from_json(json.loads(json.dumps(trace.to_json()))) == trace
        assert [case.nbytes for case in cases_of(trace, 100.0)] == [one.nbytes for one in trace.operations]
    with pytest.raises(ValueError, match="no trace"):
        Trace.from_json({"name": "x", "workers": 2})
    with pytest.raises(ValueError, match="no trace: operation 0 is beside"):
        Trace.from_json(
            {"name": "x", "workers": 2, "operations": [asdict(Operation("all_gather", "float32", 8, (0,)))]}
        )
    with pytest.raises(ValueError, match="alltoall of float32 is none"):
        cases_of(Trace("x", 2, (Operation("alltoall", "float32", 400),)), 100.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
def test_traces_are_replayed_by_ours_and_by_gloo(
    traces: dict[str, Trace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(traces["fsdp2-ahead"].to_json()))
    assert main(["--trace", str(file), "--mbps", "200", "--repeat", "1", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    operations = traces["fsdp2-ahead"].operations
    assert (result["operations"], result["bytes"]) == (len(operations), sum(one.nbytes for one in operations))
    assert result["seconds"] >= 0.5 * result["bound_seconds"] > 0, "a burst of 256 KB leaves at once"
    assert result["gloo_seconds"] > 0
