"""Recorded training steps: what is recorded is what training asks for, and it is replayed by ours and by gloo."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from evaluation.traces import record
from evaluation.traces.__main__ import cases_of, main
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


def test_a_trace_survives_a_file_and_what_is_none_is_refused(traces: dict[str, Trace]) -> None:
    for trace in traces.values():
        assert Trace.from_json(json.loads(json.dumps(trace.to_json()))) == trace
        assert [case.nbytes for case in cases_of(trace, 100.0)] == [one.nbytes for one in trace.operations]
    with pytest.raises(ValueError, match="no trace"):
        Trace.from_json({"name": "x", "workers": 2})
    with pytest.raises(ValueError, match="alltoall of float32 is none"):
        cases_of(Trace("x", 2, (Operation("alltoall", "float32", 400),)), 100.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
def test_traces_are_replayed_by_ours_and_by_gloo(
    traces: dict[str, Trace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fsdp2.json"
    file.write_text(json.dumps(traces["fsdp2"].to_json()))
    assert main(["--trace", str(file), "--mbps", "200", "--repeat", "1", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    operations = traces["fsdp2"].operations
    assert (result["operations"], result["bytes"]) == (len(operations), sum(one.nbytes for one in operations))
    assert result["seconds"] >= 0.5 * result["bound_seconds"] > 0, "a burst of 256 KB leaves at once"
    assert result["gloo_seconds"] > 0
