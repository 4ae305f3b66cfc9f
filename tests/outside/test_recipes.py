"""Recipes for other projects' trainers train through the switches, with the losses that gloo gives."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.outside import recipes
from tests.outside.network import Nodes

NEEDS = {
    "with_accelerate": ("accelerate",),
    "with_transformers": ("transformers", "accelerate"),
    "with_lightning": ("lightning",),
    "with_torchtitan": ("torchtitan",),
    "with_deepspeed": ("deepspeed",),
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    with Nodes(2) as made:
        yield made


@pytest.mark.namespaces
@pytest.mark.timeout(400)
@pytest.mark.parametrize("recipe", NEEDS)
def test_a_recipe_trains_as_over_gloo(recipe, request):
    if why := recipes.missing(*NEEDS[recipe]):
        pytest.skip(why)
    nodes = request.getfixturevalue("nodes")  # The nodes are not made for tests that are skipped.
    before = nodes.added()
    mine, theirs = (recipes.losses(recipes.run(recipe, name, agents=nodes.agents)[0]) for name in ("inart", "gloo"))
    assert len(mine) >= 6
    assert mine == pytest.approx(theirs, rel=1e-4)
    assert nodes.added() > before, "its gradients went through the switch"
