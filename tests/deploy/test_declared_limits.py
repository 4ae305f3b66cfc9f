"""The limits that the topology states for a switch hold for all jobs together, not for each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.strategies import Infeasible
from controlplane.planner.topology import Topology
from controlplane.service.core.disabled import Why
from controlplane.service.next_plan import MigrationError
from controlplane.service.running import JobsError
from tests.deploy.memory_network import MemoryNetwork

PLAIN = leaf_spine(2, 2, 6, 300.0, uplink_mbps=3000.0, aggregation_mbps=None, ingress_mbps=None)
SERVERS = PLAIN.servers
JOBS = [
    Job(f"job{n}", (SERVERS[n], SERVERS[n + 6]), (SERVERS[n + 3],), 1_000_000)
    for n in range(3)
]  # fmt: skip
DECLARED = {"label_entries": 8, "multicast_groups": 2, "slots": 128}
"""The limits of each switch: enough for one or two of these jobs, but not for three."""


def declaring(**limits: int) -> Topology:
    return PLAIN.replace(nodes={switch: dict(limits) for switch in PLAIN.switches})


@pytest.fixture
def networks(tmp_path) -> Iterator[list[MemoryNetwork]]:
    made: list[MemoryNetwork] = []

    def make(topology: Topology) -> MemoryNetwork:
        made.append(MemoryNetwork(tmp_path, topology))
        return made[-1]

    yield make  # type: ignore[misc]
    for one in made:
        one.close()


def most_taken(rig: MemoryNetwork, resource: str) -> int:
    """Return the most of this resource that any switch holds."""
    taken = rig.network.switches.taken().values()
    counts = {
        "label_entries": lambda one: one.labels,
        "multicast_groups": lambda one: len(one.groups),
        "slots": lambda one: sum(end - first for first, end in one.slots),
    }
    return max(counts[resource](one) for one in taken)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("resource", sorted(DECLARED))
def test_jobs_together_use_no_more_of_a_switch_than_declared(networks, resource, together):
    free, most = networks(PLAIN), DECLARED[resource]
    for job in JOBS:
        free.add(job)
    assert most_taken(free, resource) > most, "else this test tests nothing"
    rig = networks(declaring(**{resource: most}))
    refused = 0
    for job in JOBS:
        try:
            rig.add(job, together=together)
        except (DoesNotFit, Infeasible, JobsError, MigrationError):
            refused += 1
        assert most_taken(rig, resource) <= most
    assert refused < len(JOBS)
    assert refused or resource == "slots", "a tree makes do with fewer slots, and with nothing else"
    assert rig.as_wanted()


def test_job_is_rerouted_around_a_failure_though_its_switches_are_nearly_full(networks):
    """A plan that replaces its own entries needs no additional room beside them."""
    job = JOBS[0]
    probe = networks(PLAIN)
    running = probe.add(job)
    most = most_taken(probe, "label_entries")
    rig = networks(declaring(label_entries=most + 2))
    running = rig.add(job)
    used = {node for tree in running.migrator.plan.trees for flow in tree.flows for node in flow.route}
    (spine,) = used.intersection({"s1", "s2"})
    assert rig.network.failover.lose({spine: "it died"}, Why.SILENT), rig.log
    assert most_taken(rig, "label_entries") <= most + 2
