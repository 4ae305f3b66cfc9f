"""Other traffic over one of two ways, which the switches count: a job's plan makes way for it, and comes back."""

from __future__ import annotations

import pytest

from controlplane.common.log_lines import calling
from controlplane.planner.evaluate import unit_loads
from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job
from controlplane.planner.routing import next_hops
from controlplane.service import others
from controlplane.service.core import others as core
from evaluation.beside.flows import HERE
from tests.support.waiting import wait_until
from topologies import Emulation
from topologies.agents import MODULES, JobAgents
from topologies.deployment import Fabric
from topologies.zygote import Zygote

RATE, FOREIGN = 20.0, 14.0
SECONDS = 90.0
pytestmark = pytest.mark.usefixtures("patient")


def test_a_job_makes_way_for_what_switches_count_and_comes_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "LOOK_SECONDS", 1.0)
    monkeypatch.setattr(core, "HOLD_SECONDS", 2.0)
    monkeypatch.setattr(core, "SMOOTH_SECONDS", 1.0)
    topology = leaf_spine(2, 2, 4, 4 * RATE, uplink_mbps=RATE, aggregation_mbps=None, ingress_mbps=None)
    left, right = topology.servers[:4], topology.servers[4:]
    job = Job("job", left[:2], right[:1], 10**6)
    receiver = next(server for server in right[1:] if next_hops(topology)[server]["e1"] == "s1")
    with (
        Emulation(topology, kind) as emulation,
        Zygote(emulation, (*MODULES, HERE)) as zygote,
        Fabric(emulation, calling(print)) as fabric,
        fabric.control(beside=0.25) as service,
    ):
        zygote.wait_ready()
        running = service.network.launch(job, "inart")[1]
        alone = running.plan.rate_mbps
        assert alone == pytest.approx(2 * RATE)

        def planned() -> float:
            """The Mbit/s that the plan has on the link that others use."""
            return (
                unit_loads(running.plan, topology.results_on_links)[0].get(("e1", "s1"), 0.0) * running.plan.rate_mbps
            )

        with JobAgents(zygote, service.address, job) as agents:
            agents.ready(SECONDS)
            assert agents.allreduce(10**6).right
            assert running.plan.rate_mbps == alone, "the job's own packets are not other traffic"
            sender = zygote.spawn(
                left[2], f"{HERE}:spray", {"addresses": [topology.address(receiver)], "mbps": FOREIGN}
            )
            wait_until(lambda: planned() < RATE - FOREIGN / 2, SECONDS)
            assert running.plan.rate_mbps > RATE, "the other way is all the job's"
            assert agents.allreduce(10**6).right
            sender.kill()
            wait_until(lambda: running.plan.rate_mbps == pytest.approx(alone), "the whole links again", SECONDS)
            assert agents.allreduce(10**6).right
            agents.leave(SECONDS)
