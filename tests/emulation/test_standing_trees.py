"""A switch loses an entry of one tree without a word, under real agents: the controller finds that by the tree without
a result, writes the entry again, and the operation that waited for it ends right."""

from __future__ import annotations

import pytest

from controlplane.planner.generators import parse_topology
from controlplane.targets.base import Change, Operation
from tests.emulation.rig import Rig

pytestmark = pytest.mark.usefixtures("patient")
NETWORK = "leafspine:leaves=2,spines=2,servers=3,bandwidth=300,uplink=300"
SIZE = 4_000_000


@pytest.mark.timeout(400)
def test_an_entry_that_a_switch_has_lost_is_written_again_and_the_sum_is_right() -> None:
    with Rig("softswitch", parse_topology(NETWORK), "inart", workers=4, roots=2, answers_failures=True) as rig:
        rig.start_all()
        number = len(rig.plan.trees) - 1  # The small operation that has been done took the first tree.
        worker = rig.job.workers[0]
        (job,) = rig.service.network.jobs
        label = job.roster.configs[worker].worker_trees[number].up_label
        leaf = next(iter(rig.topology.neighbours(worker)))
        (keeper,) = [each for each in rig.service.network.switches.keepers if each.target.name == leaf]
        (lost,) = [entry for entry in keeper.target.read().labels if entry.label == label]
        keeper.target.apply([Change(Operation.DELETE, lost)])
        rig.submit(SIZE)
        rig.collect().check()
        assert lost in keeper.target.read().labels
        assert any(f"tree {number} " in line and "its switches are read again" in line for line in rig.log)
