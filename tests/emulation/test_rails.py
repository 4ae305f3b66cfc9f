"""Hosts with two links, each to a switch of its own (dual-homed, rails): real interfaces, both used at once."""

from __future__ import annotations

import pytest

from tests.emulation.rig import Rig
from tests.emulation.test_lifetime import poll
from tests.support.rails import two_rails

pytestmark = pytest.mark.usefixtures("patient")
MBIT = 10.0
SIZE = 400_000


def carried(rig: Rig, host: str) -> list[int]:
    """Return the bytes that each of a host's links has carried from it."""
    return [rig.emulation.counters(host, link).tx_bytes for link in (0, 1)]


def test_both_links_of_every_host_carry_half_and_sums_are_right():
    with Rig("softswitch", two_rails(6, MBIT), "inart", workers=4, roots=2) as rig:
        assert rig.plan.rate_mbps == pytest.approx(2 * MBIT, rel=0.01), "planned for both links"
        rig.start_all()
        before = {host: carried(rig, host) for host in rig.topology.servers}
        done = rig.allreduce(SIZE)
        done.check()
        print(f"{done.seconds:.3f} s, planned {SIZE * 8e-6 / rig.plan.rate_mbps:.3f} s without headers")
        assert done.workers == {4}
        for host in rig.job.workers:
            one, other = (now - then for now, then in zip(carried(rig, host), before[host], strict=True))
            assert 0.4 < one / (one + other) < 0.6, f"{host} sent {one} and {other} bytes"
        rig.shape_all(loss=0.05)
        rig.allreduce(SIZE // 8).check()


def test_a_job_goes_on_over_the_other_link_when_one_is_unplugged():
    """Once at a worker, once at a parameter server, each in the middle of an operation."""
    with Rig("softswitch", two_rails(6, MBIT), "inart", workers=4, roots=2, answers_failures=True) as rig:
        rig.start_all()
        for host, link in ((rig.job.workers[0], 0), (rig.job.parameter_servers[0], 1)):
            rig.submit(2 * SIZE)
            rig.emulation.cut(host, ("a1", "a2")[link])
            rig.collect().check()
            poll(lambda host=host: any(f"to {host}, is down" in line for line in rig.log), "said", 60.0)
            before = carried(rig, host)
            rig.allreduce(SIZE // 4).check()
            assert carried(rig, host)[link] == before[link], "nothing is sent over a link that is down"
        assert not any("gave up" in line or "is gone" in line for line in rig.log), rig.log
