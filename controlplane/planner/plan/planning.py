"""Planning in a command: within a time limit, with progress on stderr, and with Ctrl-C to get the best plan so far."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.planner.job import Job, JobError
from controlplane.planner.plan.model import Plan, PlanError
from controlplane.planner.strategies import Infeasible, get_strategy
from controlplane.planner.strategies.deadline import Deadline, limited_time
from controlplane.planner.topology import Topology, TopologyError

ERRORS = (TopologyError, JobError, PlanError, Infeasible, ValueError)

QUIET_S = 1.0  # seconds before progress is shown
EVERY_S = 5.0  # seconds between two lines of progress outside of a terminal


def solve(arguments: argparse.Namespace, strategy: str, topology: Topology, job: Job) -> tuple[Plan, float]:
    """Return the plan, and the seconds from the loaded inputs to it."""
    previous = Plan.load(arguments.frozen_split) if arguments.frozen_split else None
    make = get_strategy(strategy)
    begin = time.perf_counter()
    if previous:
        from controlplane.planner.plan.replan import replan  # imported here, as it imports the solver

        plan = replan(previous, topology, job=job, strategy=strategy, seed=arguments.seed)
    else:
        plan = make(topology, job, seed=arguments.seed)
    return plan, time.perf_counter() - begin


class Progress:
    """Prints a long planning's progress on stderr: on a terminal over the last line, else a new line now and then."""

    def __init__(self) -> None:
        self.begin = self.said = time.monotonic()

    def __call__(self, what: str, rate_mbps: float, bound_mbps: float) -> None:
        now = time.monotonic()
        watched = sys.stderr.isatty()
        if now - self.begin < QUIET_S or (not watched and now - self.said < EVERY_S):
            return
        self.said = now
        limit = f" of at most {bound_mbps:.6g}" if 0 < bound_mbps < float("inf") else ""
        text = f"{now - self.begin:.0f} s: {what}, {rate_mbps:.6g}{limit} Mbit/s"
        print(f"\r\x1b[K{text}" if watched else text, end="" if watched else "\n", file=sys.stderr, flush=True)

    def done(self) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


REPORTED = 0.2  # fraction of a command's time for evaluating and reporting the plan


def searching(arguments: argparse.Namespace) -> float | None:
    """Return the seconds that a command may search; None for no limit. Its --time-limit counts from its start, and
    covers evaluating, printing and writing the plan, too.
    """
    if arguments.time_limit is None:
        return None
    spent = time.monotonic() - arguments.begun
    return max(0.0, (arguments.time_limit - spent) * (1 - REPORTED))


@contextmanager
def timed(seconds: float | None) -> Iterator[Deadline]:
    """Make planning end with the best plan so far after so many seconds, or at the first Ctrl-C; a second one ends the
    command.
    """
    progress = Progress()
    with limited_time(seconds, progress) as limit:

        def stop(number: int, frame: object) -> None:
            limit.stop()
            signal.signal(signal.SIGINT, signal.default_int_handler)

        try:
            before = signal.signal(signal.SIGINT, stop)
        except ValueError:  # only the main thread may set handlers
            before = None
        try:
            yield limit
        finally:
            if before is not None:
                signal.signal(signal.SIGINT, before)
            progress.done()
