"""A switch that flips bits of packets that it sends or stores is found by a job's own packets and disabled; no sum is
wrong.
"""

from __future__ import annotations

import threading

import pytest

from controlplane.planner.generators import leaf_spine
from controlplane.service.core.disabled import Why
from p4src.protocol import PROTOCOL
from tests.emulation.rig import Rig
from tests.support.examples import nightly

SIZE = 400_000
MOST = 200
"""The most all-reduces until the switch must have been found."""
REGISTERS = "InartIngress.values."


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", [nightly("frames"), "memory"])
def test_spine_that_flips_bits_is_named_and_disabled(how) -> None:
    network = leaf_spine(3, 2, 2, 50.0, aggregation_mbps=None, ingress_mbps=None)
    with Rig("softswitch", network, "inart", workers=4, roots=2, answers_failures=True) as rig:
        rig.start_all()
        rig.allreduce(SIZE // 10).check()
        state = rig.service.network.state
        access = {network.access_switch(server) for server in network.servers}
        points = {point for tree in rig.plan.trees for point in tree.points} - access
        bad = min(points)
        ended = threading.Event()

        def flip() -> None:
            while not ended.wait(0.1):
                rig.emulation.switches.flip(bad, REGISTERS, 400, 255)

        thread = threading.Thread(target=flip, daemon=True)
        if how == "memory":
            thread.start()
        else:
            faults = {"corrupt": 0.05, "corrupt_udp": 1.0, "corrupt_hidden": 1.0}
            for neighbour in network.neighbours(bad):
                rig.emulation.shape(bad, neighbour, **faults, corrupt_from=float(PROTOCOL.values_offset))
        try:
            for _ in range(MOST):
                rig.allreduce(SIZE).check()
                if state.off:
                    break
            assert state.off == {bad: Why.CORRUPTS}, "\n".join(rig.log[-15:])
            assert any(f"lost: switch {bad} corrupts" in line for line in rig.log)
            for _ in range(3):
                rig.allreduce(SIZE).check()
            assert state.off == {bad: Why.CORRUPTS}, "nobody else is blamed"
        finally:
            ended.set()
            if thread.ident:
                thread.join()
        print("\n".join(rig.log[-20:]))
