"""The planner's command line: its options, the checks of them before planning, and loading its inputs."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Sequence
from dataclasses import replace

from controlplane.common import command_line
from controlplane.common.inputs import parse_part
from controlplane.planner.generators import parse_topology
from controlplane.planner.job import Job, parse_job
from controlplane.planner.plan.limits import Limits, limited
from controlplane.planner.plan.measured import measured_in
from controlplane.planner.plan.model import Plan
from controlplane.planner.strategies import STRATEGIES
from controlplane.planner.topology import Topology
from controlplane.planner.topology_cables import hangs_on_switches
from p4src.protocol import PROTOCOL

COMMANDS = {"plan": "single", "pareto": "pareto", "place": "placement"}
"""The module of this package for each command; its `command(arguments, topology, job)` prints the result. The command
`plan` with several strategies is in the module `compare`.

The modules are imported on demand, because they import solvers, which takes long.
"""

ALIAS = "compare"
"""The name for `plan --compare` that scripts may use."""

HOST_WAYS = ("host-ring", "reduce-scatter+all-gather", "host-trees")
"""Rows of `plan --compare` for collectives among hosts without switches that add (planner/plan/host_collectives.py)."""
ON_WORKERS = "inart-on-workers"
"""Row of our planner with a parameter server on every worker's server instead of the job's own ones."""
ON_HOSTS = "inart-on-hosts"
"""Row as ON_WORKERS, where each worker's host also adds inside of trees."""


def _program(name: str) -> str:
    """Return the program of a target ("tofino2" -> "t2na"); any other name is taken for a program's."""
    from controlplane.targets.registry import TARGETS, target  # planning alone needs no target

    return target(name).architecture if name in TARGETS else name


ONLY = {
    "compare": ("plan",),
    "plot": ("pareto",),
    "rate_at_least": ("pareto",),
    "draw": ("plan",),
    "prove": ("plan",),
    "losses": ("plan",),
    "apart": ("place",),
    "frozen_split": ("plan",),
}
"""The commands that each of these options goes with."""


ALL = "all"
"""Value of `--losses` without a number: links and switches are lost as a whole; of `--strategy`: all strategies."""


def part_of_links(arguments: argparse.Namespace) -> float | None:
    """Return the part of links' capacity, between 0 and 1, that `--losses` gives; None where it gives none. Raise
    ValueError where it is no part."""
    if arguments.losses in (None, ALL):
        return None
    part = parse_part(arguments.losses, "--losses", "links' capacity")
    if part == 1:
        raise ValueError("--losses must be less than 100%: a link that is lost is `--losses` without a part")
    return part


def command_of(words: Sequence[str]) -> str:
    """Return the command that was typed."""
    return next((word for word in words if word in COMMANDS), "plan")


def parser(description: str | None, command: str = "plan") -> argparse.ArgumentParser:
    """Return the parser of all commands, whose help has the options of this one. It accepts those of the others, too,
    so that `refuse_useless` can say which command they are for."""
    result = command_line.make("plan", description)
    result.add_argument(
        "command",
        nargs="?",
        choices=(*COMMANDS, ALIAS),
        default="plan",
        metavar="pareto|place",
        help="pareto: rates over numbers of trees; place: where to put the parameter servers (--output: the job file); "
        "each with --help has its own options",
    )
    _add_inputs(result.add_argument_group("inputs"))
    _add_search(result.add_argument_group("planning"))
    _add_shown(result.add_argument_group("output"))
    for action in result._actions:
        if command not in ONLY.get(action.dest, (command,)):
            action.help = argparse.SUPPRESS
    return result


def parse(words: Sequence[str], description: str | None) -> argparse.Namespace:
    """Return the arguments of the command line. `strategies` are those that were named, `strategy` is the first of them
    or the default, and `compare` says whether there are several."""
    arguments = parser(description, command_of(words)).parse_args(words)
    if arguments.command == ALIAS:
        arguments.command, arguments.compare = "plan", True
    arguments.strategy = arguments.strategies[0] if arguments.strategies else "inart"
    if arguments.command == "plan" and (len(arguments.strategies) > 1 or ALL in arguments.strategies):
        arguments.compare = True
    return arguments


def module_of(arguments: argparse.Namespace) -> str:
    """Return the name of the module whose `command` prints what the arguments ask for."""
    return "compare" if arguments.compare else COMMANDS[arguments.command]


