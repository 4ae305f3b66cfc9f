"""The shares of each flow's paths such that the fullest link is as empty as can be: APSP's Problem 4 (linear program),
in Pyomo.

The problem is divided by m = 1/T: x_fp = z_fp / m is the share of flow f that takes path p, and T is minimised.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from controlplane.planner.strategies.solver import SolverError, solve_model
from controlplane.planner.strategies.wan.errors import WanError

Real = NDArray[np.float64]


def path_shares(seconds: csr_matrix, flow: Sequence[int]) -> tuple[list[Real], float]:
    """Solve Problem 4, and return the share of each path per flow, and the seconds for which the fullest link is busy.

    The model is scaled so that times are about 1, as HiGHS's tolerances are absolute.

    Args:
        seconds: (links, columns), for how many seconds a link is busy when all of a flow takes the column's path.
        flow: The flow of each column.
    """
    import pyomo.environ as pyo  # It takes a second: coordinators of other systems import this module, too.
    from pyomo.core.expr.numeric_expr import LinearExpression

    sizes = np.bincount(np.asarray(flow, dtype=np.int64))
    firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    scale = float(seconds[:, firsts].sum(axis=1).max())
    rows = seconds / scale
    m = pyo.ConcreteModel("APSP, Problem 4")
    m.x = pyo.Var(range(len(flow)), bounds=(0, 1))  # (10b)
    m.T = pyo.Var(bounds=(0, 1))  # in units of `scale`: the first paths are a solution
    m.min_T = pyo.Objective(expr=m.T)  # (10)
    x = [m.x[c] for c in range(len(flow))]
    m.eq10a_link = pyo.Constraint(range(rows.shape[0]))
    for e in m.eq10a_link.index_set():  # sum of delta_efp x_fp |p| D / B_e <= T
        part = slice(rows.indptr[e], rows.indptr[e + 1])
        if part.start < part.stop:
            busy = LinearExpression(
                linear_coefs=[*rows.data[part].tolist(), -1.0],
                linear_vars=[*(x[c] for c in rows.indices[part]), m.T],
            )
            m.eq10a_link[e] = (None, busy, 0.0)
    m.eq10c_flow = pyo.Constraint(range(len(sizes)))
    for f, (first, size) in enumerate(zip(firsts, sizes, strict=True)):
        shares = LinearExpression(linear_coefs=[1.0] * size, linear_vars=x[first : first + size])
        m.eq10c_flow[f] = (1.0, shares, 1.0)
    try:
        solve_model(m, "APSP's Problem 4")
    except SolverError as error:
        raise WanError(str(error)) from None
    found = np.maximum([each.value for each in x], 0.0)
    return np.split(found, firsts[1:]), float(m.T.value * scale)
