"""A link that carries less than it should: found by the queue before it, planned around, and tried again later."""

from __future__ import annotations

import time

import pytest

from controlplane.generators import parse_topology
from controlplane.runtime import congestion
from tests.emulation.rig import Rig

NETWORK = "leafspine:leaves=2,spines=2,servers=3,bandwidth=10,uplink=10"
SIZE = 2_000_000  # so that a queue stands for some seconds, however fast the machine is
SECONDS = 90.0


@pytest.mark.timeout(300)
def test_link_that_other_traffic_takes_is_planned_around(monkeypatch) -> None:
    monkeypatch.setattr(congestion, "SLOW_LOOKS", 2)
    with Rig("softswitch", parse_topology(NETWORK), "inart", workers=4, roots=1, answers_failures=True) as rig:
        rig.start_all()
        switches = rig.topology.switches
        used = [
            (u, v)
            for tree in rig.plan.trees
            for flow in tree.flows
            for u, v in zip(flow.route, flow.route[1:], strict=False)
            if u in switches and v in switches
        ]
        u, v = used[0]
        rig.emulation.shape(u, v, rate_mbps=1.0)
        until = time.monotonic() + SECONDS
        network = rig.service.network
        name = f"{u}-{v}"
        while name not in network.state.slow:
            assert time.monotonic() < until, "\n".join(rig.log)
            rig.allreduce(SIZE).check()
        assert network.state.slow[name] < 1.4
        while not any("version" in line for line in rig.log):
            assert time.monotonic() < until, "\n".join(rig.log)
            rig.allreduce(SIZE).check()
        print("\n".join(rig.log[-12:]))
        began = time.monotonic()
        rig.allreduce(SIZE).check()
        print(f"{time.monotonic() - began:.2f} s afterwards")
        plan = network.jobs.get().updater.plan
        through = sum(
            tree.share * plan.rate_mbps
            for tree in plan.trees
            for flow in tree.flows
            if (u, v) in zip(flow.route, flow.route[1:], strict=False)
        )
        assert through <= network.state.slow[name] * (1 + 1e-6)
