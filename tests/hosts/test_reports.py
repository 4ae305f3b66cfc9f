"""The counters of workers and parameter servers arrive in the reports of their agents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from ps_server.versions import Versions
from tests.hosts.rig import Rig, finish
from worker_agent.own_root import OwnRoot
from worker_agent.reporter import totals
from worker_agent.worker_versions import WorkerVersions

MakeRig = Callable[..., Rig]


def test_the_counters_of_trees_are_in_the_reports(make_rig: MakeRig) -> None:
    rig = make_rig()
    finish(rig.submit([np.ones(20_000, np.float32) for _ in rig.engines]))
    engine, server = rig.engines[0], rig.servers[0]
    versions = Versions()
    versions._server = server
    reported, trees = versions.statistics()[0], server.stats().trees
    assert reported["completed"] == sum(tree.completed for tree in trees) > 0
    assert not {"tree", "oldest_incomplete", "check_failures"} & set(reported)
    counted = [replace(tree, duplicates=3, refused=2, results_dropped=1) for tree in trees]
    found = totals(counted)
    assert [found[name] / len(trees) for name in ("duplicates", "refused", "results_dropped")] == [3, 2, 1]

    def of_worker(root: OwnRoot) -> dict[str, float]:
        agent = SimpleNamespace(engine=engine, _root=root)
        return dict(WorkerVersions.statistics(cast(WorkerVersions, agent))[0])

    alone = of_worker(OwnRoot())
    assert alone["answers"] == sum(tree.answers for tree in engine.stats().trees) > 0
    assert totals([replace(tree, duplicates=3) for tree in engine.stats().trees])["duplicates"] > 0
    both = OwnRoot()  # of a host that is a parameter server, too
    root: Any = SimpleNamespace(statistics=lambda: ({"duplicates": 5.0, "results_dropped": 2.0, "added": 9.0}, []))
    both._versions = root
    reported = of_worker(both)
    assert reported["duplicates"] == alone.get("duplicates", 0) + 5 and reported["results_dropped"] == 2
    assert "added" not in reported
