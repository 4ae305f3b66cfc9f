"""A task gives every receiver the sum, whatever the order of messages and however often they come."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.planner.plan.task import Edge, SumTree, Task, TaskError
from overlay.core.execution import Environment, Execution, SendRequest
from overlay.core.message import Kind
from tests.overlay.networks import Hub, random_task


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(2, 40), st.sampled_from(["sum", "mean"]))
def test_everyone_gets_the_same_sum(seed, count, values, op):
    rng = random.Random(seed)
    nodes = [f"n{i}" for i in range(count)]
    task = random_task(rng, nodes, values, op)
    task.check()
    assert Task.from_json(task.to_json()) == task
    members = task.participants
    # float32 adds whole numbers without rounding in any order.
    given = {n: np.array([rng.randint(-999, 999) for _ in range(values)], np.float32) for n in members}
    wanted = np.sum([given[n] for n in members], axis=0)
    if op == "mean":
        wanted = wanted * np.float32(1 / len(members)) if len(members) > 1 else wanted
    hub = Hub(task, {n: given[n].copy() for n in members}, rng)
    hub.run()
    assert sorted(hub.finished) == sorted(members)
    for node in members:
        np.testing.assert_array_equal(hub.tensors[node], wanted)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), window=st.integers(1, 4))
def test_no_more_than_a_window_is_under_way(seed, window):
    rng = random.Random(seed)
    leaves = [f"w{i}" for i in range(4)]
    up, down = tuple(Edge(w, "r") for w in leaves), tuple(Edge("r", w) for w in leaves)
    task = Task(1, 30, (SumTree("r", 0, 30, up, down, tuple(leaves), tuple(leaves)),), chunk_values=1, window=window)
    hub = Hub(task, {w: np.ones(30, np.float32) for w in leaves}, rng, 0.0)
    hub.run()
    assert len(hub.finished) == 4
    assert hub.most <= 2 * window * len(leaves)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 6))
def test_multicasts_are_mixed(seed, count):
    rng = random.Random(seed)
    nodes = [f"n{i}" for i in range(count)]
    trees, wanted = [], {}
    given = {n: np.full(8, float(1 << i), np.float32) for i, n in enumerate(nodes)}
    got = {n: [given[n]] for n in nodes}
    for sender in nodes:
        others = rng.sample([n for n in nodes if n != sender], rng.randint(1, count - 1))
        trees.append(SumTree(sender, 0, 8, (), tuple(Edge(sender, o) for o in others), (sender,), tuple(others)))
        for other in others:
            got[other].append(given[sender])
    wanted = {n: np.sum(got[n], axis=0) * np.float32(1 / len(got[n])) for n in nodes}
    task = Task(1, 8, tuple(trees), "mix", chunk_values=3, window=0)
    task.check()
    hub = Hub(task, {n: given[n].copy() for n in nodes}, rng)
    hub.run()
    for node in nodes:
        np.testing.assert_array_equal(hub.tensors[node], wanted[node])


def test_foreign_messages_are_counted_and_dropped():
    both = ("a", "b")
    tree = SumTree("r", 0, 4, tuple(Edge(n, "r") for n in both), tuple(Edge("r", n) for n in both), both, both)
    requests: list[SendRequest] = []
    root = Execution(
        Task(1, 4, (tree,)), "r", Environment(requests.append, lambda: None, lambda: 0.0, lambda s, c: None)
    )
    one = np.ones(4, np.float32)
    root.partial(0, 0, 0b11, one.copy())  # No agent below sends this.
    root.partial(0, 0, 0b01, one.copy())
    root.partial(0, 0, 0b01, one.copy())
    assert not requests and root.counters == {"refused": 1, "duplicate": 1}
    root.partial(0, 0, 0b10, one.copy())
    assert [(p.kind, p.edge.receiver) for p in requests] == [(Kind.DOWN, "a"), (Kind.DOWN, "b")]
    np.testing.assert_array_equal(requests[0].values, one)
    root.partial(0, 0, 0b10, one.copy())
    assert root.counters["late"] == 1 and len(requests) == 2
    assert not root.has_chunk(0, 1, 4) and not root.has_chunk(1, 0, 4) and not root.has_chunk(0, 0, 3)


def test_a_paced_tree_keeps_its_rate():
    a_value_a_second = 32e-6
    tree = SumTree("r", 0, 100, (Edge("a", "r"),), (Edge("r", "a"),), ("a",), ("a",), rate_mbps=a_value_a_second)
    hub = Hub(Task(1, 100, (tree,), chunk_values=10), {"a": np.zeros(100, np.float32)}, random.Random(1))
    hub.run()
    assert hub.finished == ["a"]
    assert 80 <= hub.now <= 100


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (SumTree("r", 0, 4, (), (Edge("r", "a"),), ("a",), ("a",)), "a sends does not reach the root"),
        (SumTree("r", 0, 4, (Edge("a", "b"), Edge("b", "a")), (), ("a",), ()), "does not reach the root"),
        (SumTree("r", 0, 4, (Edge("a", "r"),), (), ("a",), ("a",)), "the result does not reach a"),
        (SumTree("r", 0, 4, (Edge("a", "r"),), (Edge("r", "a"), Edge("b", "a")), ("a",), ()), "gets the result twice"),
        (SumTree("r", 0, 3, (Edge("a", "r"),), (Edge("r", "a"),), ("a",), ("a",)), "values from 3 on are in no tree"),
        (SumTree("r", 0, 5, (Edge("a", "r"),), (), ("a",), ()), "values 0 to 5 are not all among the tensor.s 4"),
        (SumTree("r", 0, 4, (Edge("a", "r", ("a",)),), (), ("a",), ()), "is no path"),
        (SumTree("r", 0, 4, (Edge("a", "r"),), (), ("a", "a"), ()), "name each of them once"),
    ],
)
def test_wrong_trees_are_refused_in_words(tree, words):
    with pytest.raises(TaskError, match=words):
        Task(1, 4, (tree,)).check()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"trees": [{}]}', '{"trees": [], "unknown": 1}'])
def test_what_is_no_task_is_refused(text):
    with pytest.raises(TaskError, match="task: "):
        Task.from_json(text)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_blocks_that_others_take_over_in_the_middle_are_added_exactly_once(seed):
    """An aggregator is lost after any number of messages; agents hear one by one which agent takes its block over."""
    rng = random.Random(seed)
    members = tuple(f"m{k}" for k in range(rng.randint(1, 4)))
    helpers = ("lost", *(f"a{k}" for k in range(rng.randint(0, 2))))
    values = rng.randint(len(helpers) + 1, 40)
    roots = [*helpers, *rng.sample(members, rng.randint(1, len(members)))]
    cuts = sorted(rng.sample(range(1, values), min(values, len(roots)) - 1))
    roots = roots[: len(cuts) + 1]

    def block(root, first, count):
        up, down = ([n for n in members if n != root] for _ in range(2))
        return SumTree(root, first, count, tuple(Edge(n, root) for n in up), tuple(Edge(root, n) for n in down),
                       members, members)  # fmt: skip

    trees = tuple(block(root, a, b - a) for root, (a, b) in zip(roots, pairwise([0, *cuts, values]), strict=True))
    task = Task(1, values, trees, chunk_values=rng.randint(1, values), window=0, keep=True)
    task.check()
    given_ = {n: np.array([rng.randint(-999, 999) for _ in range(values)], np.float32) for n in members}
    wanted = np.sum([given_[n] for n in members], axis=0)
    wanted = wanted * np.float32(1 / len(members)) if len(members) > 1 else wanted
    hub = Hub(task, {n: given_[n].copy() for n in members}, rng)
    mended = task.with_root(0, rng.choice([*members, *helpers[1:], "new"]))
    mended.check()
    hub.mend_after(rng.randint(0, 60), mended)
    hub.run()
    assert sorted(hub.finished) == sorted(members)
    for node in members:
        np.testing.assert_array_equal(hub.tensors[node], wanted)
