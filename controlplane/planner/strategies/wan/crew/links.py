"""CREW's LP (2) for networks in which connections share links.

The paper takes connections for independent, as between clouds. Over a network of few links they are not: the rate of
one pair depends on which others send. Here the LP has a row for each link instead of one for each connection. It equals
`optimal_split` when every connection has a link to itself and a block is added whole before any of it is sent back.
When blocks are added chunk by chunk (`pipelined`), results leave while sums still arrive, so both load a link at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog

from controlplane.planner.strategies.wan import links
from controlplane.planner.strategies.wan.crew.algorithm import Split
from controlplane.planner.strategies.wan.errors import WanError


class Links(links.Links):
    """The links between CREW's agents, and the best split over them."""

    def split(self, initiators: Sequence[int], aggregators: Sequence[int], *, pipelined: bool = False) -> Split:
        """Return the split with the least time for the scatter followed by the multicast, or, where `pipelined`, for
        both at once, which then is the split's scatter time. Raise WanError where no aggregator has bandwidth from and
        to all initiators.
        """
        n, group, able = len(self.crosses), list(initiators), list(aggregators)
        up = self.crosses[group].sum(axis=0)  # (n, links): how often aggregator j's block crosses each link
        down = self.crosses[:, group].sum(axis=1)
        dead = ((up + down) * (self.mbps <= 0)).any(axis=1)
        able = [j for j in able if not dead[j]]
        if not able:
            raise WanError(f"no worker has bandwidth from and to all of the initiators {group}")
        weights = np.zeros(n)
        if len(group) == 1:  # a single initiator adds by itself
            weights[group[0] if group[0] in able else able[0]] = 1.0
            return Split(weights, 0.0, 0.0)
        binds = (self.mbps > 0) & ((up + down)[able].sum(axis=0) > 0)
        rate = self.mbps[binds] / self.mbps[binds].min()  # scaled to about 1, as the solver's tolerances are absolute
        m, k = len(rate), len(able)
        rows = np.zeros((2 * m, k + 2))  # each block's part, seconds of scatter, seconds of multicast
        rows[:m, :k], rows[m:, :k] = (up[able][:, binds] / rate).T, (down[able][:, binds] / rate).T
        rows[:m, k] = rows[m:, k + 1] = -1
        if pipelined:
            rows = rows[:m] + rows[m:]
            rows[:, k + 1] = 0
        found = linprog(
            [0.0] * k + [1.0, 1.0], A_ub=rows, b_ub=np.zeros(len(rows)), A_eq=[[1.0] * k + [0.0, 0.0]], b_eq=[1.0]
        )
        if not found.success:
            raise WanError(f"LP (2) with a row for each link: {found.message}")
        weights[able] = np.maximum(found.x[:k], 0)
        weights /= weights.sum()
        scale = float(self.mbps[binds].min())
        return Split(weights, float(found.x[k]) / scale, float(found.x[k + 1]) / scale)
