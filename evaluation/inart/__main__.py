"""Computes the InArt paper's figures, and measures how good and how fast our planner is. The words for it are

figure NUMBER, all   the table and the plot of a figure of the paper
headline             the paper's claims with ours beside them
times                seconds of a whole plan at k = 6, 8, 16 and the sizes of the programs
bounds               `inart` against its bounds, links slack and binding, over several seeds
instances            `inart` on --count drawn networks from --seed on, checked by code of its own, beside what hosts
                     reach alone and the bounds; with --kinds small networks of 24 kinds
steady               whether --count networks of 24 kinds from --seed on get the same plans beside two busy processes
trees                `inart` with one, two, .. trees on --count small networks from --seed on, beside `exact`
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from controlplane.common import command_line
from evaluation import commands
from evaluation.inart import few, instances, steady
from evaluation.inart.figures import FIGURES, Figure, Panel
from evaluation.inart.headline import headline
from evaluation.inart.sweep import SCENARIOS, Sweep
from evaluation.inart.times import (
    WORKERS_AND_SERVERS,
    binding_line,
    measure_binding,
    measure_times,
    time_line,
    times_json,
)


def point_text(mean: float, spread: float) -> str:
    """Return a column of the table; a spread that is only rounding is shown as 0."""
    return f"{mean:>10.4g} ± {spread if spread > 1e-9 * mean else 0:<5.2g}"


def print_figure(figure: Figure, panels: list[Panel]) -> None:
    print(f"Fig. {figure.number}: {figure.title}")
    for panel in panels:
        print(f"\n  {panel.title} ({panel.y_label}, mean and standard deviation)")
        print(f"  {panel.x_label:<14}" + "".join(f"{x:>18}" for x in panel.x))
        for strategy, points in panel.series.items():
            print(f"  {strategy:<14}" + "".join(point_text(mean, spread) for mean, spread in points))
    print()
    for where, printed in figure.paper.items():
        print(f"  paper, {where}: {printed}")
    print(f"  {figure.why}\n")


def plot_figure(figure: Figure, panels: list[Panel], path: Path) -> None:
    with commands.drawing(path, 1, len(panels), dpi=130, figsize=(5.5 * len(panels), 4), layout="constrained") as (
        drawn,
        axes,
    ):
        for axis, panel in zip(axes[0], panels, strict=True):
            width = 0.8 / len(panel.series)
            for i, (strategy, values) in enumerate(panel.series.items()):
                means, spreads = [v[0] for v in values], [v[1] for v in values]
                if panel.x_label == "model":
                    places = [x + (i - len(panel.series) / 2 + 0.5) * width for x in range(len(panel.x))]
                    axis.bar(places, means, width, yerr=spreads, label=strategy)
                else:
                    axis.errorbar(range(len(panel.x)), means, yerr=spreads, marker="o", capsize=3, label=strategy)
            axis.set_xticks(range(len(panel.x)), panel.x)
            axis.set_xlabel(panel.x_label)
            axis.set_ylabel(panel.y_label)
            axis.set_title(panel.title)
            axis.set_ylim(bottom=0)
        axes[0][0].legend(fontsize=7)
        drawn.suptitle(f"Fig. {figure.number}: {figure.title}")


def print_bounds(arguments: argparse.Namespace) -> None:
    found = []
    for divisor in arguments.divisors:
        for scenario in SCENARIOS:
            for seed in range(arguments.seeds):
                found.append(measure_binding(arguments.k, divisor, scenario, seed))
                if not arguments.json:
                    print(binding_line(found[-1]), flush=True)
    if arguments.json:
        print(json.dumps([asdict(each) for each in found], indent=2))
    else:
        worst = max(found, key=lambda each: each.gap)
        print(f"largest gap: {100 * worst.gap:.3f} % (links/{worst.divisor:g}, {worst.scenario}, seed {worst.seed})")


def print_instances(arguments: argparse.Namespace) -> None:
    found = []
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    for each in instances.measured(seeds, arguments.keep, of_kinds=arguments.kinds):
        found.append(each)
        if not arguments.json:
            print(instances.line(found[-1]), flush=True)
    if arguments.json:
        print(json.dumps([each.to_json() for each in found]))
    else:
        print("\n".join(instances.distribution(found)))


def print_steady(arguments: argparse.Namespace) -> None:
    found = list(steady.compared(range(arguments.seed, arguments.seed + arguments.count)))
    if arguments.json:
        print(json.dumps([{"seed": seed, "idle": idle, "busy": busy} for seed, idle, busy in found]))
        return
    for seed, idle, busy in found:
        print(f"{seed:>4} {idle} {'the same' if idle == busy else busy} beside busy processes")
    print(f"different: {[seed for seed, idle, busy in found if idle != busy]} of {len(found)} networks")


def print_times(arguments: argparse.Namespace) -> None:
    timings = measure_times(arguments.seeds, None if arguments.json else lambda t: print(time_line(t), flush=True))
    if arguments.json:
        print(json.dumps(times_json(timings), indent=2))


def print_few(arguments: argparse.Namespace) -> None:
    found = []
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        found.append(few.measure(seed))
        if not arguments.json:
            print(few.line(found[-1]), flush=True)
    if arguments.json:
        print(json.dumps([asdict(each) for each in found]))
    else:
        print("\n".join(few.summary(found)))


PRINTED = {
    "times": print_times,
    "bounds": print_bounds,
    "instances": print_instances,
    "steady": print_steady,
    "trees": print_few,
}
"""Functions of the commands that draw nothing."""


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = commands.parser("inart", __doc__)
    parser.add_argument("command", choices=("figure", "all", "headline", *PRINTED))
    parser.add_argument("number", nargs="?", type=int, choices=sorted(FIGURES), help="with figure: which")
    parser.add_argument(
        "--seeds", type=int, default=30, help="instances per point (default: %(default)s, as the paper; times: runs)"
    )
    parser.add_argument(
        "--k", type=int, default=6, choices=sorted(WORKERS_AND_SERVERS), help="with bounds (default: %(default)s)"
    )
    parser.add_argument(
        "--divisors",
        type=float,
        nargs="+",
        default=[1, 2, 4, 8],
        metavar="D",
        help="with bounds: links between switches divided by these (default: 1 2 4 8)",
    )
    parser.add_argument(
        "--count", type=int, default=300, help="with instances, steady, trees: how many (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="with instances, steady, trees: of the first (default: %(default)s)"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="with instances: where each is written; what is there is not run again",
    )
    parser.add_argument("--kinds", action="store_true", help="with instances: small networks of 24 kinds")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--output", type=Path, default=Path("results/inart"), help="where plots and plans are kept")
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.seeds < 1 or arguments.count < 1 or (arguments.command == "figure" and arguments.number is None):
        parser.error("figure needs a number, and --seeds and --count at least 1")
    if arguments.command in PRINTED:
        PRINTED[arguments.command](arguments)
        return 0
    sweep = Sweep(arguments.output, arguments.jobs)
    if arguments.command == "headline":
        content = headline(sweep, arguments.seeds)
        if arguments.json:
            print(json.dumps(content, indent=2))
            return 0
        for claim in content["claims"]:
            print(claim["claim"])
            for who in ("paper", "ours"):
                print(f"  {who:<6}" + ", ".join(f"{name} {value:.4g}" for name, value in claim[who].items()))
            if "bound_mbps" in claim:
                print(f"  bound {claim['bound_mbps']:.4g}")
        return 0
    for number in sorted(FIGURES) if arguments.command == "all" else [arguments.number]:
        figure = FIGURES[number]
        panels = figure.panels(sweep, arguments.seeds)
        path = arguments.output / f"figure{number}.png"
        plot_figure(figure, panels, path)
        if arguments.json:
            series = [{"title": p.title, "x": p.x, "y": p.y_label, "series": p.series} for p in panels]
            print(json.dumps({"figure": number, "title": figure.title, "panels": series, "paper": figure.paper}))
        else:
            print_figure(figure, panels)
            print(f"  drawn: {path}\n", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        command_line.end_output()
