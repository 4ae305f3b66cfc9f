"""What is faster over torch.distributed goes there, on all ranks alike, and everything else through the network."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.planner.generators import fattree
from controlplane.planner.job import Job
from controlplane.planner.plan.host_collectives import gloo_ring_hops, gloo_ring_mbps, host_rows
from controlplane.planner.plan.limits import Limits
from controlplane.planner.strategies import get_strategy
from controlplane.service.room import place
from worker_agent.collectives import GATHER, MEAN, SCATTER_SUM, SUM, Collective, broadcast, collective
from worker_agent.ways import Ways
from worker_agent.work import Work

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from worker_agent.errors import AgentError  # noqa: E402
from worker_agent.metrics import Counts  # noqa: E402
from worker_agent.shared import Options  # noqa: E402
from worker_agent.torch.backend import BackendOptions, InArtProcessGroup  # noqa: E402
from worker_agent.torch.choice import said  # noqa: E402
from worker_agent.torch.groups import TIMEOUT, Ranks  # noqa: E402
from worker_agent.torch.hook import Network  # noqa: E402
from worker_agent.torch.journal import Journal  # noqa: E402
from worker_agent.torch.parts import Parts  # noqa: E402
from worker_agent.torch.result import Result  # noqa: E402

PAIR = Ways(workers=2, network_mbps=194.0, ring_mbps=200.0)
"""Two workers on links of 200 Mbit/s: a ring moves no more bytes than the network, in packets with smaller headers."""
EIGHT = Ways(workers=8, network_mbps=194.0, ring_mbps=200 * 8 / 14, gather_speed=8 / 7)


def test_two_workers_do_large_sums_among_themselves() -> None:
    assert not PAIR.is_faster_outside(SUM, 4) and not PAIR.is_faster_outside(SUM, 8_000)
    assert PAIR.is_faster_outside(SUM, 1_000_000) and PAIR.is_faster_outside(SCATTER_SUM, 25_000_000)
    first, last = PAIR.outside(SUM) or (0, 0)
    assert 8_000 < first < 64_000 and last is None
    assert "all-reduce from" in said(PAIR)


def test_eight_workers_do_sums_in_the_network() -> None:
    assert EIGHT.outside(SUM) is None and EIGHT.outside(SCATTER_SUM) is None
    assert not any(EIGHT.is_faster_outside(SUM, 1 << power) for power in range(31))
    assert "all-reduce" not in said(EIGHT)


def test_an_answer_that_was_remembered_is_its_own_questions() -> None:
    """Each question is asked twice, among all others, and answered as by a choice that nobody has asked before."""
    questions = [
        (op, 1 << power, alone)
        for op in (SUM, MEAN, SCATTER_SUM, GATHER, broadcast(0), broadcast(1), replace(SUM, bits=16))
        for power in range(31)
        for alone in (False, True)
    ]
    both = replace(EIGHT, ring_mbps=180.0, beside=True)
    for op, size, alone in questions + questions[::-1]:
        assert both.is_faster_outside(op, size, alone=alone) == replace(both).is_faster_outside(op, size, alone=alone)
    assert Ways(**json.loads(json.dumps(both.to_json()))) == both


def test_a_plan_that_carries_little_leaves_sums_to_the_hosts() -> None:
    """With one parameter server whose link is shared with others the ring of four may carry twice as much."""
    assert Ways(workers=4, network_mbps=50.0, ring_mbps=133.0).is_faster_outside(SUM, 1_000_000)


def test_small_tensors_over_many_slow_trees_are_left_to_the_hosts() -> None:
    """535 packets of data, 238 of exponents before them and as results at the end: 0.47 s (the cost model 0.52), where
    a ring takes 0.45; over 47 trees 0.4 s (the cost model 0.41)."""
    one = Ways(workers=50, network_mbps=14.25, ring_mbps=10.2)
    many = replace(one, tree_mbps=(14.25 / 119,) * 119)
    few = replace(one, network_mbps=13.6, tree_mbps=(13.6 / 47,) * 47)
    size = 548_000
    assert many.is_faster_outside(SUM, size) and not one.is_faster_outside(SUM, size)
    assert not few.is_faster_outside(SUM, size)
    assert not many.is_faster_outside(SUM, 4_000_000) and not many.is_faster_outside(SUM, 100)
    assert "all-reduce of" in said(many)
    assert Ways(**json.loads(json.dumps(many.to_json()))) == many


def test_a_ring_over_slow_links_waits_for_its_small_messages() -> None:
    """Fifty workers on links of 2.5 Mbit/s: a ring takes 0.87 s for 97 KB as measured (`evaluation.bmv2_fattree`),
    where its rate alone would say 0.64, and 3.89 s for 548 KB, where it says 3.6."""
    one = Ways(workers=50, network_mbps=1.39, ring_mbps=2.5 * 50 / 98, tree_mbps=(1.39 / 21,) * 21)
    far = replace(one, ring_hops=3.0)
    assert one.seconds_outside(SUM, 97_000) == pytest.approx(0.636, rel=0.01) and one.is_faster_outside(SUM, 97_000)
    assert far.seconds_outside(SUM, 97_000) == pytest.approx(0.87, rel=0.15) and not far.is_faster_outside(SUM, 97_000)
    assert far.seconds_outside(SUM, 548_000) == one.seconds_outside(SUM, 548_000)


def test_what_only_the_network_does_it_does() -> None:
    assert not PAIR.is_faster_outside(MEAN.encoded(8, 1), 1_000_000), "fewer bits were asked for"
    assert not PAIR.is_faster_outside(collective("max"), 1_000_000)
    assert not replace(PAIR, ring_mbps=0.0).is_faster_outside(SUM, 1_000_000), "no ring is known"


def test_gathers_beside_reduce_scatters_are_chosen_with_them() -> None:
    """Among eight workers a reduce-scatter and a gather at once are faster in the network, a gather alone is not; among
    two the hosts are as fast with both, in packets with smaller headers."""
    eight, two = replace(EIGHT, beside=True), replace(PAIR, gather_speed=2.0, beside=True)
    assert EIGHT.is_faster_outside(GATHER, 25_000_000) and eight.is_faster_outside(GATHER, 25_000_000, alone=True)
    assert not any(eight.is_faster_outside(op, 25_000_000) for op in (GATHER, SCATTER_SUM))
    assert all(two.is_faster_outside(op, 25_000_000) for op in (GATHER, SCATTER_SUM))
    assert "a group that reduce-scatters nothing" in said(eight)


def test_small_broadcasts_take_one_message() -> None:
    assert PAIR.is_faster_outside(broadcast(0), 4_000) and not EIGHT.is_faster_outside(broadcast(0), 4_000)


def test_agents_are_told_what_a_ring_reaches() -> None:
    topology = fattree(4, 20.0, aggregation_mbps=9.0)
    job = Job("job", ("h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"), ("h9", "h10"), model_bytes=1 << 20)
    plan = get_strategy("atp")(topology, job)
    agents = place(plan, topology, Limits.of_target(), job_id=1).agents
    ring = next(row for row in host_rows(topology, job) if row.strategy == "host-ring")
    assert [agents[worker].ring_mbps for worker in job.workers] == pytest.approx([ring.rate_mbps] * 8)
    ways = Ways.of(agents["h1"])
    assert (ways.workers, ways.ring_mbps) == (8, pytest.approx(ring.rate_mbps))
    assert ways.network_mbps == pytest.approx(plan.rate_mbps)
    assert gloo_ring_mbps(topology, ("h1",)) == 0.0
    # Four neighbours in a rack of two, two in a pod, and two across the core.
    assert ways.ring_hops == agents["h1"].ring_hops == (4 * 2 + 2 * 4 + 2 * 6) / 8
    assert gloo_ring_hops(topology, ("h1",)) == 0.0


class Reducer:
    """An agent that answers at once and notes what it was given."""

    world_size = 2

    def __init__(self, ways: Ways | None) -> None:
        self.ways = ways
        self.given: list[int] = []

    def allreduce_async(self, array: Any, op: Any = "sum", *, dtype: str | None = None) -> Work:
        self.given.append(array.numel())
        work = Work(array.numel(), array.nbytes)
        work.finish(None)
        return work

    def close(self) -> None: ...


def on_two_ranks(reducers: list[Reducer], run: Callable[[int, Network], Any]) -> list[Any]:
    """Run something on the networks of two ranks, which are threads of this process; returns what they return."""
    store, found = dist.HashStore(), [None, None]

    def rank(number: int) -> None:
        options = Options(None, None, f"node{number}")
        network = Network(Ranks("choice", store, number, 2), options=options, given=reducers[number])
        found[number] = run(number, network)
        network.close()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    return found


def test_the_hook_takes_the_faster_way_by_size() -> None:
    reducers = [Reducer(PAIR), Reducer(PAIR)]

    def run(number: int, network: Network) -> tuple[float, bool]:
        large, small = torch.full((1_000_000,), float(number)), torch.ones(100)
        network.reduce(large, SUM, True).wait()
        network.reduce(small, SUM, True).wait()
        return float(large[-1]), network.in_network

    assert on_two_ranks(reducers, run) == [(1.0, True), (1.0, True)], "0 + 1, by gloo"
    assert [reducer.given for reducer in reducers] == [[100], [100]], "only the small one met the agents"


def test_a_process_group_gathers_in_the_network_from_its_first_reduce_scatter_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = []

    class Stub:
        between_nodes, local, ways, aborted = True, None, replace(EIGHT, beside=True), None

        def __init__(self, *_: Any, **__: Any) -> None:
            self.journal, self.counts = Journal(), Counts()

        def parts(self) -> Parts:
            return Parts(0, [0], self.begin)

        def begin(self, whole: Any, op: Collective, _: Any) -> Result:
            begun.append(op)
            future: Any = torch.futures.Future()
            future.set_result(whole)
            return Result(future)

        def close(self) -> None: ...

    monkeypatch.setattr("worker_agent.torch.backend.Network", Stub)
    opts = SimpleNamespace(group_rank=0, group_size=1, group_id="alone", store=dist.HashStore(), timeout=TIMEOUT)
    group = InArtProcessGroup(opts, BackendOptions())
    whole, part = torch.zeros(1 << 20), torch.ones(1 << 20)
    group.all_gather_single(whole, part).wait()
    assert not begun and float(whole[-1]) == 1.0, "gloo had it"
    group.reduce_scatter_single(part, whole).wait()
    group.all_gather_single(whole, part).wait()
    assert begun == [SCATTER_SUM, GATHER]
    group.shutdown()


def test_ranks_that_know_different_rates_choose_alike() -> None:
    """One has another configuration, or none: all stay in the network."""
    for other in (None, replace(PAIR, network_mbps=190.0)):
        reducers = [Reducer(PAIR), Reducer(other)]
        found = on_two_ranks(reducers, lambda _, network: network.reduce(torch.ones(1_000_000), SUM, True).wait()[0])
        assert [float(value) for value in found] == [1.0, 1.0]
        assert [reducer.given for reducer in reducers] == [[1_000_000], [1_000_000]]


def test_a_group_that_does_not_fit_the_known_job_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Known:
        workers = 4

        def join(self, timeout: float) -> Reducer:
            raise AssertionError("the job is waited for")

        def close(self) -> None: ...

    monkeypatch.setattr("worker_agent.torch.hook.node_for", lambda _: Known())
    with pytest.raises(AgentError, match="the job has 4 workers, the process group 1 ranks"):
        Network(Ranks("alone", dist.HashStore(), 0, 1), options=Options(), fallback=False)
