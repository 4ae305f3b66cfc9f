"""A job beside TCP over one link, for real: both get something, the sums are right, and the queue is looked at."""

from __future__ import annotations

import pytest

from evaluation.beside import run as beside
from evaluation.beside.run import Settings, run


def test_a_job_and_tcp_share_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "SETTLE_SECONDS", 0.5)
    said: list[str] = []
    (share,) = run("both", ["a share"], Settings(mbps=8.0, workers=2, flows=1, seconds=0.5), said.append)
    assert share.right and share.planned_mbps == pytest.approx(4.0)
    assert 0 < share.job_mbps < 8.0 and share.tcp_mbps[0] > 0 and share.back_mbps[0] > 0
    assert share.queue and all(waits >= 0 for _, waits in share.queue)
    assert said[-1].startswith("both, planned for a share: ")
