"""Trees with several lanes: sums are right whatever the network does, and each lane has a port and a thread."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.hosts.star import TreeShape, star
from p4src.protocol import PROTOCOL
from tests.hosts.rig import finish, tensors
from tests.hosts.test_allreduce import VALUES, reduce_and_check
from tests.hosts.test_collectives import (
    MakeRig,
    broadcast_and_check,
    gather_and_check,
    scatter_and_check,
)
from tests.support.waiting import wait_until
from worker_agent.io_options import IoOptions
from worker_agent.native_worker import native_config
from worker_agent.tree_lanes import lanes_of

EVERYTHING = {"loss": 0.03, "duplicate": 0.1, "reorder": 0.1, "hold_seconds": 0.01, "delay_seconds": 0.002}
FAULTS = [
    pytest.param({}, id="perfect"),
    pytest.param({"loss": 0.1}, id="loss of 10 %"),
    pytest.param(EVERYTHING, id="everything"),
]


@pytest.mark.parametrize(("lanes", "beside"), [(2, True), (16, False)])
@pytest.mark.parametrize("faults", FAULTS)
def test_sums_and_gathers_over_lanes_are_right(
    make_rig: MakeRig, faults: dict[str, float], beside: bool, lanes: int
) -> None:
    """Three trees share the ports, so a thread has lanes of several trees; one tree has no switch that adds."""
    rig = make_rig(gathers=True, beside=beside, lanes=lanes, io=IoOptions(threads=2))
    rig.faults(**faults)
    for seed, part in enumerate([1, VALUES, 4_000, 3_001]):
        reduce_and_check(rig, seed, 5 * part, mean=seed % 2 == 1)
        scatter_and_check(rig, seed, part)
        gather_and_check(rig, seed, part, np.uint8)
        broadcast_and_check(rig, seed, 2 * part, seed)
    stats = rig.engines[0].stats()
    assert stats.operations_done == 16 and stats.io.threads == 2
    assert all(tree.oldest_unanswered == tree.next_sequence for tree in stats.trees), "nothing is open"
    assert all(not engine.open_chunks() for engine in rig.engines)


def test_who_is_late_is_seen_on_every_lane(make_rig: MakeRig) -> None:
    """The oldest chunk that waits is that of some lane, for the worker as for the parameter server."""
    rig = make_rig([TreeShape(0, 1.0, True)], lanes=4, io=IoOptions(threads=2))
    arrays = tensors(1, 4, 40_000)
    before = [array.copy() for array in arrays]
    early = [engine.allreduce_async(a, "sum") for engine, a in zip(rig.engines[1:], arrays[1:], strict=True)]
    wait_until(lambda: bool(rig.servers[0].open_chunks()), "the parameter server has heard of it")
    assert all(0 in engine.open_chunks() for engine in rig.engines[1:])
    (tree,) = rig.servers[0].stats().trees
    assert tree.missing == ("w0",)
    finish([*early, rig.engines[0].allreduce_async(arrays[0], "sum")])
    total = np.sum(before, axis=0)
    assert all(np.allclose(array, total, rtol=1e-4, atol=np.abs(total).max() * 1e-5) for array in arrays)
    assert not rig.servers[0].open_chunks()


def test_each_lane_has_a_port_of_the_job_and_as_many_threads_share_a_tree() -> None:
    job = star(2, values_per_packet=64, slots=64, rate_mbps=100.0).in_lanes(4)
    config = job.workers[0]
    ports = {lane.port for lane in lanes_of(config.worker_trees)}
    first = config.worker_trees[0].port
    assert len(ports) == 4 and all(port // PROTOCOL.ports_per_job == first // PROTOCOL.ports_per_job for port in ports)
    native, (trees, *_) = native_config(config, 4, 60.0)
    assert native.trees == 4
    assert {tree.thread for tree in trees} == {0, 1, 2, 3}
    assert sum(tree.rate_mbps for tree in trees) == pytest.approx(config.worker_trees[0].rate_mbps)


def test_lanes_that_no_wire_number_can_tell_are_refused() -> None:
    for lanes in (3, 12, 32):
        with pytest.raises(ValueError, match=f"tree 0 has {lanes} lanes: 1, 2, 4, 8 or 16"):
            lanes_of(star(2, values_per_packet=64).in_lanes(lanes).workers[0].worker_trees)
