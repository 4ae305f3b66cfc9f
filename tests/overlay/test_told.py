"""What coordinator and agent remember of tasks, so that a task like an earlier one is told by its number."""

from __future__ import annotations

from dataclasses import replace

from controlplane.planner.plan.task import Edge, SumTree, Task
from overlay.net.told import KINDS, Told, packed, unpacked


def task(number: int, values: int) -> Task:
    tree = SumTree("a", 0, values, (Edge("b", "a"),), (Edge("a", "b"),), ("a", "b"), ("a", "b"))
    return Task(number, values, (tree,))


def test_scales_and_sums_of_each_fragment_are_remembered() -> None:
    told = Told()
    kinds = [replace(task(0, values), op=op) for values in (500, 400) for op in ("maximum", "words")]
    for round_ in range(3):
        for k, kind in enumerate(kinds):
            before = told.add(replace(kind, number=10 * round_ + k, round=round_))
            assert (None if before is None else before.number) == (None if round_ == 0 else 10 * (round_ - 1) + k)
    known = told.numbered(21)
    assert known is not None and (known.op, known.values) == ("words", 500)
    assert told.numbered(11) is None, "another one of its kind has been told since"


def test_both_ends_forget_the_same_kinds() -> None:
    """A coordinator knows of the tasks since an agent has joined; the agent also of earlier ones."""
    coordinator, agent = Told(), Told()
    for number in range(5):
        agent.add(task(number, number + 1))
    for number in range(5, 4 * KINDS):
        values = 1 + 7 * number % (KINDS + 3)
        before = coordinator.add(task(number, values))
        assert before is None or agent.numbered(before.number) == before
        agent.add(task(number, values))
    agent.forget()
    assert agent.numbered(4 * KINDS - 1) is None


def test_a_task_is_told_in_few_bytes() -> None:
    whole = replace(task(3, 90), trees=90 * task(3, 90).trees)
    assert unpacked({"packed": packed(whole)}) == whole
    assert len(packed(whole)) < len(str(whole.to_json())) / 10