def _strategies(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def _add_inputs(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--topology", required=True, help="a file, or like fattree:k=6,bandwidth=20 or testbed")
    group.add_argument(
        "--job",
        default="",
        help="a file, or like workers=50,ps=4,seed=1,model=548K,trees=16 (model: bytes, or 25M*40+7M, or any; "
        "ps=workers: one on every worker's server)",
    )
    group.add_argument(
        "--target",
        type=_program,
        metavar="NAME",
        help="plan for switches with this target's slots, tables and packets, as `deploy` names it, or a program "
        f"({', '.join(PROTOCOL.targets)})",
    )
    group.add_argument(
        "--measured",
        metavar="FILE",
        help="measurements: hosts' times (from `inart status --json`), or rates of links and nodes",
    )


def _add_search(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-trees", type=int, metavar="N", help="most aggregation trees")
    group.add_argument(
        "--strategy",
        dest="strategies",
        type=_strategies,
        default=(),
        metavar="NAME,...",
        help=f"one of {', '.join(STRATEGIES)} (default: inart); several, or all: compare them",
    )
    group.add_argument(
        "--compare",
        action="store_true",
        help="print a table of several strategies (default: the in-network ones) and of collectives among the hosts",
    )
    group.add_argument(
        "--seed", type=int, default=0, help="random seed, for strategies that use one (default: %(default)s)"
    )
    group.add_argument(
        "--frozen-split",
        metavar="PLAN",
        help="replan: keep each parameter server's share of this plan (and its job unless --job says otherwise), and "
        "its trees that still work; show what changes",
    )
    group.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="end with the best plan so far (as Ctrl-C does) so long after the command began; of several strategies: "
        "limit of each search (60)",
    )
    group.add_argument(
        "--rate-at-least",
        metavar="PART",
        help="print the plan of the fewest trees that keeps this part of the rate, like 90%%",
    )
    group.add_argument(
        "--apart",
        action="store_true",
        help="put no parameter server on a worker's server (default: do where that is faster)",
    )


def _add_shown(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--prove", action="store_true", help="compute a better bound, over all trees and links (takes longer)"
    )
    group.add_argument(
        "--losses",
        nargs="?",
        const=ALL,
        metavar="PART",
        help="show the rate after the loss of any one link or switch (new shares); with a part, like 20%%: what is "
        "kept when any one link loses so much of its capacity",
    )
    group.add_argument("--plot", metavar="PNG", help="draw the rate over the number of trees")
    command_line.add_json(group, "print JSON (docs/planner.md)")
    group.add_argument(
        "--output",
        metavar="FILE",
        help="write the JSON to a file, too (a plan: its split can be kept in the next one; place: the job file)",
    )
    group.add_argument("--draw", metavar="PNG", help="draw the fabric with trees, link loads and the bottleneck")


def refuse_useless(arguments: argparse.Namespace) -> None:
    """Check that the command uses all options that were given; raise ValueError otherwise."""
    command = arguments.command
    for name, commands in ONLY.items():
        if getattr(arguments, name) and command not in commands:
            option, others = f"--{name.replace('_', '-')}", " and ".join(commands)
            raise ValueError(f"{option} is for {others}: {command} has no use for it")
    if arguments.rate_at_least is not None:
        parse_part(arguments.rate_at_least, "--rate-at-least")
        if arguments.plot:
            raise ValueError("--plot shows all numbers of trees, --rate-at-least one plan: give one of them")
    if arguments.draw and arguments.compare:
        raise ValueError("--draw shows one plan: give one --strategy, and no --compare")
    if arguments.losses == ALL and arguments.compare:
        raise ValueError("several strategies: --losses needs a part of links' capacity, like --losses 20%")
    part_of_links(arguments)
    _refuse_unknown(arguments)
    if arguments.time_limit is not None and not arguments.time_limit > 0:
        raise ValueError(f"--time-limit must be above 0 s, got {arguments.time_limit:g}")


def _refuse_unknown(arguments: argparse.Namespace) -> None:
    """Check that the strategies exist, and that the command takes as many; raise ValueError otherwise."""
    names = arguments.strategies
    if not arguments.compare and len(names) > 1:
        raise ValueError(f"{arguments.command} plans with one strategy, got --strategy {','.join(names)}")
    if arguments.compare and names == (ALL,):
        return
    known = (*STRATEGIES, *(HOST_WAYS if arguments.compare else ()))
    known += (ON_WORKERS, ON_HOSTS) if arguments.compare else ()
    for name in names:
        if name not in known:
            raise ValueError(f"unknown strategy {name!r}; known: {', '.join(known)}")


def refuse_unwritable(arguments: argparse.Namespace) -> None:
    """Check before planning that the output files can be written; raise OSError or ValueError otherwise."""
    for option, path in (("--draw", arguments.draw), ("--plot", arguments.plot)):
        if path:
            _refuse_unknown_format(option, path)
    for path in filter(None, (arguments.output, arguments.draw, arguments.plot)):
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not os.access(path if os.path.exists(path) else folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _refuse_unknown_format(option: str, path: str) -> None:
    """Check that matplotlib can write a picture of the format that the file's ending names; raise ValueError
    otherwise."""
    from matplotlib.backend_bases import FigureCanvasBase  # takes a while, and few commands draw

    known = FigureCanvasBase.get_supported_filetypes()
    ending = os.path.splitext(path)[1].removeprefix(".").lower()
    if ending and ending not in known:
        raise ValueError(f"{option} {path}: no picture has the format {ending!r}; known: {', '.join(sorted(known))}")


def loaded(arguments: argparse.Namespace) -> tuple[Topology, Job]:
    """Return the topology, limited as the options ask, and the job. Raise one of planning.ERRORS where they are
    wrong."""
    topology = parse_topology(arguments.topology)
    if arguments.frozen_split and not arguments.job:
        job = Plan.load(arguments.frozen_split).job
    else:
        job = parse_job(arguments.job, topology)
    for node in (*job.workers, *job.parameter_servers):
        if topology.graph.degree(node):  # A node without links has no route; the strategy reports that.
            hangs_on_switches(topology, node)
    if arguments.measured is not None:
        topology = measured_in(topology, arguments.measured)
    if arguments.target is not None:
        topology = limited(topology, Limits.of_target(arguments.target))
    if arguments.max_trees is not None:
        job = replace(job, max_trees=arguments.max_trees)
    return topology, job
