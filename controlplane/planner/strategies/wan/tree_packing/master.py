"""The master program of the packing: the best rates of the trees known so far, and the prices that follow from them."""

from __future__ import annotations

import numpy as np

from controlplane.planner.strategies.solver import Program, SolverError
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.tree_packing.problem import Problem

Column = tuple[int, list[int], list[int]]
"""A tree: (the number of its root, its arcs on the way up, its arcs on the way down)."""


class Master:
    """The LP over the trees known so far. It is solved again from its last basis whenever trees have been added;
    `columns` has the trees in the order in which they were added.

    Args:
        problem: The packing problem.
        limits: The limits of the links, then those of the roots, in the LP's unit.
        part: The share that each root has to carry, or None.
        least: None to maximise the rate; else a rate at which the trees' cost is minimised.
    """

    def __init__(
        self, problem: Problem, limits: np.ndarray, part: np.ndarray | None, least: float | None = None
    ) -> None:
        self.limits, self.part = limits, part
        self.columns: list[Column] = []
        self._problem = problem
        self._known: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
        self._row = np.cumsum(np.isfinite(limits)) - 1
        self._finite = np.isfinite(limits)
        self._shares = int(self._finite.sum())  # the first row of the shares
        self._program = Program("the packing LP", presolve=False, primal_simplex=True)
        for limit in limits[self._finite].tolist():
            self._program.add_row(upper=limit)
        for _ in range(0 if part is None else len(part) - 1):
            self._program.add_row(lower=0.0, upper=0.0)
        self._rate = None if least is None else self._program.rows
        if least is not None:
            self._program.add_row(lower=least)

    def add(self, column: Column, cost: float = -1.0) -> bool:
        """Add a tree unless it is known already, and return whether it was new."""
        root, up, down = column
        key = (root, tuple(sorted(up)), tuple(sorted(down)))
        if key in self._known:
            return False
        self._known.add(key)
        self.columns.append(column)
        problem = self._problem
        entries: dict[int, float] = {}
        links = [*up, *down] if problem.results else up
        loads = [(item, 1.0) for item in (*links, len(problem.capacity) + root)]
        if problem.back:
            loads += [(int(problem.opposite[link]), problem.back) for link in links if problem.opposite[link] >= 0]
        for item, load in loads:
            if self._finite[item]:
                row = int(self._row[item])
                entries[row] = entries.get(row, 0.0) + load
        if self.part is not None:
            for k, share in enumerate(self.part[:-1].tolist()):
                if (value := float(k == root) - share) != 0:
                    entries[self._shares + k] = value
        if self._rate is not None:
            entries[self._rate] = 1.0
        self._program.add_column(cost, list(entries), list(entries.values()))
        return True

    def solve(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the rates of the trees in the order of `columns`, the prices of links and then of roots, and the price
        of a unit of rate where the rate is given (else 0).
        """
        try:
            solution = self._program.solve()
        except SolverError as error:
            raise WanError(str(error)) from None
        price = np.zeros(len(self.limits))
        price[self._finite] = np.maximum(-solution.duals[: self._shares], 0.0)
        worth = 0.0 if self._rate is None else float(solution.duals[self._rate])
        return np.maximum(solution.values, 0.0), price, worth

    def worth(self, links: np.ndarray, roots: np.ndarray) -> float:
        """Return the worth of all limits under these prices of links and of roots: sum(B y)."""
        n, limits, finite = len(links), self.limits, self._finite
        return float(links[finite[:n]] @ limits[:n][finite[:n]]) + float(roots[finite[n:]] @ limits[n:][finite[n:]])
