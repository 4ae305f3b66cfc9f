"""torchft's own tests of process groups over ours (ProcessGroupInArt), on nodes with a switch between them.

    python -m tests.outside.torchft [--only WORD ...] [--gloo] [--json]       # as root

Its class `NormalGlooMultiPgTest`, as it is in the torchft-nightly wheel: each collective, and each again while the last
rank goes away. `--gloo`: over torchft's own group over gloo, to compare. torchft lies in the environment that
`python -m tests.outside.recipes --install` makes ($INART_OUTSIDE, or ~/.cache/inart/outside). The command ends with 1
when a test does not pass.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from typing import Any

from tests.outside import recipes

NEEDS = ("torchft", "parameterized")
SECONDS = 300


def run(words: list[str], agents: list[str]) -> list[dict[str, Any]]:
    """Run the tests whose names contain one of the words (none: all); returns what became of each.

    agents: of the ranks' nodes; none: over torchft's group over gloo. Raises RuntimeError when the tests do not run.
    """
    environment = os.environ | {
        "PYTHONPATH": str(recipes.ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    if agents:
        environment["INART_TORCHFT_AGENTS"] = " ".join(agents)
    command = [recipes.interpreter(), "-m", "tests.outside.torchft_ranks", *words]
    try:
        done = subprocess.run(
            command, env=environment, cwd=recipes.ROOT, text=True, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"torchft's tests did not end within {SECONDS} s\n{error.stdout!r}") from None
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not found:
        raise RuntimeError(f"torchft's tests: exit status {done.returncode}\n{done.stderr[-4000:]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.torchft", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="tests with one of these in their names")
    parser.add_argument("--gloo", action="store_true", help="torchft's group over gloo instead of ours")
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    arguments = parser.parse_args()
    if why := recipes.missing(*NEEDS):
        parser.error(why)
    from tests.outside.network import Nodes

    if arguments.gloo:
        found, through = run(arguments.only, []), 0
    else:
        with Nodes(3) as nodes:
            found, through = run(arguments.only, nodes.agents), nodes.added()
    counts = {kind: sum(one["outcome"] == kind for one in found) for kind in ("passed", "skipped", "different")}
    if arguments.json:
        print(json.dumps({"torchft": recipes.version("torchft-nightly"), **counts, "through": through, "tests": found}))
    else:
        for one in found:
            print(f"{one['name']}: {one['outcome']}, {one['seconds']} s {one['reason']}".rstrip())
        numbers = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        print(f"{len(found)} run, {numbers}; {through} chunks through the switch")
    return int(counts["different"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
