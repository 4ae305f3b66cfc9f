"""The executor of policies' orders, which the coordinator and the simulator share."""

from __future__ import annotations

import pytest

from controlplane.planner.plan.task import Edge, SumTree, Task
from controlplane.planner.strategies.wan.policy import Abort, Drop, LetGo, Mend, Pace, Reject, Start
from overlay.core.errors import OverlayError
from overlay.core.orders import OrderExecutor


class Recorder:
    """Effects that only record their names; `prepare` refuses the tasks whose numbers are in `refuses`."""

    def __init__(self, *refuses: int) -> None:
        self.refuses, self.found = refuses, []

    def prepare(self, task: Task) -> Task:
        if task.number in self.refuses:
            raise OverlayError("no switches")
        return task

    def __getattr__(self, name: str):
        return lambda *arguments: self.found.append((name, *arguments))

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self.found]


def round_of(number: int, *nodes: str) -> Task:
    up = tuple(Edge(node, "r") for node in nodes)
    down = tuple(Edge("r", node) for node in nodes)
    return Task(number, 4, (SumTree("r", 0, 4, up, down, nodes, nodes),), keep=True)


def copy_of(number: int, *receivers: str) -> Task:
    down = tuple(Edge("a", node) for node in receivers)
    return Task(number, 4, (SumTree("a", 0, 4, (), down, ("a",), receivers),), "copy")


def test_a_task_is_done_when_all_agents_have_everything_and_lasts_as_long_as_the_slowest():
    effects = Recorder()
    orders = OrderExecutor(effects)
    orders.carry_out([Start(round_of(1, "a", "b"))])
    orders.finished(1, "a", 3.0)
    orders.finished(1, "a", 3.0)  # This is reported again.
    assert effects.names == ["started"] and 1 in orders.running
    orders.finished(1, "b", 2.0)
    assert effects.names == ["started", "done"] and not orders.running
    assert effects.found[-1][1].seconds == 3.0
    orders.finished(1, "b", 2.0)  # The task is over.
    assert len(effects.found) == 2


def test_a_task_is_not_kept_for_an_agent_that_was_let_go():
    effects = Recorder()
    orders = OrderExecutor(effects)
    orders.carry_out([Start(round_of(1, "a", "b")), LetGo(1, "a", "its time is over")])
    assert effects.names == ["started", "released"] and orders.running[1].waiting == {"b"}
    orders.finished(1, "b", 2.0)
    assert effects.names == ["started", "released", "done"]


def test_a_task_that_cannot_be_prepared_is_not_started():
    effects = Recorder(1)
    orders = OrderExecutor(effects)
    orders.carry_out([Start(round_of(1, "a")), Start(round_of(2, "a"))])
    assert effects.names == ["refused", "started"] and list(orders.running) == [2]


def test_a_copy_without_receivers_is_done():
    effects = Recorder()
    orders = OrderExecutor(effects)
    orders.carry_out([Start(copy_of(1, "b", "c")), Pace(1, 5.0), Drop(1, ("b",))])
    assert orders.running[1].waiting == {"c"}
    (tree,) = orders.running[1].task.trees
    assert tree.receivers == ("c",) and tree.rate_mbps == 5.0
    orders.carry_out([Drop(1, ("c",))])
    assert effects.names == ["started", "paced", "dropped", "dropped", "done"]


def test_a_mended_task_goes_on_with_its_new_trees():
    effects = Recorder()
    orders = OrderExecutor(effects)
    before = round_of(1, "a", "b")
    after = before.with_root(0, "a")
    orders.carry_out([Start(before), Mend(after)])
    assert effects.found[-1] == ("mended", before, after)
    assert orders.running[1].task == after and orders.running[1].waiting == {"a", "b"}


@pytest.mark.parametrize("order", [Abort(7, "b is lost"), Drop(7, ("b",)), Pace(7, 1.0), Mend(round_of(7, "a"))])
def test_orders_for_tasks_that_do_not_run_are_ignored(order):
    effects = Recorder()
    OrderExecutor(effects).carry_out([order])
    assert not effects.found


def test_orders_that_concern_no_task_reach_the_effects_unchanged():
    effects = Recorder()
    rejected = Reject(("a", "b"), "b has 5 values to synchronise, and a 6")
    OrderExecutor(effects).carry_out([rejected])
    assert effects.found == [("rejected", rejected)]
