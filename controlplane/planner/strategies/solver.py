"""The one way to HiGHS: `Program` for the planner's own programs, `solve_model` for the papers', written in Pyomo.

Every solve ends in a solution or in SolverError: the solver's status is checked here, so that no caller uses the values
of a solve that failed. A deadline, of time or of work, keeps the best solution so far, and marks it
(`Solution.optimal`). Work counts in iterations and nodes, and so ends a solve at the same step on every machine.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import ArrayLike, NDArray

from controlplane.planner.strategies.deadline import Deadline, deadline

Reals = NDArray[np.float64]
INFINITY = float(highspy.kHighsInf)
UNLIMITED = int(highspy.kHighsIInf)
NODE_ITERATIONS = 50
"""Iterations that a node of an integer program is taken for when its work is limited beforehand."""
STOPPED = (
    highspy.HighsModelStatus.kTimeLimit,
    highspy.HighsModelStatus.kIterationLimit,
    highspy.HighsModelStatus.kSolutionLimit,
    highspy.HighsModelStatus.kInterrupt,
)
CALLBACKS = ("cbSimplexInterrupt", "cbIpmInterrupt", "cbMipInterrupt")  # from highspy 1.8 on
NO_SOLUTION = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)


class SolverError(ValueError):
    """Error: the solver ended without a solution; the message names the program, and how it ended."""


class NoSolution(SolverError):
    """Error: the program has no solution, and that is proven."""


class NotInTime(SolverError):
    """Error: the limit of time came before any solution. `bound` is the proven bound of the objective, if there is
    one.
    """

    def __init__(self, text: str, bound: float | None) -> None:
        super().__init__(text)
        self.bound = bound


@dataclass(frozen=True)
class Solution:
    """Solution of a program.

    Attributes:
        values: By column.
        duals: By row, what the objective gains per unit of the row's bound (linear programs only).
        objective: Objective of these values.
        bound: No solution has a smaller objective.
        optimal: False where a limit ended the solve.
    """

    values: Reals
    duals: Reals
    objective: float
    bound: float
    optimal: bool


class Program:
    """A linear or mixed-integer program to be minimised, that may grow; each solve starts from the last basis.

    Args:
        what: Names the program in errors.
        tolerance: Of rows and reduced costs, absolute as HiGHS has them: scale the program so that values that matter
            are near 1.
        presolve: Whether to simplify the program first, which is worth it for programs that are solved once.
        gap: Relative gap at which a mixed-integer program counts as solved.
        primal_simplex: Whether to solve again with the primal simplex, which is faster for a growing program, as its
            last solution stays feasible.
    """

    def __init__(
        self,
        what: str,
        *,
        tolerance: float | None = None,
        presolve: bool = True,
        gap: float | None = None,
        primal_simplex: bool = False,
    ) -> None:
        self.what = what
        self._highs = highspy.Highs()
        self._highs.silent()
        self._set("threads", 1)
        if not presolve:
            self._set("presolve", "off")
        if tolerance is not None:
            self._set("primal_feasibility_tolerance", tolerance)
            self._set("dual_feasibility_tolerance", tolerance)
        if gap is not None:
            self._set("mip_rel_gap", gap)
        if primal_simplex:  # as columns come in, the last solution stays feasible
            self._set("simplex_strategy", 4)
        self._integer = False
        self._start: list[int] = []
        self._index: list[int] = []
        self._value: list[float] = []
        self._bounds: list[tuple[float, float]] = []

    def _set(self, option: str, value: float | str) -> None:
        if self._highs.setOptionValue(option, value) != highspy.HighsStatus.kOk:
            raise SolverError(f"{self.what}: HiGHS does not take {option}={value!r}")

    def add_columns(
        self, cost: ArrayLike, lower: ArrayLike = 0.0, upper: ArrayLike = INFINITY, whole: ArrayLike | None = None
    ) -> None:
        """Add columns that are in no row yet; `whole` says which of them are integers."""
        costs = np.array(cost, dtype=float)
        count, first = len(costs), self._highs.getNumCol()
        none = np.zeros(0, dtype=np.int32)
        low, high = (np.broadcast_to(np.asarray(b, dtype=float), count).copy() for b in (lower, upper))
        self._highs.addCols(count, costs, low, high, 0, none, none, np.zeros(0))
        if whole is not None and np.any(whole):
            chosen = np.flatnonzero(whole) + first
            kinds = np.full(len(chosen), int(highspy.HighsVarType.kInteger), dtype=np.uint8)
            self._highs.changeColsIntegrality(len(chosen), chosen.astype(np.int32), kinds)
            self._integer = True

    def add_column(
        self, cost: float, rows: ArrayLike, values: ArrayLike, lower: float = 0.0, upper: float = INFINITY
    ) -> None:
        """Add a column with its entries in rows that exist."""
        self._put_rows()
        indices = np.asarray(rows, dtype=np.int32)
        self._highs.addCol(cost, lower, upper, len(indices), indices, np.asarray(values, dtype=float))

    def add_row(
        self,
        columns: Sequence[int] | NDArray[Any] = (),
        values: Sequence[float] | Reals = (),
        lower: float = -INFINITY,
        upper: float = INFINITY,
    ) -> None:
        """Add a row: lower <= values x columns <= upper."""
        self._start.append(len(self._index))
        self._index.extend(columns)
        self._value.extend(values)
        self._bounds.append((lower, upper))

    def _put_rows(self) -> None:
        if not self._bounds:
            return
        low, high = (np.array(bounds) for bounds in zip(*self._bounds, strict=True))
        starts, indices = np.array(self._start, dtype=np.int32), np.array(self._index, dtype=np.int32)
        self._highs.addRows(len(low), low, high, len(indices), starts, indices, np.array(self._value, dtype=float))
        for entries in (self._start, self._index, self._value, self._bounds):
            entries.clear()

    @property
    def rows(self) -> int:
        return int(self._highs.getNumRow()) + len(self._bounds)

    @property
    def columns(self) -> int:
        return int(self._highs.getNumCol())

    @property
    def nonzeros(self) -> int:
        return int(self._highs.getNumNz()) + len(self._index)

    def set_costs(self, cost: ArrayLike) -> None:
        """Set the costs of all columns."""
        costs = np.asarray(cost, dtype=float)
        self._highs.changeColsCost(len(costs), np.arange(len(costs), dtype=np.int32), costs)

    def set_bounds(self, column: int, lower: float, upper: float) -> None:
        self._highs.changeColBounds(column, lower, upper)

    def solve(self, *, within: Deadline | None = None) -> Solution:
        """Return the solution. The deadline `within` ends the solve when it passes or is stopped.

        Raise NoSolution where there is none, NotInTime where none was found in time, SolverError where HiGHS failed.
        """
        self._put_rows()
        for option, value in _limits(within, self.nonzeros).items():
            self._set(option, value)
        wall = None if within is None else within.wall_left
        # HiGHS compares its limit with the time of all solves of an object together.
        self._set("time_limit", INFINITY if wall is None else self._highs.getRunTime() + wall)
        with _interrupted(self._highs, within):
            self._highs.run()
        status = self._highs.getModelStatus()
        _spend(self._highs, self.nonzeros)
        if status not in (highspy.HighsModelStatus.kOptimal, *STOPPED, *NO_SOLUTION) and not self._integer:
            self._highs.clearSolver()  # the last basis may have led it astray
            self._highs.run()
            status = self._highs.getModelStatus()
            _spend(self._highs, self.nonzeros)
        text = self._highs.modelStatusToString(status)
        if status in NO_SOLUTION:
            raise NoSolution(f"{self.what}: there is no solution ({text})")
        info = self._highs.getInfo()
        optimal = status == highspy.HighsModelStatus.kOptimal
        objective = float(info.objective_function_value)
        if self._integer:
            bound = float(info.mip_dual_bound)
        else:
            bound = objective if optimal else -math.inf
        if not optimal and status not in STOPPED:
            raise SolverError(f"{self.what}: HiGHS found no solution ({text})")
        if not optimal and info.primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
            raise NotInTime(f"{self.what}: HiGHS found no solution in time ({text})", _finite(bound))
        found = self._highs.getSolution()
        return Solution(np.array(found.col_value), np.array(found.row_dual), objective, bound, optimal)


def _limits(within: Deadline | None, entries: int) -> dict[str, int]:
    """Return HiGHS's options for the work that is left to a program with so many entries that are not 0."""
    left = None if within is None else within.work_left
    if left is None:
        return {"simplex_iteration_limit": UNLIMITED, "mip_max_nodes": UNLIMITED}
    iterations = min(UNLIMITED, math.ceil(left / max(1, entries)))
    return {"simplex_iteration_limit": iterations, "mip_max_nodes": -(-iterations // NODE_ITERATIONS)}


def _spend(highs: highspy.Highs, entries: int) -> None:
    """Count the work of the last solve of a program with so many entries that are not 0."""
    deadline().spend(max(0, highs.getInfo().simplex_iteration_count) * float(entries))


@contextmanager
def _interrupted(highs: highspy.Highs, limit: Deadline | None) -> Iterator[None]:
    """Let HiGHS ask the deadline every few iterations inside of the block; Python then sees signals (Ctrl-C), too."""
    asks = [getattr(highs, name) for name in CALLBACKS if limit is not None and hasattr(highs, name)]

    def ask(event: Any) -> None:
        if limit is not None and limit.left == 0.0:
            event.interrupt()

    for each in asks:
        each.subscribe(ask)
    try:
        yield
    finally:
        for each in asks:
            each.unsubscribe(ask)


@dataclass(frozen=True)
class Outcome:
    """Outcome of solving a Pyomo model, whose variables then have their values: the bound of the objective (None where
    none is proven), and whether the values are optimal.
    """

    bound: float | None
    optimal: bool


def solve_model(model: Any, what: str, *, time_limit: float | None = None, **options: float | str) -> Outcome:
    """Solve a Pyomo model with HiGHS and load its best solution, before the deadline passes (which HiGHS asks, too, so
    that Ctrl-C ends the solve), or after `time_limit` seconds. `options` are HiGHS's.

    Raise NoSolution, NotInTime or SolverError, as `Program.solve` does.
    """
    import pyomo.environ as pyo

    limit = deadline()
    if limit.wall_left is not None:
        time_limit = limit.wall_left if time_limit is None else min(time_limit, limit.wall_left)
    solver: Any = pyo.SolverFactory("appsi_highs")
    solver.set_instance(model)
    highs = solver._solver_model  # Pyomo gives no access to HiGHS's callbacks, nor to its status
    entries = int(highs.getNumNz())
    solver.highs_options = {"threads": 1, **_limits(limit, entries), **options}
    if time_limit is not None:
        solver.highs_options["time_limit"] = max(0.0, time_limit)
    logging.getLogger("pyomo.contrib.appsi.solvers.highs").setLevel(logging.ERROR)
    with _interrupted(highs, limit):
        results = solver.solve(model, load_solutions=False)
    _spend(highs, entries)
    condition = results.solver.termination_condition
    ends = pyo.TerminationCondition
    if condition in (ends.infeasible, ends.infeasibleOrUnbounded):
        raise NoSolution(f"{what}: there is no solution ({condition})")
    minimised = next(model.component_data_objects(pyo.Objective, active=True)).is_minimizing()
    bound = results.problem.lower_bound if minimised else results.problem.upper_bound
    optimal = condition == ends.optimal
    if not optimal and highs.getModelStatus() not in STOPPED:
        raise SolverError(f"{what}: HiGHS found no solution ({condition})")
    if not optimal:
        info = highs.getInfo()
        bound = float(info.mip_dual_bound)
        if info.primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
            raise NotInTime(f"{what}: HiGHS found no solution in time", _finite(bound))
    solver.load_vars()
    return Outcome(_finite(bound), optimal)


def _finite(bound: float | None) -> float | None:
    return None if bound is None or not math.isfinite(bound) else float(bound)
