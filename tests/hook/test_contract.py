"""Backend "inart" keeps the contract of torch.distributed: here with two ranks whose network is not available."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hook.test_training import run_ranks


def ranks(scenario: str, folder: Path) -> list[dict[str, Any]]:
    nodes = [{"agent": f"unix:{folder}/{name}.sock"} for name in ("w0", "w1")]
    return run_ranks(scenario, folder, nodes)


def test_torch_compile_does_not_trace_into_the_process_group(tmp_path: Path) -> None:
    for result in ranks("compiled", tmp_path):
        assert result["compiled"] == pytest.approx(result["plain"])
        assert result["whole"] == pytest.approx(result["plain"])
        assert result["collectives"] == [6.0, 6.0, 6.0]


def test_means_of_integers_are_integers_and_those_of_bool_values_are_refused(tmp_path: Path) -> None:
    for rank, result in enumerate(ranks("averages", tmp_path)):
        assert result["whole"] == [1, -1, 4]
        assert result["part"] == [[0], [2]][rank]
        assert result["flags"] == [rank == 0, True], "what was refused is unchanged"
        assert "bool values have no mean" in result["error"]
