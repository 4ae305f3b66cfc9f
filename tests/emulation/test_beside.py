"""A job beside TCP over one link, for real: both get something, the sums are right, and the queue is looked at."""

from __future__ import annotations

import pytest

from evaluation.beside import run as beside
from evaluation.beside.run import Settings, run


def test_a_job_and_tcp_share_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "SETTLE_SECONDS", 0.5)
    said: list[str] = []
    settings = Settings(mbps=8.0, workers=2, flows=1, seconds=0.5, ecn=8)
    shares = run("both", ["a share"], settings, said.append)
    assert [share.ecn for share in shares] == [0, 8]
    for share in shares:
        assert share.right and share.planned_mbps == pytest.approx(4.0)
        assert 0 < share.job_mbps < 8.0 and share.tcp_mbps[0] > 0 and share.back_mbps[0] > 0
        assert share.queue and all(waits >= 0 for _, waits in share.queue)
    assert shares[1].queue_full == 0, "TCP answers to marks before the queue is full"
    assert said[-1].startswith("both, planned for a share, marked: ")
