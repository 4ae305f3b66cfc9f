"""The check that tests/install/torch_matrix.py runs in fresh environments, with the torch that is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.install.train_briefly import run


@pytest.mark.timeout(600)
def test_fsdp2_trains_over_the_backend_also_when_there_was_never_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    assert run("fsdp2") == "ok"
