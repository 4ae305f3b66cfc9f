"""The benchmark of collectives: what it prints as JSON and as a table, and the picture."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from evaluation.collectives.__main__ import main
from evaluation.collectives.cases import Case, bus_factor, cases
from evaluation.collectives.measure import Result
from evaluation.collectives.plot import draw

KEYS = {"op", "dtype", "bits", "bytes", "workers", "mbps", "seconds", "gloo_seconds", "bound_seconds"}
KEYS |= {"gloo_cpu_seconds", "gloo_switches"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
def test_ours_and_gloo_in_turns_as_a_list_of_objects(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [
        "--bytes",
        "4,40K",
        "--dtype",
        "bfloat16",
        "--op",
        "allreduce,all_gather",
        "--workers",
        "2",
        "--mbps",
        "100",
    ]
    assert main([*words, "--repeat", "1", "--json", "--plot", str(tmp_path / "all.png")]) == 0
    results = json.loads(capsys.readouterr().out)
    assert all(set(result) == KEYS for result in results)
    found = [(result["op"], result["dtype"], result["bits"], result["bytes"]) for result in results]
    assert found == [(op, "bfloat16", 16, size) for op in ("allreduce", "all_gather") for size in (4, 40_000)]
    assert all(result["seconds"] > 0 and result["gloo_seconds"] > 0 for result in results)
    assert all(result["gloo_cpu_seconds"] > 0 and result["gloo_switches"] > 0 for result in results)
    assert results[1]["bound_seconds"] == pytest.approx(8 * 1090 * 40 / 100e6), "40 packets of 510 values"
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
def test_float32_in_fewer_bits_without_gloo_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--bytes", "40K", "--dtype", "float32", "--bits", "32,8", "--op", "allreduce,reduce_scatter", "--no-gloo"]
    assert main([*words, "--workers", "2", "--mbps", "100", "--repeat", "1"]) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines() if "float32" in row]
    assert [(row[0], row[4]) for row in rows] == [
        (op, bits) for op in ("allreduce", "reduce_scatter") for bits in ("32", "8")
    ]


def test_meaningless_combinations_are_omitted_and_bytes_give_the_bound() -> None:
    found = list(cases(["allreduce", "all_gather"], ["bfloat16"], [32, None, 8], [1_000_002], workers=4, mbps=200.0))
    assert [(case.op, case.bits, case.nbytes) for case in found] == [
        ("allreduce", 16, 1_000_002),
        ("allreduce", 8, 1_000_002),
        ("all_gather", 16, 1_000_000),
    ]
    assert found[0].at_most(1000).nbytes == 1000 and found[2].at_most(2_000_000) is found[2]
    assert found[2].at_most(1001).nbytes == 1000, "parts of whole elements"
    bounds = [
        Case("allreduce", "float32", bits, 4 * 1020 * 90, 4, 200.0).bound_seconds(256) for bits in (32, 16, 10, 8)
    ]
    assert bounds == pytest.approx([8 * 1090 * n / 200e6 for n in (360, 180, 120, 90)])
    assert bus_factor("allreduce", 4) == 1.5 and bus_factor("all_gather", 4) == 0.75


def test_a_picture_without_gloo(tmp_path: Path) -> None:
    draw([Result("allreduce", "float32", 8, 1000, 4, 200.0, 0.01, None, 0.001)], tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 1000
