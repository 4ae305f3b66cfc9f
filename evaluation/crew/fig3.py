"""CREW's Fig. 3 with real training: `python -m evaluation.crew fig3`. Accuracy over rounds, and rounds to it over x.

Each run is a process (evaluation/crew/accuracy.py); several run at a time since they mostly wait; each writes its
result to a file as soon as it ends. The same command again does the runs that are missing, so it may be stopped, or
done in parts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from evaluation import commands
from evaluation.crew.accuracy import COMPUTE_SECONDS, Run, Trained, trained
from evaluation.wan.report import Row, table

PAPERS_X = (0.5, 1.0, 2.0, 4.0)
IMAGES = {"iid": True, "non-iid": False}
TARGET = 0.95
"""Accuracy of all workers that ends a run."""
LIMIT_SECONDS = 900.0
"""Seconds after which a run ends without reaching it."""
EVERY = 30.0  # seconds between progress lines


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = commands.parser(
        "crew fig3",
        """Real training: accuracy over rounds of partial reduces, and rounds to an accuracy over how long
they take. Results are files in a folder; what is there already is not run again.""",
    )
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument(
        "--folder", type=Path, default=Path("results/crew-fig3"), help="folder of the results, one JSON file per run"
    )
    parser.add_argument("--x", type=float, nargs="+", default=list(PAPERS_X), help="mean seconds of a partial reduce")
    parser.add_argument("--p", type=int, nargs="+", default=[2, 4], help="workers per group")
    parser.add_argument(
        "--images", choices=tuple(IMAGES), nargs="+", default=list(IMAGES), help="how images are dealt to workers"
    )
    parser.add_argument("--compute", type=float, nargs="+", default=[COMPUTE_SECONDS], help="mean seconds of computing")
    parser.add_argument("--trials", type=int, default=3, help="seeds per setting")
    parser.add_argument("--at-once", type=int, default=4, help="runs at the same time (half a core each at x = 1)")
    parser.add_argument("--read", action="store_true", help="run nothing, show the results in the folder")
    parser.add_argument("--json", action="store_true", help="print the table's rows as JSON")
    parser.add_argument("--plot", metavar="FILE", help="also draw (png, pdf or svg, by the name)")
    return parser


def main(argv: Sequence[str]) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if min(arguments.trials, arguments.at_once) < 1 or min(*arguments.x, *arguments.compute) < 0:
        parser.error("--trials and --at-once must be at least 1, --x and --compute at least 0")
    if not all(1 <= p <= 8 for p in arguments.p):
        parser.error("--p must be 1 .. 8, as there are 8 workers")
    runs = [
        Run(IMAGES[images], p, x, seed, TARGET, LIMIT_SECONDS, compute)
        for images, p, compute, x, seed in product(
            arguments.images, arguments.p, arguments.compute, arguments.x, range(arguments.trials)
        )
    ]
    runs.sort(key=lambda run: (run.alike, run.p, -run.x))  # The longest runs begin first.
    failed = 0
    if not arguments.read:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        missing = [run for run in runs if not file_of(arguments.folder, run).exists()]
        failed = carry_out(missing, arguments.folder, arguments.at_once)
    found = [_load(path) for path in (file_of(arguments.folder, run) for run in runs) if path.exists()]
    if not found:
        print(f"nothing of this in {arguments.folder}", file=sys.stderr)
        return 1
    rows = summary(found)
    print(json.dumps(rows, indent=1) if arguments.json else table(rows))
    if arguments.plot:
        Path(arguments.plot).parent.mkdir(parents=True, exist_ok=True)
        draw(found, arguments.plot)
    if len(found) < len(runs):
        print(f"{len(runs) - len(found)} of {len(runs)} runs are not there", file=sys.stderr)
    return int(failed > 0)


def _name(run: Run) -> str:
    images = "iid" if run.alike else "non-iid"
    return f"{images}-p{run.p}-x{run.x:g}-compute{run.compute_s:g}-to{run.target:g}-seed{run.seed}"


def file_of(folder: Path, run: Run) -> Path:
    return folder / f"{_name(run)}.json"


def _load(path: Path) -> Trained:
    content = json.loads(path.read_text())
    return Trained(**{**content, "run": Run(**content["run"])})


def carry_out(runs: Sequence[Run], folder: Path, at_once: int) -> int:
    """Write the results of the runs, and return how many failed. Progress goes to stderr."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "sklearn.datasets", "evaluation.wan.learning"])
    begin, failed = time.monotonic(), 0
    with ProcessPoolExecutor(at_once, mp_context=context, max_tasks_per_child=1) as pool:
        left: dict[Future[Trained], Run] = {pool.submit(trained, run): run for run in runs}
        while left:
            done, _ = wait(left, timeout=EVERY, return_when=FIRST_COMPLETED)
            for future in done:
                run = left.pop(future)
                try:
                    result = future.result()
                except Exception as error:
                    failed += 1
                    _say(f"{_name(run)}: {type(error).__name__}: {error}")
                    continue
                path = file_of(folder, run)
                part = path.with_suffix(".part")
                part.write_text(json.dumps(asdict(result)))
                part.replace(path)
                rounds = ", ".join("-" if each is None else str(each) for each in result.rounds)
                _say(f"{_name(run)}: rounds {rounds}; {result.seconds:.0f} s, CPU {result.cpu_idle:.0%} idle")
            _say(f"{len(runs) - len(left)} of {len(runs)} runs, {time.monotonic() - begin:.0f} s")
    return failed


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _settings(found: Iterable[Trained]) -> dict[tuple[bool, int, float, float], list[Trained]]:
    """Group the results by images, p, seconds of computing and x, in order."""
    out: dict[tuple[bool, int, float, float], list[Trained]] = {}
    for each in sorted(found, key=lambda t: (not t.run.alike, t.run.p, t.run.compute_s, t.run.x, t.run.seed)):
        out.setdefault((each.run.alike, each.run.p, each.run.compute_s, each.run.x), []).append(each)
    return out


