"""PyTorch's own distributed suite over our backend: ranks on nodes of their own, a network of softswitch between them.

    python -m tests.outside.pytorch [--only NAME] [--as gloo|inart] [--ranks 4] [--json]

The suite is the one in the torch wheel, unchanged (tests/outside/pytorch_ranks.py says how it gets our backend). Each
test is `passed`, `skipped` (by the suite itself, with its reason) or `different`. A test that does not pass is run
again over gloo: when it does not pass there either, it is `fails with gloo, too`. The command ends with 1 when a
difference is not explained in EXPLAINED. Needs root, for network namespaces.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from typing import Any

RANKS = 4
"""PyTorch's CI uses this number, so tests that need two groups of several ranks are skipped; they run with 8."""

PASSED, SKIPPED, DIFFERENT, NEITHER = "passed", "skipped", "different", "fails with gloo, too"

_BY_NAME = 'torch.distributed.monitored_barrier asks the group for its name, and refuses every one but "gloo"'
EXPLAINED: dict[str, str] = {
    "test_get_backend": "the suite was told that the backend is gloo; dist.get_backend() says inart, as it should",
    "test_monitored_barrier_gloo": _BY_NAME,
    "test_monitored_barrier_gloo_subgroup": _BY_NAME,
    "test_monitored_barrier_failure_order": _BY_NAME,
    "test_monitored_barrier_wait_all_ranks": _BY_NAME,
}
"""Maps tests that gloo passes and our backend does not to the reason, which lies in the suite or in PyTorch."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test.

    reason: why it was skipped, or the last line of its error. through: chunks that the switch aggregated meanwhile.
    """

    name: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0
    through: int = 0


@contextmanager
def environment(named: str, ranks: int) -> Iterator[None]:
    """Set the environment that the suite reads when it is imported and that its processes inherit. named: the name of
    the backend that the suite is told. Its output goes to stderr.
    """
    with tempfile.TemporaryDirectory(prefix="inart-outside-") as folder:
        os.mkdir(f"{folder}/barrier")
        os.environ.update(BACKEND=named, WORLD_SIZE=str(ranks), TEMP_DIR=folder, OMP_NUM_THREADS="1")
        # The suite waits this long for a test before it gives it up; its own default is 300 s.
        os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "120")
        with redirect_stdout(sys.stderr):
            yield


def run_one(name: str, nodes: Any) -> Outcome:
    """Run a test over our backend, and over gloo when it fails."""
    from tests.outside import pytorch_ranks

    before, began = nodes.added(), time.monotonic()
    os.environ[pytorch_ranks.AGENTS] = " ".join(nodes.agents)
    outcome, reason = _judge(pytorch_ranks.main(name))
    if outcome == DIFFERENT and os.environ["BACKEND"] == "gloo":
        os.environ[pytorch_ranks.TRUE_GLOO] = "1"
        try:
            again, with_gloo = _judge(pytorch_ranks.main(name))
        finally:
            del os.environ[pytorch_ranks.TRUE_GLOO]
        if again != PASSED:
            outcome, reason = NEITHER, with_gloo
    return Outcome(name, outcome, reason, round(time.monotonic() - began, 1), nodes.added() - before)


def _judge(result: Any) -> tuple[str, str]:
    if result.skipped:
        return SKIPPED, result.skipped[0][1]
    if problems := [*result.failures, *result.errors]:
        return DIFFERENT, _gist(problems[0][1])
    return PASSED, ""


def _gist(traceback: str) -> str:
    """Return the first error that a rank reported, in one line; with $INART_OUTSIDE_VERBOSE the whole of it goes to
    stderr.
    """
    if os.environ.get("INART_OUTSIDE_VERBOSE"):
        print(traceback, file=sys.stderr)
    lines = [line.strip() for line in traceback.splitlines() if line.strip()]
    errors = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception")) and ":" in line]
    named = [line for line in errors if not line.startswith("RuntimeError: Process 0 exited")]
    return (named or errors or lines or ["no reason given"])[0][:300]


def suite(only: str | None, named: str = "gloo", ranks: int = RANKS, say: Any = lambda outcome: None) -> list[Outcome]:
    """Run the tests that match `only` (a name, or a pattern with * and ?; several with commas); None: all of them."""
    with environment(named, ranks):
        from tests.outside import pytorch_ranks
        from tests.outside.network import Nodes

        wanted = only.split(",") if only else ["*"]
        names = [name for name in pytorch_ranks.names() if any(fnmatch.fnmatchcase(name, one) for one in wanted)]
        if not names:
            raise SystemExit(f"the suite has no test {only}")
        outcomes = []
        with Nodes(ranks) as nodes:
            for name in names:
                outcomes.append(run_one(name, nodes))
                say(outcomes[-1])
        return outcomes


def unexplained(outcomes: list[Outcome]) -> list[Outcome]:
    """Return differences that EXPLAINED does not list."""
    return [one for one in outcomes if one.outcome == DIFFERENT and one.name not in EXPLAINED]


def report(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return the outcomes as --json prints them."""
    import torch

    found = [asdict(one) | {"why": EXPLAINED.get(one.name, "")} for one in outcomes]
    counts = Counter(one.outcome for one in outcomes)
    return {"suite": "distributed_test.py", "torch": torch.__version__, "run": len(outcomes), **counts, "tests": found}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.pytorch", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", metavar="NAME", help="a test, or a pattern with * and ?; several with commas")
    parser.add_argument("--as", dest="named", choices=("gloo", "inart"), default="gloo", help="what the suite is told")
    parser.add_argument("--ranks", type=int, default=RANKS, help=f"each on a node of its own [{RANKS}]")
    parser.add_argument("--json", action="store_true", help="one object with the outcome of every test")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("needs root: network namespaces", file=sys.stderr)
        return 2

    def say(one: Outcome) -> None:
        words = f"{one.outcome:<10} {one.seconds:6.1f} s {one.through:7d} chunks  {one.name}"
        print(words + (f": {one.reason}" if one.reason else ""), file=sys.stderr, flush=True)

    outcomes = suite(arguments.only, arguments.named, arguments.ranks, say)
    found = report(outcomes)
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        print(", ".join(f"{value} {key}" for key, value in Counter(one.outcome for one in outcomes).items()))
        for one in outcomes:
            if one.outcome == DIFFERENT:
                print(f"  {one.name}: {EXPLAINED.get(one.name, 'NOT EXPLAINED: ' + one.reason)}")
    return 1 if unexplained(outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
