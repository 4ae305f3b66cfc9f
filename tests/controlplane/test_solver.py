"""The solver layer returns solutions, raises errors for unsolvable programs and marks what it has cut short."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pyomo.environ as pyo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from controlplane.planner.strategies.deadline import Deadline, limited_time, limited_work
from controlplane.planner.strategies.solver import NoSolution, NotInTime, Program, SolverError, solve_model
from tests.support.examples import examples


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6), st.booleans())
def test_linear_programs_agree_with_another_solver(columns, rows, seed, by_columns):
    rng = np.random.default_rng(seed)
    matrix, upper, cost = rng.integers(0, 5, (rows, columns)), rng.integers(0, 20, rows), -rng.integers(0, 9, columns)
    program = Program("test", presolve=not by_columns)
    if by_columns:  # Programs grow this way: they are solved again after each new column.
        for limit in upper:
            program.add_row(upper=float(limit))
        for column in range(columns):
            program.add_column(float(cost[column]), np.arange(rows), matrix[:, column], upper=7.0)
            program.solve()
    else:
        program.add_columns(cost, 0.0, 7.0)
        for entries, limit in zip(matrix, upper, strict=True):
            program.add_row(np.arange(columns), entries.astype(float), upper=float(limit))
    solution = program.solve()
    other = linprog(cost, A_ub=matrix, b_ub=upper, bounds=(0, 7))
    assert solution.optimal
    assert solution.objective == pytest.approx(other.fun, abs=1e-6)
    assert solution.bound == solution.objective
    assert solution.values @ cost == pytest.approx(other.fun, abs=1e-6)
    # By strong duality, the rows' duals and the columns' upper bounds pay for the objective.
    reduced = np.minimum(cost - solution.duals @ matrix, 0.0)
    assert solution.duals @ upper + 7.0 * reduced.sum() == pytest.approx(solution.objective, abs=1e-6)


def knapsacks(count: int = 60, rows: int = 40) -> Program:
    """Return a program that takes minutes to solve; the empty packing is a solution from the start."""
    rng = np.random.default_rng(0)
    program = Program("knapsacks", gap=0.0)
    program.add_columns(-rng.integers(1, 100, count), 0.0, 1.0, whole=np.ones(count))
    for weights in rng.integers(1, 100, (rows, count)).astype(float):
        program.add_row(np.arange(count), weights, upper=float(weights.sum() / 3))
    return program


def test_a_limit_of_work_keeps_the_best_so_far_and_ends_at_the_same_node_each_time():
    found = []
    for _ in range(2):
        with limited_work(1e7) as limit:
            solution = knapsacks().solve(within=limit)
        assert not solution.optimal and not limit.cut_short and limit.work_left == 0.0
        assert solution.bound < solution.objective < 0
        assert solution.values @ np.round(solution.values) > 0
        found.append((solution.bound, solution.values.tolist()))
    assert found[0] == found[1]


def test_a_limit_of_time_that_is_over_leaves_no_solution():
    with pytest.raises(NotInTime):
        knapsacks().solve(within=Deadline(0.0))


def test_a_linear_program_ends_after_the_iterations_that_are_left():
    rng = np.random.default_rng(0)
    entries = rng.random((60, 80))
    for work, optimal in ((10 * entries.size, False), (1e4 * entries.size, True)):
        program = Program("test", presolve=False)
        program.add_columns(-rng.random(80), 0.0, 1.0)
        for row in entries:
            program.add_row(np.arange(80), row, upper=float(row.sum() / 8))
        with limited_work(work) as limit:
            try:
                assert program.solve(within=limit).optimal == optimal
            except NotInTime:
                assert not optimal
            assert (limit.work_left == 0.0) == (not optimal)


def test_a_limit_of_wall_time_is_for_each_solve_and_of_no_other_clock():
    """HiGHS compares its time_limit with the time of all solves of an object. It was given what was left of a deadline,
    so that a program that was solved often was cut short after half of the time."""
    program = Program("test", presolve=False)
    program.add_columns([-1.0], 0.0, 1.0)
    program.add_row([0], [1.0], upper=0.5)
    for _ in range(3):
        spent = program._highs.getRunTime()
        program.solve(within=Deadline(1000.0))
        given = program._highs.getOptionValue("time_limit")[1]
        assert spent + 900.0 < given <= spent + 1000.0
    program.solve(within=Deadline(1000.0, clock=time.process_time, outer=Deadline(5000.0, clock=time.process_time)))
    assert program._highs.getOptionValue("time_limit")[1] == float("inf")
    spent = program._highs.getRunTime()
    program.solve(within=Deadline(1000.0, clock=time.process_time, outer=Deadline(2000.0)))
    assert spent + 1900.0 < program._highs.getOptionValue("time_limit")[1] <= spent + 2000.0


class Impatient:
    """A clock that stands still; its fourth reading stops the deadline."""

    def __init__(self) -> None:
        self.looks, self.stop = 0, lambda: None

    def __call__(self) -> float:
        self.looks += 1
        if self.looks > 3:
            self.stop()
        return 0.0


def test_a_solve_ends_when_the_deadline_is_stopped():
    """HiGHS asks the deadline while it solves; otherwise Ctrl-C would not be noticed within a solve."""
    clock = Impatient()
    limit = Deadline(1000.0, clock=clock)
    clock.stop = limit.stop
    solution = knapsacks().solve(within=limit)
    assert not solution.optimal and solution.bound < solution.objective < 0
    assert clock.looks == 4


def test_a_papers_model_ends_when_the_deadline_is_stopped():
    rng = np.random.default_rng(0)
    model = pyo.ConcreteModel()
    model.x = pyo.Var(range(60), domain=pyo.Binary)
    x = list(model.x.values())
    worth, weights = rng.integers(1, 100, 60).tolist(), rng.integers(1, 100, (40, 60)).tolist()
    model.best = pyo.Objective(expr=pyo.sum_product(worth, x, index=range(60)), sense=pyo.maximize)
    model.rows = pyo.Constraint(
        range(40), rule=lambda m, i: pyo.sum_product(weights[i], x, index=range(60)) <= sum(weights[i]) / 3
    )
    clock = Impatient()
    with limited_time(1000.0, clock=clock) as limit:
        clock.stop = limit.stop
        outcome = solve_model(model, "of the paper")
    assert not outcome.optimal
    assert outcome.bound > pyo.value(model.best) > 0


def test_programs_without_a_solution_are_named():
    program = Program("the program's name")
    program.add_columns([1.0])
    program.add_row([0], [1.0], lower=2.0, upper=1.0)
    with pytest.raises(SolverError, match="the program's name"):
        program.solve()
    model = pyo.ConcreteModel()
    model.x = pyo.Var(bounds=(0, 1))
    model.least = pyo.Objective(expr=model.x)
    model.row = pyo.Constraint(expr=model.x >= 2)
    with pytest.raises(NoSolution, match="of the paper"):
        solve_model(model, "of the paper")


@pytest.mark.parametrize("sense", [pyo.minimize, pyo.maximize])
def test_models_of_pyomo(sense):
    model = pyo.ConcreteModel()
    model.x = pyo.Var(range(3), domain=pyo.Integers, bounds=(-4, 4))
    model.row = pyo.Constraint(expr=pyo.quicksum(model.x[i] for i in range(3)) >= -6.5)
    model.best = pyo.Objective(expr=2 * model.x[0] + pyo.quicksum(model.x[i] for i in range(3)), sense=sense)
    outcome = solve_model(model, "test")
    assert outcome.optimal
    assert pyo.value(model.best) == pytest.approx(-14 if sense == pyo.minimize else 20)
    assert outcome.bound == pytest.approx(pyo.value(model.best))


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("controlplane.planner.strategies", ("pyomo", "highspy", "scipy", "numpy")),
        ("controlplane.cli.plan.command", ("pyomo", "highspy", "scipy")),
        ("controlplane.cli.plan.single", ("pyomo", "scipy")),
        ("controlplane.planner.strategies.fabric.inart", ("pyomo", "scipy")),
    ],
)
def test_unneeded_libraries_are_not_imported(module, heavy):
    """The command line answers at once only if heavy libraries are not imported."""
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
