"""Changes to a host under a running job: an interface is made again, or a process is forked from the agent's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evaluation.hosts.star import TreeShape
from tests.hosts.conftest import WORKERS
from tests.hosts.rig import Rig, check, finish, tensors
from tests.hosts.test_allreduce import VALUES, reduce_and_check, starts
from tests.support.waiting import wait_until

MakeRig = Callable[..., Rig]
ONE = (TreeShape(0, 1.0, True),)


@pytest.mark.parametrize("host", ["w1", "s0"])
def test_a_job_goes_on_when_an_interface_is_made_again(make_rig: MakeRig, host: str) -> None:
    """The interface is made again in the middle of an all-reduce and while nothing is in progress, for a worker, a
    parameter server and the switch whose port it is (the other end of a veth is made again with it).
    """
    rig = make_rig(ONE, rate_mbps=20)
    before = tensors(1, WORKERS, 150_000)
    after = [tensor.copy() for tensor in before]
    works = rig.submit(after)
    wait_until(lambda: rig.engines[0].stats().trees[0].answers > 100, "the all-reduce is under way")
    rig.network.remake(host)
    assert not works[0].done()
    finish(works)
    check(before, after, starts(rig, 150_000), VALUES)
    rig.network.remake(host)
    reduce_and_check(rig, 2, 10_000)


def test_an_interface_that_is_away_for_a_while_costs_few_attempts(make_rig: MakeRig) -> None:
    """It has no address for a moment, too, as after `ip address flush`: super-frames leave again when it has one."""
    rig = make_rig(ONE, rate_mbps=20)
    network, engine = rig.network, rig.engines[1]
    before = tensors(1, WORKERS, 50_000)
    after = [tensor.copy() for tensor in before]
    works = rig.submit(after)
    wait_until(lambda: rig.engines[0].stats().trees[0].answers > 50, "the all-reduce is under way")
    network.unlink("w1")
    wait_until(lambda: "no interface data0" in engine.stats().io.trouble, "the worker says what it lacks")
    wait_until(lambda: engine.stats().trees[0].resent_timeout > 3, "the worker tries to go on")
    errors = engine.stats().send_errors
    assert errors < 100, "an attempt each millisecond"
    network.remake("w1")
    finish(works)
    check(before, after, starts(rig, 50_000), VALUES)
