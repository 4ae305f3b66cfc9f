"""The guarantees of the folded program."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4src.protocol import Verdict
from tests.model import test_folded
from tests.model.folded import TICKETS, FoldedSwitch
from tests.model.folded_search import FoldedSearch
from tests.model.rounds import FoldedSimulation
from tests.model.simulation import Harm, WrongResult
from tests.model.switch import Switch
from tests.model.test_simulation import harms, trees
from tests.model.test_tofino import BOUNDED, arrivals, as_on_tofino, labels
from tests.model.tree import Tree, star, two_level
from tests.p4.rig import GROUPS, ROUTES, SLOTS, Traffic

sizes = st.tuples(trees(), st.sampled_from([1, 2, 4]))  # a tree, its slots


@BOUNDED
@given(sizes=sizes, chunks=st.integers(1, 12), harm=harms, seed=st.integers(0, 2**32))
def test_every_worker_gets_every_exact_result(sizes: tuple[Tree, int], chunks: int, harm: Harm, seed: int) -> None:
    FoldedSimulation(*sizes, chunks, harm, seed).run(limit=200_000)


@BOUNDED
@given(sizes=sizes, harm=harms, seed=st.integers(0, 2**32), before=st.integers(0, 300))
def test_a_new_epoch_in_the_middle_of_anything(sizes: tuple[Tree, int], harm: Harm, seed: int, before: int) -> None:
    FoldedSimulation(*sizes, 8, harm, seed).run_with_new_epoch(5, before, limit=200_000)


def test_simulations_find_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TICKETS, "do_follow_ticket", test_folded.joins_anything)
    with pytest.raises(WrongResult):
        for seed in range(200):
            harm = Harm(loss=0.2, duplicate=0.2, reorder=0.3, stray=0.1)
            FoldedSimulation(star(3), 1, 12, harm, seed).run(limit=200_000)


@pytest.mark.parametrize("values", [4, 128])
def test_a_long_sequence_of_workers_packets_is_treated_as_on_v1model(
    monkeypatch: pytest.MonkeyPatch, values: int
) -> None:
    monkeypatch.setattr("tests.model.switch.aggregate", as_on_tofino)
    configuration = (values, SLOTS, labels(), dict(GROUPS), dict(ROUTES))
    switch, reference = FoldedSwitch(*configuration), Switch(*configuration)
    wanted: Counter[Verdict] = Counter()
    for arrival in arrivals(Traffic(random.Random(20), values, 1000), 4000 if values == 4 else 300):
        before = Counter(reference.verdicts)
        expected = sorted(reference.process(arrival.port, arrival.frame))
        found = sorted(switch.process(arrival.port, arrival.frame))
        if not test_folded.cut(arrival.frame, values):
            assert found == expected
            wanted += reference.verdicts - before
        else:
            reference.reboot()
            switch.reboot()
            wanted = Counter(switch.verdicts)
    assert switch.verdicts == wanted
    assert values > 4 or all(switch.verdicts[verdict] >= 15 for verdict in Verdict), switch.verdicts


@pytest.mark.parametrize(
    "size",
    [
        (star(2), 1, 2, 1, None),
        (star(2), 1, 1, 2, None),
        (two_level(1, 1), 1, 1, 1, None),
        (star(2), 1, 1, 1, 1),
    ],
    ids=str,
)
def test_no_reachable_state_is_wrong_or_stuck(size: tuple[Any, ...]) -> None:
    statistics = FoldedSearch(*size).run()
    assert statistics.complete
    assert statistics.states > 20
