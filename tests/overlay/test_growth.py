"""Links between sites that have become faster are noticed, within a budget, by networks in virtual time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from controlplane.planner.plan.task import Edge, SumTree, Task
from overlay.core.growth import GROWN, PROBED_PART, Growth, Pair

SITES = ("a", "b", "c", "d")
SECONDS = 1.0


@dataclass
class Sites:
    """Sites that do a round of `values` values in each step, and whose network is `links` (Mbit/s of each pair).

    uplink: all that "a" sends, which its pairs divide as it happens. surveys: what was noticed, by step.
    """

    links: dict[Pair, float]
    chance: random.Random
    values: int
    uplink: float | None = None
    growth: Growth = field(default_factory=Growth)
    surveys: dict[int, str] = field(default_factory=dict)
    carried = probed = looks = 0

    def together(self) -> dict[Pair, float]:
        """Return what pairs carry at once: up to a tenth less or more than the last time, for no reason."""
        now = {pair: mbps * self.chance.uniform(0.95, 1.05) for pair, mbps in self.links.items()}
        if self.uplink is not None:
            own = [pair for pair in now if pair[0] == "a"]
            shares = [self.chance.uniform(0.1, 1.0) for _ in own]
            now |= {pair: self.uplink * share / sum(shares) for pair, share in zip(own, shares, strict=True)}
        return now

    def train(self, steps: range) -> None:
        up = tuple(Edge(site, "a") for site in SITES[1:])
        down = tuple(Edge("a", site) for site in SITES[1:])
        task = Task(1, self.values, (SumTree("a", 0, self.values, up, down, SITES, SITES),))
        for step in steps:
            self.growth.carried(task)
            self.carried += 4 * self.values * 6
            if not self.growth.due(SECONDS, SITES, ()):
                continue
            now = self.together()
            self.looks += 1
            self.probed += sum(now.values()) * SECONDS / 8e-6
            if (grown := self.growth.looked(now, SECONDS)) is not None:
                self.surveys[step] = grown
                self.growth.surveyed(self.together())


def mesh(seed: int, *, uplink: float | None = None) -> Sites:
    chance = random.Random(seed)
    links = {(a, b): chance.uniform(10, 100) for a in SITES for b in SITES if a != b}
    made = Sites(links, chance, chance.randrange(1_000_000, 30_000_000), uplink)
    made.growth.surveyed(made.together())
    return made


@pytest.mark.parametrize("seed", range(20))
def test_a_faster_link_is_noticed_and_the_budget_is_kept(seed):
    sites = mesh(seed)
    sites.train(range(300))
    assert sites.looks and not sites.surveys  # nothing has changed
    faster = sites.chance.choice(sorted(sites.links))
    sites.links[faster] *= 1.2 * GROWN
    sites.train(range(300, 1500))
    ((_, words),) = sites.surveys.items()  # noticed once, and then it is known
    assert words.startswith(f"{faster[0]} -> {faster[1]} carries ")
    last = sum(sites.links.values()) * 1.05 * SECONDS / 8e-6
    assert sites.probed <= PROBED_PART * sites.carried + last


@pytest.mark.parametrize("seed", range(20))
def test_an_uplink_that_is_divided_in_another_way_is_no_faster(seed):
    sites = mesh(seed, uplink=60.0)
    sites.train(range(1000))
    assert sites.looks and not sites.surveys
    sites.uplink = 180.0
    sites.train(range(1000, 2000))
    assert sites.surveys


def test_slower_links_and_unknown_ones_are_left_to_others():
    growth = Growth()
    assert growth.due(SECONDS, SITES, ()) == []  # nothing is known
    growth.surveyed({("a", "b"): 10.0, ("b", "a"): 10.0})
    assert growth.looked({("a", "b"): 1.0, ("c", "a"): 100.0}, 0.0) is None
    assert growth.due(0.0, ("a", "b"), [("a", "b")]) == [("b", "a")]
    assert growth.due(0.0, ("a", "c"), ()) == []
