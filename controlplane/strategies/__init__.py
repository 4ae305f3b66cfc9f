"""Strategies: pure functions (topology, job, seed, frozen_split) -> Plan.

A new one is one new file and one line in STRATEGIES.
"""

from __future__ import annotations

from controlplane.strategies.apsp import (
    apsp,
    apsp_balanced,
    apsp_connected,
    apsp_exact,
    apsp_random,
    apsp_shortest,
)
from controlplane.strategies.atp import atp, atp_strict
from controlplane.strategies.common import Infeasible, Split, Strategy
from controlplane.strategies.crew import blink, crew, crew_even, opr, ps, ring, topo_adopt
from controlplane.strategies.equal import equal
from controlplane.strategies.exact import exact
from controlplane.strategies.inart import inart
from controlplane.strategies.lbmm import lbmm
from controlplane.strategies.netstorm import balanced_tree, netstorm, star, tsengine
from controlplane.strategies.paper import inart_paper, r_inart
from controlplane.strategies.selmcast import all_to_all, orpheus, selmcast, selmcast_l7
from controlplane.strategies.strict import inart_strict
from controlplane.strategies.wan import wan

STRATEGIES: dict[str, Strategy] = {
    "inart": inart,
    "inart-strict": inart_strict,
    "inart-paper": inart_paper,
    "r-inart": r_inart,
    "lbmm": lbmm,
    "atp": atp,
    "atp-strict": atp_strict,
    "equal": equal,
    "exact": exact,
    "apsp": apsp,
    "apsp-exact": apsp_exact,
    "apsp-random": apsp_random,
    "apsp-connected": apsp_connected,
    "apsp-shortest": apsp_shortest,
    "apsp-balanced": apsp_balanced,
    "netstorm": netstorm,
    "star": star,
    "balanced-tree": balanced_tree,
    "tsengine": tsengine,
    "crew": crew,
    "crew-even": crew_even,
    "opr": opr,
    "ps": ps,
    "ring": ring,
    "blink": blink,
    "topo-adopt": topo_adopt,
    "selmcast": selmcast,
    "selmcast-l7": selmcast_l7,
    "orpheus": orpheus,
    "all-to-all": all_to_all,
    "wan": wan,
}

__all__ = ["STRATEGIES", "Infeasible", "Split", "Strategy", "get_strategy"]


def get_strategy(name: str) -> Strategy:
    """Raises ValueError, naming the known ones."""
    try:
        return STRATEGIES[name]
    except KeyError:
        raise ValueError(f"unknown strategy {name!r}; known: {', '.join(STRATEGIES)}") from None
