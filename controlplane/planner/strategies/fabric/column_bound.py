"""Upper bound of f over all trees, single- and multi-level, with the links: it shows how good column generation's
result is.

For any prices y >= 0 with sum_r capacity(r) y(r) = z, and any lower bound p_s of the price of root s's cheapest tree, f
<= z / min_s p_s (Lagrange; with the split frozen z / sum_s x_s p_s). p_s comes from two programs (exact_pricing.py),
relaxed or as integers: facility location for the way up, and a Steiner arborescence for the results.
"""

from __future__ import annotations

import numpy as np

from controlplane.planner.strategies.fabric.exact_pricing import WayUp, results
from controlplane.planner.strategies.fabric.master import Master, Prices
from controlplane.planner.strategies.fabric.pricing import Pricing


def column_bound(master: Master, prices: Prices, *, whole: bool = False) -> float:
    """Return an upper bound of f in Mbit/s from the master program's prices; with `whole`, p_s comes from integer
    programs where these are small. Raise ValueError where servers are linked, SolverError where the deadline ends it.
    """
    network, job = master.network, master.job
    pricing = Pricing(network, job)
    if not pricing.complete:
        raise ValueError("column bound: every server must hang on switches only")
    pricing.update(prices, np.zeros(len(network.ends)), tie=0.0)
    everything = np.concatenate([prices.link, prices.switch, prices.root])
    return master.bound(everything, {root: _least(pricing, root, whole) for root in range(len(job.parameter_servers))})


def _least(pricing: Pricing, root: int, whole: bool) -> float:
    """Return a cost that no tree of the root undercuts: at least that of any worker's way to the root, wherever flows
    are added.
    """
    farthest = pricing.from_rack[:, len(pricing.switches) + root].max() + pricing.root_price[root]
    way_up = WayUp(pricing, root, whole=whole)
    if whole and not way_up.levels:
        way_up = WayUp(pricing, root, whole=False)
    price = max(way_up.least(), float(farthest))
    if pricing.network.topology.results_on_links:
        back = (results(pricing, root, whole=True) if whole else None) or results(pricing, root, whole=False)
        assert back is not None
        price += back.price
    return price
