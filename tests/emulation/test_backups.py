"""A plan with backup trees: after a failure agents get new shares, and no rule is written to a switch."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from controlplane.planner.plan.survive import BACKUP_SHARE, Scenario, hardened
from controlplane.planner.strategies import get_strategy
from tests.emulation.rig import SECONDS, Rig
from tests.emulation.test_allreduce import SIZE
from tests.emulation.test_failures import dead, spine, tree

PART = 0.6


class Backed(Rig):
    """A rig whose plan survives the loss of any one link or switch."""

    def __enter__(self) -> Backed:
        found = hardened(self.plan, self.topology, PART, get_strategy("inart-strict"))
        assert found.backups and not found.unmet
        self.plan = found.plan
        super().__enter__()
        return self


def test_shares_go_to_backup_trees_and_no_switch_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with Backed("softswitch", tree(), "inart-strict", answers_failures=True) as rig:
        rig.start_all()
        rig.allreduce(SIZE // 4).check()
        job = rig.service.network.jobs.get()
        switch, planned, entries = spine(rig), job.updater.plan, dict(job.updater.deployment.rulesets)
        writes: list[str] = []
        for target in rig.fabric.targets:
            monkeypatch.setattr(target, "apply", lambda changes, name=target.name: writes.append(f"{name}: {changes}"))
        rig.submit(4 * SIZE)
        dead(rig, switch)
        rig.collect().check()
        rig.allreduce(SIZE // 4).check()
        now = job.updater.plan
        assert any("no switch is written" in line for line in rig.log), rig.log
        assert not writes
        assert dict(job.updater.deployment.rulesets) == entries
        unused = [one for one in now.trees if one.share < BACKUP_SHARE / 2]
        assert unused and all(Scenario((switch,)).needed_by(one) for one in unused)
        assert now.rate_mbps >= PART * planned.rate_mbps * (1 - 1e-3)
        assert [replace(one, share=1.0) for one in now.trees] == [replace(one, share=1.0) for one in planned.trees]
        for neighbour in rig.topology.neighbours(switch):
            rig.emulation.shape(switch, neighbour, loss=0.0)
            if neighbour in rig.topology.switches:
                rig.emulation.shape(neighbour, switch, loss=0.0)
        rig.service.network.failover.restore(list(rig.service.network.state.off), "mended")
        end = time.monotonic() + SECONDS
        while job.updater.plan.trees != planned.trees and time.monotonic() < end:
            rig.allreduce(SIZE // 4).check()
        assert job.updater.plan.trees == planned.trees
        rig.allreduce(SIZE // 4).check()
        assert not writes
