"""The command of the package, which `make bmv2-fattree` calls; --help lists the options."""

import sys
from collections.abc import Sequence

from controlplane.planner.job import JobError
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.strategies import Infeasible
from controlplane.planner.topology import TopologyError
from controlplane.targets.base import TargetError
from evaluation.bmv2_fattree import plots, settings
from evaluation.bmv2_fattree.experiment import run
from topologies import EmulationError
from topologies.choice import choose
from topologies.command import guarded, stopwatch


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment. Return the exit status: 0 when all is well, 1 when it failed, 3 when something is wrong, 130
    when it was interrupted.

    Wrong means that a result is wrong, or that a rate was below half of the plan's at the last attempt (see the
    remarks).
    """
    say = stopwatch()

    def work() -> int:
        chosen = settings.parse(argv, choose())
        report, topology, job = run(chosen, say)
        paths = [*report.write(chosen.output), *plots.write(report, topology, job, chosen.output)]
        say("done\n")
        print(report.table())
        print("\nwritten: " + ", ".join(str(path) for path in paths))
        return 0 if report.sound and report.carried and (report.training is None or report.training.agrees) else 3

    return guarded("bmv2-fattree", work, EmulationError, TargetError, TopologyError, JobError, DoesNotFit, Infeasible)


if __name__ == "__main__":
    sys.exit(main())
