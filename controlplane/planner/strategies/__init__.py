"""Strategies: pure functions (topology, job, seed, frozen_split) -> Plan.

A new strategy is one new file and one line in STRATEGIES. A strategy's module is imported when the strategy is asked
for, so that naming them all costs nothing (some import Pyomo or SciPy).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import wraps
from importlib import import_module
from typing import Any, cast

from controlplane.planner import gathers
from controlplane.planner.job import Job
from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.separated import separated
from controlplane.planner.strategies.common import Infeasible, Split, Strategy, finish
from controlplane.planner.topology import Topology


class Registry(Mapping[str, Strategy]):
    """Strategies by name, in the order in which they are listed; each is imported at its first use."""

    def __init__(self, modules: Mapping[str, tuple[str, ...]]) -> None:
        """Make a registry from the names of strategies by their module below this package. A strategy's function has
        its name, with underscores.
        """
        self._modules = {name: module for module, names in modules.items() for name in names}

    def below(self, package: str) -> tuple[str, ...]:
        """Return the names of the strategies in a package below this one, "fabric" or "wan"."""
        return tuple(name for name, module in self._modules.items() if module.startswith(f"{package}."))

    def __getitem__(self, name: str) -> Strategy:
        module = import_module(f"{__name__}.{self._modules[name]}")
        own = cast(Strategy, getattr(module, name.replace("-", "_")))
        knows = self._modules[name].startswith("fabric.") and name not in AT_RACKS
        return apart(own, knows=knows, name=name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


AT_RACKS = ("atp", "atp-strict")
"""Strategies that add at the switch that a server hangs on. They cannot plan with hosts taken apart, since that switch
would be the one inside of the host.
"""

GATHERING = ("inart",)
"""Strategies that make other plans for jobs that gather."""


def apart(strategy: Strategy, *, knows: bool, name: str) -> Strategy:
    """Return the strategy for hosts of both roles, too: these are taken apart for it, and put together in its plan.
    Without `knows`, the strategy cannot plan with the parts of such hosts, and refuses jobs that have any.
    """

    @wraps(strategy)
    def planned(
        topology: Topology, job: Job, *, seed: int = 0, frozen_split: Split | None = None, **options: Any
    ) -> Plan:
        if not job.both_roles:
            return strategy(topology, job, seed=seed, frozen_split=frozen_split, **options)
        if not knows:
            host = next(worker for worker in job.workers if worker in job.both_roles)
            what = "is worker and parameter server at once, which this strategy does not plan with"
            raise Infeasible(f"{name}: {host} {what}")
        if job.gathers and name in GATHERING:  # the whole hosts are to carry less, not their parts

            def plain(state: Topology, without: Job) -> Plan:
                return planned(state, without, seed=seed, frozen_split=frozen_split, **options)

            return gathers.planned(plain, topology, job)
        parts = separated(topology, job)
        assert parts is not None
        split = parts.split(frozen_split)
        try:
            with _bounded(topology, job) if name == "inart" else nullcontext():
                plan = strategy(parts.topology, parts.job, seed=seed, frozen_split=split, **options)
        except ValueError as error:
            if not error.args or not isinstance(error.args[0], str):
                raise
            error.args = (parts.words(error.args[0]), *error.args[1:])
            raise
        whole = parts.together(plan)
        if whole.multicasts:
            return whole
        rated = finish(topology, job, plan.strategy, whole.trees, plan.seed)
        return replace(whole, rate_mbps=rated.rate_mbps)

    return planned


def _bounded(topology: Topology, job: Job) -> AbstractContextManager[None]:
    """Return a context in which a search in the network that is taken apart ends at the whole network's bound."""
    from controlplane.planner.strategies.fabric.bounds import bounded_by, cheap_bound  # imports the solver

    return bounded_by(cheap_bound(topology, job))


STRATEGIES = Registry(
    {
        "fabric.inart": ("inart",),
        "fabric.strict": ("inart-strict",),
        "fabric.paper": ("inart-paper", "r-inart"),
        "fabric.baselines": ("atp", "atp-strict", "lbmm", "equal"),
        "fabric.exact": ("exact",),
        "wan.apsp.strategy": (
            "apsp",
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
    """Return the strategy of this name. Raise ValueError, naming the known ones, where there is none."""
    try:
        return STRATEGIES[name]
    except KeyError:
        raise ValueError(f"unknown strategy {name!r}; known: {', '.join(STRATEGIES)}") from None