def summary(found: Iterable[Trained]) -> list[Row]:
    """Return the rows of the table, in which

    rounds         rounds of a worker to the accuracy, mean over workers and seeds; low and high are their extremes
    of_seeds       each seed's mean
    not_reached    number of workers that did not reach the accuracy
    seconds        time until all workers did, over the seeds
    again          fraction of groups that were also the last group of all their members; of random groups it is
                   1/7 with p = 2, and 1/35 with 4
    alone          rounds without a group, because the machine was too busy
    cpu_idle       the least of the seeds
    """
    rows: list[Row] = []
    for (alike, p, compute, x), trials in _settings(found).items():
        rounds = [each for one in trials for each in one.rounds]
        reached = [each for each in rounds if each is not None]
        means = [_mean(one.rounds) for one in trials]
        seconds = [one.seconds for one in trials]
        rows.append(
            {"images": "IID" if alike else "non-IID", "p": p, "compute_s": compute, "x_s": x,
             "rounds": _mean(rounds), "low": min(reached, default=0), "high": max(reached, default=0),
             "of_seeds": ", ".join(f"{mean:.0f}" for mean in means), "not_reached": len(rounds) - len(reached),
             "seconds": float(np.mean(seconds)), "s_low": min(seconds), "s_high": max(seconds),
             "again": float(np.mean([again(one.groups) for one in trials])),
             "alone": sum(one.alone for one in trials), "cpu_idle": min(one.cpu_idle for one in trials),
             "seeds": len(trials)}
        )  # fmt: skip
    return rows


def _mean(rounds: Iterable[int | None]) -> float:
    """Return the mean of the known rounds; NaN without any."""
    known = [each for each in rounds if each is not None]
    return float(np.mean(known)) if known else float("nan")


def again(groups: Iterable[tuple[int, ...]]) -> float:
    """Return the fraction of groups that were also the last group of all their members, among the groups whose members
    had been in one before.
    """
    last: dict[int, tuple[int, ...]] = {}
    found = []
    for group in groups:
        if all(k in last for k in group):
            found.append(all(last[k] == group for k in group))
        last.update(dict.fromkeys(group, group))
    return float(np.mean(found)) if found else 0.0


def draw(found: Iterable[Trained], path: str) -> None:
    """Draw the workers' mean accuracy over rounds above, and rounds to the target over x below.

    The curve above goes as far as all workers and seeds went. The points below are means over workers and seeds; their
    bars go from the fastest to the slowest worker.
    """
    settings = _settings(found)
    xs = sorted({x for *_, x in settings})
    lines = sorted({(compute, p) for _, p, compute, _ in settings})
    several = len({compute for compute, _ in lines}) > 1
    names = [f"p {p}" + (f", computing {compute:g} s" if several else "") for compute, p in lines]
    target = next(iter(settings.values()))[0].run.target
    drawn = commands.drawing(path, 2, 2, dpi=110, figsize=(10, 7.5), layout="constrained", sharey="row")
    with drawn as (figure, grid):
        for column, alike in enumerate((True, False)):
            above, below = grid[:, column]
            for k, ((compute, p), name) in enumerate(zip(lines, names, strict=True)):
                style = ("-", "--", ":", "-.")[k % 4]
                own = {x: settings[alike, p, compute, x] for x in xs if (alike, p, compute, x) in settings}
                for x, trials in own.items():
                    means = accuracy_by_round(trials)
                    above.plot(
                        range(1, len(means) + 1), means, style, color=f"C{xs.index(x)}", linewidth=1.2,
                        label=f"{name}, x {x:g} s",
                    )  # fmt: skip
                if own:
                    rows = summary(each for trials in own.values() for each in trials)
                    means = [row["rounds"] for row in rows]
                    spread = [
                        [row["rounds"] - row["low"] for row in rows],
                        [row["high"] - row["rounds"] for row in rows],
                    ]
                    below.errorbar(
                        [xs.index(row["x_s"]) + 0.06 * k for row in rows], means, yerr=spread, linestyle=style,
                        marker="os^d"[k % 4], capsize=3, color=str(0.22 * (k % 4)), label=name,
                    )  # fmt: skip
            above.axhline(target, color="grey", linewidth=0.8)
            above.set_title("IID" if alike else "non-IID (by label, two parts of 16 a worker)")
            above.set(xlabel="rounds of a worker", ylim=(0, 1))
            below.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
            below.set(xlabel="x: mean seconds of a partial reduce")
            above.xaxis.get_major_locator().set_params(integer=True)
        grid[0, 0].set_ylabel("accuracy, mean of 8 workers")
        grid[1, 0].set_ylim(bottom=0)
        grid[1, 0].set_ylabel(f"rounds to {target:g}")
        curves, points = (
            max((axes.get_legend_handles_labels() for axes in row), key=lambda h: len(h[1])) for row in grid
        )
        figure.legend(*curves, fontsize="small", ncols=4, loc="outside upper center")
        grid[1, 0].legend(*points, fontsize="small", loc="upper left")


def accuracy_by_round(trials: Iterable[Trained]) -> list[float]:
    """Return the mean over workers and seeds after each round that all of them have done."""
    every = [own for one in trials for own in one.accuracies]
    return [float(np.mean(each)) for each in zip(*every, strict=False)]
