"""``python -m softswitch.tests.conformance FOLDER``: run every NAME.p4 with a NAME.stf in a folder, say how it went."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from softswitch.tests.conformance.samples import FAIL, PASS, STANDARD, UNSUPPORTED, Result, find, run_sample
from softswitch.tests.conformance.targets import TARGETS
from softswitch.tests.support.switches import missing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m softswitch.tests.conformance", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the samples are")
    parser.add_argument("--target", choices=sorted(TARGETS), default="softswitch", help="default: softswitch")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="names to run, with * and ?")
    parser.add_argument("--std", choices=("p4-14", "p4-16"), default=STANDARD, help="language of the samples (p4-16)")
    parser.add_argument("--jobs", type=int, default=2, help="samples at once (2)")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    options = parser.parse_args()
    reason = missing(options.target)
    if reason:
        print(reason, file=sys.stderr)
        return 2
    samples = [s for s in find(options.folder) if fnmatch.fnmatch(s.name, options.only)]
    if not samples:
        print(f"no NAME.p4 with a NAME.stf in {options.folder}", file=sys.stderr)
        return 2
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        results: list[Result] = []
        width = max(len(s.name) for s in samples)
        for result in pool.map(run_sample, samples, repeat(options.target), repeat(options.std)):
            results.append(result)
            if not options.json:
                print(f"{result.name:{width}}  {result.outcome:11}  {result.reason}", flush=True)
    counts = Counter(r.outcome for r in results)
    if options.json:
        summary = {outcome: counts[outcome] for outcome in (PASS, FAIL, UNSUPPORTED)}
        details = [dataclasses.asdict(r) for r in results]
        print(json.dumps({"target": options.target, **summary, "samples": details}, indent=1))
    else:
        print(f"{len(results)} samples: " + ", ".join(f"{counts[o]} {o}" for o in (PASS, FAIL, UNSUPPORTED)))
    return 1 if counts[FAIL] else 0


if __name__ == "__main__":
    raise SystemExit(main())
