"""Records bmv2's answers to one random configuration with a few frames for each program of this repository. ``python -m
tests.fuzz.record`` writes them to ``recorded/``; ``test_fuzz.py`` compares softswitch with them without bmv2.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from softswitch.tests.support.switches import missing
from tests.fuzz import undefined
from tests.fuzz.case import write
from tests.fuzz.differential import Program, Unusable, compare, programs

RECORDED = Path(__file__).with_name("recorded")
FRAMES = 24
ATTEMPTS = 6  # Number of random configurations that are tried until one leads to answers on a port.


def record(path: Path, seed: int) -> str:
    """Record one program and return a line that says how it went."""
    program = Program(path, seed)
    for number in range(ATTEMPTS):
        case = program.case(number, FRAMES)
        try:
            found = compare(case)
        except Unusable as error:
            return f"not recorded: {error}"
        if found.what:
            return f"differs: {found.what}"
        if any(found.bmv2.values()):
            write(RECORDED / f"{path.stem}.stf", case, found.bmv2, [])
            return f"{len(case.statements)} statements, {len(case.frames)} frames"
    return "not recorded: no frame leaves"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.record", description=__doc__)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of programs, with * and ?")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    reason = missing("bmv2") or missing("softswitch")
    if reason:
        print(reason, file=sys.stderr)
        return 2
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    failed = False
    with undefined.counted():
        for path in programs(argparse.Namespace(program=[], samples=None, only=options.only)):
            outcome = record(path, options.seed)
            print(f"{path.stem}: {outcome}", flush=True)
            failed = failed or outcome.startswith("differs")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
