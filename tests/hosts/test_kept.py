"""Operations that may have to be started again: the input of an operation is kept as long as any worker lacks its
result.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.common.agentconfig import AgentConfig, WorkerTree
from controlplane.common.dealing import dealt
from tests.hosts.test_relay import Engine
from worker_agent.collectives import GATHER, SCATTER_SUM, SUM, broadcast
from worker_agent.errors import AbortedError, AgentError
from worker_agent.kept import Ledger
from worker_agent.operands import host_array, operand
from worker_agent.relay import Relay
from worker_agent.work import Work

VALUES = 4


def config(shares: list[float], slots: list[int]) -> AgentConfig:
    trees = tuple(
        WorkerTree(i, "ps", share, i, i, i, window, 1.0, 1)
        for i, (share, window) in enumerate(zip(shares, slots, strict=True))
    )
    return AgentConfig("job", 1, 1, "w", "worker", 0, ("w", "v"), ("ps", "qs"), VALUES, trees, repeats=True)


@dataclass
class Worker:
    """The operations that a worker keeps, and the progress of its trees: answered chunks of exponents and values."""

    shares: list[float]
    slots: list[int]
    answered: list[int] = field(default_factory=list)
    streams: list[list[int]] = field(default_factory=list)  # for each tree: the operation of each chunk
    left: list[int] = field(default_factory=list)  # for each operation: chunks that are not answered
    kept: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(config(self.shares, self.slots))
        self.answered = [0] * len(self.shares)
        self.streams = [[] for _ in self.shares]

    def submit(self, elements: int) -> None:
        number = len(self.left)
        array = np.full(elements, number, np.float32)
        self.kept.append(self.ledger.add(Work(elements, 4 * elements), host_array(array), SUM))
        counts = dealt(-(-elements // VALUES), self.shares)
        chunks = [count + -(-count // VALUES) for count in counts]
        for stream, count in zip(self.streams, chunks, strict=True):
            stream += [number] * count
        self.left.append(sum(chunks))

    def sent(self, tree: int) -> int:
        return min(len(self.streams[tree]), self.answered[tree] + self.slots[tree])

    def answer(self, tree: int) -> None:
        number = self.streams[tree][self.answered[tree]]
        self.answered[tree] += 1
        self.left[number] -= 1
        if not self.left[number]:
            self.ledger.ended(self.kept[number])


@given(
    shares=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1, max_size=3),
    slots=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=30),
    moves=st.lists(st.tuples(st.sampled_from([0, 0, 1, 2]), st.integers(0, 1), st.integers(0, 2)), max_size=400),
)
def test_operations_that_one_worker_lacks_are_kept_by_the_others(shares, slots, sizes, moves):
    workers = [Worker(shares, [slots] * len(shares)) for _ in range(2)]
    for what, who, tree in moves:
        one = workers[who]
        if what == 2:
            if len(one.left) < len(sizes):
                one.submit(sizes[len(one.left)])
        elif tree < len(shares):
            # These are all chunks that every worker has sent.
            while one.answered[tree] < min(worker.sent(tree) for worker in workers):
                one.answer(tree)
                if what == 0:
                    break
    first = min(worker.ledger.oldest for worker in workers)
    for worker in workers:
        again = list(worker.ledger.again_from(first, config(shares, [slots] * len(shares))))
        assert [one.number for one in again] == list(range(first, len(worker.left)))
        assert all((one.copy.view(np.float32) == one.number).all() for one in again)


def test_little_is_kept_of_many_operations():
    worker = Worker([1.0], [2])
    for _ in range(50):
        worker.submit(VALUES)
        while worker.answered[0] < len(worker.streams[0]):
            worker.answer(0)
    assert len(worker.ledger) <= 5


class Rig:
    """A relay over engines that end operations when told to."""

    def __init__(self) -> None:
        self.engines: list[Engine] = []
        self.relay = Relay(lambda: None)
        self.relay.configure(config([1.0], [4]), self.make, "")
        self.arrays: list[np.ndarray] = []
        self.works: list[Work] = []

    def make(self, given: AgentConfig) -> Any:
        self.engines.append(Engine(given))
        return self.engines[-1]

    def submit(self, count: int = 1) -> None:
        for _ in range(count):
            self.arrays.append(np.full(3, len(self.arrays), np.float32))
            self.works.append(self.relay.submit(host_array(self.arrays[-1]), SUM))

    def again(self, count: int = 1) -> int:
        return self.relay.prepare_again(config([1.0] * count, [4] * count), self.make)


def test_operations_in_progress_are_repeated_with_their_original_input():
    rig = Rig()
    rig.submit(3)
    rig.engines[0].works[0][1].finish(None)
    rig.arrays[1][:] = 99  # The engine had begun to write the result.
    assert rig.again() == 1
    rig.submit()
    assert rig.engines[0].closed.is_set()
    assert rig.engines[1].taken == [], "until all workers are stopped"
    repeated = rig.relay.switch_again(0)  # Another worker lacks the result that this one has.
    assert (repeated.operations, repeated.nbytes) == (2, 24)
    assert rig.engines[1].taken == [0, 1, 2, 3]
    assert not any(work.done() for work in rig.works[1:])
    rig.engines[1].end()
    assert all(work.done() and work.exception() is None for work in rig.works)
    rig.submit()
    assert rig.engines[1].taken == [0, 1, 2, 3, 4]


def test_second_loss_before_the_first_is_dealt_with():
    rig = Rig()
    rig.submit(2)
    assert rig.again() == 0
    rig.relay.withdraw()
    rig.submit()
    assert rig.engines[1].taken == []
    assert rig.again() == 0
    assert rig.engines[1].closed.is_set()
    rig.relay.switch_again(0)
    assert rig.engines[2].taken == [0, 1, 2]


def test_loss_in_the_middle_of_a_change_of_plan():
    rig = Rig()
    rig.submit(2)
    rig.relay.prepare(config([1.0], [4]), rig.make)
    rig.submit(2)
    rig.relay.switch_over(2)
    old, new = rig.engines
    new.works[0][1].finish(None)  # The new plan's first operation is done before the old plan's last.
    assert rig.again() == 0
    assert old.closed.is_set()
    assert new.closed.is_set()
    rig.relay.switch_again(0)
    assert rig.engines[2].taken == [0, 1, 2, 3]


def test_stop_ends_operations_that_wait_to_be_repeated():
    rig = Rig()
    rig.submit(2)
    rig.again()
    rig.submit()
    rig.relay.abort("w2 is gone")
    assert all(isinstance(work.exception(), AbortedError) for work in rig.works)
    with pytest.raises(AgentError, match="no operations were stopped"):
        rig.relay.switch_again(0)
    rig.relay.configure(config([1.0], [4]), rig.make, "")
    rig.submit()
    assert rig.engines[-1].taken == [3]
    assert rig.again() == 0, "it counts from the new configuration"
    rig.relay.switch_again(0)
    assert rig.engines[-1].taken == [3], "what was stopped before it does not start again"


def test_an_operation_that_is_not_kept_any_more_is_reported():
    rig = Rig()
    rig.submit()
    rig.again()
    with pytest.raises(AgentError, match="operation 1 is not kept"):
        rig.relay.switch_again(1)


def test_result_that_a_lost_worker_had_a_part_in_reaches_all_to_the_bit():
    rigs = [Rig(), Rig()]
    for index, rig in enumerate(rigs):
        own = replace(config([1.0], [4]), shrinks=True, index=index, workers=("w", "v", "x"))
        rig.relay.configure(own, rig.make, "")
        rig.submit(2)
    exact = np.frombuffer(np.random.default_rng(1).bytes(12), np.float32)
    rigs[0].arrays[0][:] = exact  # The engine of one worker has written the result, the other one's has not.
    rigs[0].engines[-1].works[0][1].workers = 3
    rigs[0].engines[-1].works[0][1].finish(None)
    assert rigs[0].works[0].done()
    rigs[0].arrays[0][:] = 0  # Its trainer has continued and overwritten the array.
    for index, rig in enumerate(rigs):
        fewer = replace(config([1.0], [4]), shrinks=True, index=index)
        assert rig.relay.prepare_again(fewer, rig.make) == 1 - index
    assert [rig.relay.results for rig in rigs] == [[0], []]
    for rig in rigs:
        rig.relay.switch_again(0, {0: 0})
    started = [rig.engines[-1] for rig in rigs]
    given = sum(engine.arrays[0] for engine in started)
    for engine in started:
        engine.arrays[0][:] = given
        engine.end()
    assert rigs[1].arrays[0].tobytes() == exact.tobytes()
    assert rigs[1].works[0].workers == 3
    assert (rigs[0].arrays[0] == 0).all(), "who had it has it no second time"
    assert all(work.done() and work.exception() is None for rig in rigs for work in rig.works)


@pytest.mark.parametrize("op", [SCATTER_SUM, GATHER, broadcast(1)], ids=str)
def test_other_collectives_are_started_again_for_the_same_workers_only(op):
    rig = Rig()
    array = np.zeros(4, np.float32)
    work = rig.relay.submit(operand(array, op), op)
    assert rig.again() == 0
    held = rig.relay.submit(operand(array, op), op)
    rig.relay.switch_again(0)
    assert len(rig.engines[1].taken) == 2
    rig.relay.prepare_again(replace(config([1.0], [4]), workers=("w",)), rig.make)
    with pytest.raises(AgentError, match="a part for each worker, and one is lost"):
        rig.relay.switch_again(0)
    rig.relay.abort("over")
    assert isinstance(work.exception(), AbortedError)
    assert isinstance(held.exception(), AbortedError)


def test_a_residual_is_not_taken_over_with_another_workers_result() -> None:
    """The second half of an array with feedback is each worker's own residual."""
    ledgers = [Ledger(replace(config([1.0], [4]), shrinks=True)) for _ in range(2)]
    arrays = [np.array([1, 2, 0, 0], np.float32), np.array([3, 4, 0, 0], np.float32)]
    kept = [
        ledger.add(Work(4, 16), host_array(array), SUM.encoded(8, 1, feedback=True))
        for ledger, array in zip(ledgers, arrays, strict=True)
    ]
    arrays[0][:] = 4, 6, 0.25, -0.5  # These are its result and its residual.
    ledgers[0].ended(kept[0])
    kept[1].take(kept[0].giving(True))
    assert arrays[1].tolist() == [4, 6, 0, 0]
