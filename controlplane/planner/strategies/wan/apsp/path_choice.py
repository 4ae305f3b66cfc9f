"""The choice of one path per flow such that the fullest link is as empty as can be: APSP's Problem 4 (linear program)
and Problem 1 (mixed-integer program), in Pyomo.

Problem 4 is divided by m = 1/T: x_fp = z_fp / m is the share of flow f that takes path p, and T is minimised.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from controlplane.planner.strategies.solver import NoSolution, NotInTime, SolverError, solve_model
from controlplane.planner.strategies.wan.errors import WanError

Real = NDArray[np.float64]


class PathChoice:
    """The model of a choice of paths. It is built once, for both problems, and scaled so that times are about 1, as
    HiGHS's tolerances are absolute.

    Args:
        seconds: (links, columns), for how many seconds a link is busy when all of a flow takes the column's path.
        flow: The flow of each column.
    """

    def __init__(self, seconds: csr_matrix, flow: Sequence[int]) -> None:
        import pyomo.environ as pyo  # imported here: it takes 1 s, and others import this module
        from pyomo.core.expr.numeric_expr import LinearExpression

        self.flow = np.asarray(flow, dtype=np.int64)
        self._sizes = np.bincount(self.flow)
        self._first = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])
        self._dense: Real = seconds.toarray().T  # (columns, links)
        self.scale = self.busy(self._first)
        rows = seconds / self.scale
        m = pyo.ConcreteModel("APSP, Problem 4")
        m.x = pyo.Var(range(len(self.flow)), bounds=(0, 1))  # (10b)
        m.T = pyo.Var(bounds=(0, 1))  # in units of `scale`: the first paths are a solution
        m.min_T = pyo.Objective(expr=m.T)  # (10)
        x = [m.x[c] for c in range(len(self.flow))]
        m.eq10a_link = pyo.Constraint(range(rows.shape[0]))
        for e in m.eq10a_link.index_set():  # sum of delta_efp x_fp |p| D / B_e <= T
            part = slice(rows.indptr[e], rows.indptr[e + 1])
            if part.start < part.stop:
                busy = LinearExpression(
                    linear_coefs=[*rows.data[part].tolist(), -1.0],
                    linear_vars=[*(x[c] for c in rows.indices[part]), m.T],
                )
                m.eq10a_link[e] = (None, busy, 0.0)
        m.eq10c_flow = pyo.Constraint(range(len(self._sizes)))
        for f, (first, size) in enumerate(zip(self._first, self._sizes, strict=True)):
            shares = LinearExpression(linear_coefs=[1.0] * size, linear_vars=x[first : first + size])
            m.eq10c_flow[f] = (1.0, shares, 1.0)
        self._model, self._x = m, x

    def busy(self, chosen: NDArray[np.int64]) -> float:
        """Return the seconds for which the fullest link is busy with these columns, one per flow."""
        return float(self._dense[chosen].sum(axis=0).max())

    def relaxed(self) -> tuple[list[Real], float]:
        """Solve Problem 4, and return the share of each path per flow, and the seconds."""
        try:
            solve_model(self._model, "APSP's Problem 4")
        except SolverError as error:
            raise WanError(str(error)) from None
        shares = np.maximum([x.value for x in self._x], 0.0)
        return np.split(shares, self._first[1:]), float(self._model.T.value * self.scale)

    def improved(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the choice with other paths for single flows, as long as the fullest link gains (of equals, all links,
        the fuller the more).
        """
        chosen = chosen.copy()
        load = self._dense[chosen].sum(axis=0)
        while True:
            unit = load.max()
            after = (load - self._dense[chosen][self.flow] + self._dense) / unit
            score = np.maximum(after.max(axis=1), 1 - 1e-12) + 1e-3 * (after**8).sum(axis=1)
            best = int(np.argmin(score))
            now = 1 + 1e-3 * ((load / unit) ** 8).sum()
            if score[best] >= now - 1e-9:
                return chosen
            chosen[self.flow[best]] = best
            load = self._dense[chosen].sum(axis=0)

    def good(self, shares: Sequence[Real], starts: int = 20) -> NDArray[np.int64]:
        """Return a good choice: the best of the largest shares and of draws from the shares, each improved."""
        rng = np.random.default_rng(0)
        largest = np.array([f + int(np.argmax(s)) for f, s in zip(self._first, shares, strict=True)])
        best = self.improved(largest)
        for _ in range(starts):
            drawn = [f + int(rng.choice(len(s), p=s / s.sum())) for f, s in zip(self._first, shares, strict=True)]
            found = self.improved(np.array(drawn))
            if self.busy(found) < self.busy(best):
                best = found
        return best

    def whole(self, at_most: float, time_limit: float, gap: float) -> tuple[NDArray[np.int64] | None, float]:
        """Solve Problem 1, and return the best columns (None where nothing below `at_most` s was found) and the proven
        bound in seconds.
        """
        import pyomo.environ as pyo

        model = self._model
        model.T.setub(min(1.0, at_most / self.scale))
        for x in self._x:
            x.domain = pyo.Binary
        try:
            bound = self._solve_whole(time_limit, gap)
            values = np.array([x.value for x in self._x])
            parts = zip(self._first, np.split(values, self._first[1:]), strict=True)
            chosen = np.array([first + int(np.argmax(part)) for first, part in parts])
        except NoSolution:
            return None, at_most
        except NotInTime as error:
            chosen, bound = None, error.bound
        except SolverError as error:
            raise WanError(str(error)) from None
        finally:
            for x in self._x:
                x.domain = pyo.Reals
            model.T.setub(1)
        return chosen, min(at_most, self.scale * bound) if bound is not None else 0.0

    def _solve_whole(self, time_limit: float, gap: float) -> float | None:
        """Solve the model, in which the shares then are, and return the bound that is proven."""
        what = "APSP's Problem 1"
        try:
            return solve_model(self._model, what, time_limit=time_limit, mip_rel_gap=gap).bound
        except (NoSolution, NotInTime):
            raise
        except SolverError:
            # Where no time is below `at_most`, HiGHS's presolve may find an optimum that breaks a row, and refuse it.
            return solve_model(self._model, what, time_limit=time_limit, mip_rel_gap=gap, presolve="off").bound
