"""Strategies: pure functions (topology, job, seed, frozen_split) -> Plan.

A new one is one new file and one line in STRATEGIES. A strategy's module is imported when the strategy is asked for, so
that naming them all costs nothing (some bring Pyomo or SciPy along).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import cast

from controlplane.planner.strategies.common import Infeasible, Split, Strategy


class Registry(Mapping[str, Strategy]):
    """Strategies by name, in the order in which they are listed; each is imported at its first use."""

    def __init__(self, modules: Mapping[str, tuple[str, ...]]) -> None:
        """`modules`: names of strategies by module below this package. A strategy's function has its name, with
        underscores."""
        self._modules = {name: module for module, names in modules.items() for name in names}

    def below(self, package: str) -> tuple[str, ...]:
        """The names of those in a package below this one: "fabric", "wan"."""
        return tuple(name for name, module in self._modules.items() if module.startswith(f"{package}."))

    def __getitem__(self, name: str) -> Strategy:
        module = import_module(f"{__name__}.{self._modules[name]}")
        return cast(Strategy, getattr(module, name.replace("-", "_")))

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


STRATEGIES = Registry(
    {
        "fabric.inart": ("inart",),
        "fabric.strict": ("inart-strict",),
        "fabric.paper": ("inart-paper", "r-inart"),
        "fabric.atp": ("atp", "atp-strict"),
        "fabric.lbmm": ("lbmm",),
        "fabric.equal": ("equal",),
        "fabric.exact": ("exact",),
        "wan.apsp.strategy": (
            "apsp",
            "apsp-exact",
            "apsp-random",
            "apsp-connected",
            "apsp-shortest",
            "apsp-balanced",
        ),
        "wan.netstorm.strategy": ("netstorm", "star", "balanced-tree", "tsengine"),
        "wan.crew.strategy": ("crew", "crew-even", "opr", "ps", "ring", "blink", "topo-adopt"),
        "wan.selmcast.strategy": ("selmcast", "selmcast-l7", "orpheus", "all-to-all"),
        "wan.tree_packing.strategy": ("wan",),
    }
)

__all__ = ["STRATEGIES", "Infeasible", "Registry", "Split", "Strategy", "get_strategy"]


def get_strategy(name: str) -> Strategy:
    """Raises ValueError, naming the known ones."""
    try:
        return STRATEGIES[name]
    except KeyError:
        raise ValueError(f"unknown strategy {name!r}; known: {', '.join(STRATEGIES)}") from None
