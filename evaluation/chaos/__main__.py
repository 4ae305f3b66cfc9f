"""Real all-reduces on an emulated network while everything fails, one or two things at a time; every sum is checked.

    python -m evaluation.chaos --minutes 30 --seed 1                                      fat-tree, k = 4
    python -m evaluation.chaos --minutes 30 --seed 1 --topology leafspine:leaves=4,spines=4,servers=3,bandwidth=20
    python -m evaluation.chaos --minutes 5 --seed 7 --events flip,forge,link --json report.json
    python -m evaluation.chaos --minutes 10 --coming 16 --topology fattree:k=6 --events link,switch,edge,reboot,ps
    python -m evaluation.chaos --minutes 30 --seed 1 --list                               what would happen, and when
    python -m evaluation.chaos --summary one.json two.json                                reports as one table

Needs root (network namespaces). Workers add up whole numbers, whose sum fixed point and float32 carry exactly; each
worker compares each result with it, bit for bit. The seed decides what happens and when, which is printed first; the
network is removed at the end, after Ctrl-C, too. Exit status: 0 when all is well; 1 when it could not run; 3 when a sum
was wrong; 4 when an operation failed for good, an event was not seen to happen, or something was left when all jobs
were removed; 130 when it was interrupted.
docs/chaos.md explains the figures. Events:
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
from controlplane.planner.job import Job, JobError, parse_next_job
from controlplane.planner.topology import TopologyError
from evaluation import commands
from evaluation.chaos.findings import compared
from evaluation.chaos.kinds import KINDS, described
from evaluation.chaos.run import Settings, run
from evaluation.chaos.schedule import draw
from topologies.command import Say, guarded, stopwatch
from topologies.network import EmulationError

DEFAULT_TOPOLOGY = "fattree:k=4,bandwidth=20"


def make_parser() -> argparse.ArgumentParser:
    parser = commands.parser("chaos", (__doc__ or "") + described())
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (%(default)g)")
    parser.add_argument("--seed", type=int, default=1, help="of what happens; when, almost (default: %(default)s)")
    parser.add_argument(
        "--topology", default=DEFAULT_TOPOLOGY, metavar="T",
        help="a file, or words such as leafspine:leaves=4,spines=2 (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="that share the network (%(default)s)")
    parser.add_argument("--coming", type=int, default=0, metavar="N", help="more jobs at a time, which come and go (0)")
    parser.add_argument("--workers", type=int, default=6, metavar="W", help="of each job (%(default)s)")
    parser.add_argument("--ps", type=int, default=2, metavar="S", help="parameter servers of each job (%(default)s)")
    parser.add_argument("--strategy", default="inart", metavar="S", help="default: %(default)s")
    parser.add_argument(
        "--events", default=",".join(KINDS), metavar="A,B", help="kinds that happen, of those above (default: all)"
    )
    parser.add_argument("--without", default="", metavar="A,B", help="kinds that do not")
    parser.add_argument("--list", action="store_true", help="say what would happen, and end")
    parser.add_argument("--quiet", action="store_true", help="only what came of it")
    parser.add_argument("--json", type=new_file, metavar="FILE", help="write the report as JSON; -: print it alone")
    parser.add_argument("--controller-log", type=new_file, metavar="FILE", help="keep what the controller has said")
    return parser


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Settings]:
    """Parse the command line. Raise TopologyError, JobError, EmulationError."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.minutes <= 0 or min(arguments.jobs, arguments.workers, arguments.ps) < 1 or arguments.coming < 0:
        parser.error("--minutes, --jobs, --workers and --ps are above 0, --coming is not below")
    kinds = [name for name in arguments.events.split(",") if name and name not in arguments.without.split(",")]
    unknown = sorted({*kinds, *filter(None, arguments.without.split(","))} - KINDS.keys())
    if unknown:
        parser.error(f"there is no event {unknown[0]!r}; there are {', '.join(KINDS)}")
    topology = parse_topology(arguments.topology)
    jobs: dict[str, Job] = {}
    for number in range(1, arguments.jobs + 1):
        taken = {job.name: (*job.workers, *job.parameter_servers) for job in jobs.values()}
        words = f"workers={arguments.workers},ps={arguments.ps},name=job{number}"
        jobs[f"job{number}"] = parse_next_job(words, topology, taken)
    events = draw(topology, list(jobs.values()), kinds, 60 * arguments.minutes, arguments.seed) if kinds else []
    return arguments, Settings(
        topology=topology, jobs=tuple(jobs.values()), strategy=arguments.strategy, events=tuple(events),
        seconds=60 * arguments.minutes, seed=arguments.seed, coming=arguments.coming,
        log=arguments.controller_log,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)

    def work() -> int:
        if words[:1] == ["--summary"]:
            print(compared([json.loads(Path(file).read_text()) for file in words[1:]]))
            return 0
        arguments, settings = parse(argv)
        alone = arguments.json == Path("-")
        say: Say = (lambda line: None) if arguments.quiet or alone else stopwatch()
        if not alone:
            print(f"What happens (seed {settings.seed}):", *settings.events, sep="\n  ", flush=True)
        if arguments.list:
            return 0
        findings = run(settings, say)
        title = f"`{arguments.topology}`, seed {settings.seed}"
        report = json.dumps(findings.to_json(title), indent=1)
        if alone:
            print(report)
        else:
            print(f"\n{findings.table(title)}")
        if arguments.json is not None and not alone:
            arguments.json.write_text(report + "\n")
        return findings.status or (130 if findings.interrupted else 0)

    return guarded("chaos", work, EmulationError, ControllerError, TopologyError, JobError, ValueError)


if __name__ == "__main__":
    sys.exit(main())
