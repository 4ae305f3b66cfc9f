"""A day in the life of a network, scripted: jobs come and go, operators work, things fail; every sum is checked.

    python -m evaluation.operate --seed 1                     20 jobs on a fat-tree with k = 6
    python -m evaluation.operate --seed 1 --list              what would happen, and when
    python -m evaluation.operate --seed 1 --json report.json
    python -m evaluation.operate --jobs 3 --minutes 1 --topology leafspine:leaves=3,spines=3,servers=3,bandwidth=20

There are two controllers. Jobs come through Slurm where it is installed (sbatch --comment inart:share), else through
`inart run` on each of their nodes; one more job, with parameter servers of its own, stays all day. Operators drain two
switches and put them back, add a rack (topology reload), and replace controller and P4 program (docs/operate.md).
Links, a switch, a parameter server and the leading controller fail. Foreign TCP runs over a third of the links. The
seed decides what happens, one thing at a time. Needs root. Exit status: 0 when all is well; 1 when it could not run; 3
when a sum was wrong; 4 when a job has failed; 5 when a verb could not be done; 130 when it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from controlplane.common.command_line import new_file
from controlplane.common.rpc.client import ControllerError
from controlplane.planner.generators import parse_topology
from controlplane.planner.topology import TopologyError
from evaluation import commands
from evaluation.operate.day import draw
from evaluation.operate.run import Settings, run
from topologies.command import Say, guarded, stopwatch
from topologies.network import EmulationError
from topologies.slurm import missing

DEFAULT_TOPOLOGY = "fattree:k=6,bandwidth=10"


def make_parser() -> argparse.ArgumentParser:
    parser = commands.parser("operate", __doc__)
    parser.add_argument("--seed", type=int, default=1, help="of what happens (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=8.0, help="how long the day is (%(default)g)")
    parser.add_argument("--jobs", type=int, default=20, metavar="N", help="that come and go (%(default)s)")
    parser.add_argument("--topology", default=DEFAULT_TOPOLOGY, metavar="T", help="default: %(default)s")
    parser.add_argument(
        "--elements", type=int, default=80_000, metavar="N", help="most values of an all-reduce (%(default)s)"
    )
    parser.add_argument(
        "--foreign", type=float, default=1.0, metavar="MBPS", help="the most that a TCP flow sends (%(default)g)"
    )
    parser.add_argument("--no-slurm", action="store_true", help="use `inart run` where Slurm is installed, too")
    parser.add_argument("--list", action="store_true", help="say what would happen, and end")
    parser.add_argument("--quiet", action="store_true", help="only what came of it")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs of controllers, Slurm and jobs here")
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write the report as JSON; -: print it alone")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.minutes <= 0 or arguments.jobs < 1 or arguments.elements < 4:
        parser.error("--minutes and --jobs are above 0, --elements at least 4")

    def work() -> int:
        topology = parse_topology(arguments.topology)
        seconds = 60 * arguments.minutes
        day = draw(topology, arguments.jobs, seconds, arguments.seed, arguments.elements)
        alone = arguments.json == Path("-")
        say: Say = (lambda line: None) if arguments.quiet or alone else stopwatch()
        if not alone:
            print(f"What happens (seed {arguments.seed}):", *day.lines(), sep="\n  ", flush=True)
        if arguments.list:
            return 0
        slurm = not arguments.no_slurm and not missing()
        settings = Settings(topology, day, seconds, arguments.seed, slurm, arguments.foreign, arguments.logs)
        report = run(settings, say)
        text = json.dumps(report.to_json(), indent=1)
        print(text if alone else f"\n{report.table()}")
        if arguments.json is not None and not alone:
            arguments.json.write_text(text + "\n")
        return report.status

    return guarded("operate", work, EmulationError, ControllerError, TopologyError, ValueError)


if __name__ == "__main__":
    sys.exit(main())
