"""A short soak test: jobs come and go on a network with failures.

``python -m evaluation.jobs soak`` is the long one.
"""

from __future__ import annotations

import pytest

from evaluation.jobs.soak import Settings, soak


@pytest.mark.timeout(600)
def test_jobs_come_and_go_while_links_and_switches_fail():
    log: list[str] = []
    settings = Settings(k=4, jobs=3, seconds=None, arrivals=4, life=5.0, faults=4.0, length=5.0, seed=2)
    findings = soak(settings, log.append)
    assert not findings.wrong, "\n".join([*findings.wrong, *log[-60:]])
    assert findings.sums > 0
    assert sum(findings.ends.values()) + findings.refused >= settings.arrivals
