"""Which contents sites have to submit for a round: the tensors of all, and no norm that is much too large."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.planner.strategies.wan.policy import Ready, Reject, Start, Tick
from controlplane.planner.strategies.wan.site_contents import Contents, adapted
from controlplane.planner.strategies.wan.site_rounds import SiteRounds
from overlay.core.site_network import SiteNetwork


def contents(norm: float, tensors: int = 1, **more: Any) -> Contents:
    return Contents(tensors, norm, **{"reference": 7.0, "most": 10.0, **more})


@pytest.mark.parametrize(
    ("norms", "wanted"),
    [
        ({"a": 1.0, "b": 9.9}, {}),
        ({"a": 1.0, "b": 10.1}, {"b": 10.0}),
        ({"a": 1.0, "b": 2.0, "c": 1e30}, {"c": 10.0}),
        ({"a": 1.0, "b": 1e30, "c": 1e30}, {"b": 10.0, "c": 10.0}),
        ({"a": 0.0, "b": 6.9}, {}),
        ({"a": 0.0, "b": 1e30}, {"b": 7.0}),
        ({"a": 0.0, "b": 2.0, "c": 21.0}, {"c": 20.0}),
        ({"a": 1e30}, {}),
    ],
)
def test_norms_are_compared_with_the_median_of_the_others(norms, wanted):
    found = adapted({site: (1.0, contents(norm)) for site, norm in norms.items()})
    assert {site: each.norm for site, each in found.items()} == wanted


def test_a_site_without_weight_and_values_of_any_contents_limit_nobody():
    found = adapted({"a": (0.0, contents(1e-9)), "b": (1.0, contents(5.0)), "c": (1.0, contents(6.0))})
    assert found == {}
    assert adapted({"a": (1.0, None), "b": (1.0, contents(1e30, most=None))}) == {}


def test_tensors_are_those_of_all_sites():
    found = adapted({"a": (1.0, contents(1.0, 0b1001)), "b": (0.0, contents(1.0, 0b10)), "c": (1.0, None)})
    assert {site: each.tensors for site, each in found.items()} == {"a": 0b1011, "b": 0b1011}


def test_a_submission_that_does_not_fit_is_given_back_and_waited_for():
    policy = SiteRounds(SiteNetwork(64), sites=2, patience=2.0)
    for name in "ab":
        assert policy.admit(name) is None and policy.activate(name) is None
    policy.begin_at(0)
    assert not policy.handle(Ready("a", 128, 1, 0, "sum", 1.0, None, contents(1.0)), 0.0)
    (given_back,) = policy.handle(Ready("b", 128, 1, 0, "sum", 1.0, None, contents(100.0)), 1.9)
    assert isinstance(given_back, Reject) and given_back.nodes == ("b",) and given_back.contents == contents(10.0)
    assert not policy.handle(Tick(), 3.8), "the time for the second submission begins when the first is given back"
    (start,) = policy.handle(Ready("b", 128, 2, 0, "sum", 1.0, None, given_back.contents), 3.8)
    assert isinstance(start, Start) and start.task.participants == ("a", "b")


@pytest.mark.parametrize(
    "wrong",
    [{"norm": "nan"}, {"norm": -1}, {"norm": "1e999"}, {"reference": "inf"}, {"most": "nan"}, {"tensors": "xyz"},
     {"tensors": "f" * 300_000}, {"tensors": "-1"}],
)  # fmt: skip
def test_contents_that_make_no_sense_are_refused(wrong):
    good = contents(1.0, 5).to_json()
    assert Contents.from_json(json.loads(json.dumps(good))) == contents(1.0, 5)
    with pytest.raises(ValueError, match=r".+"):
        Contents.from_json(good | wrong)
