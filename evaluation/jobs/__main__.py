"""Measures many jobs on one network.

python -m evaluation.jobs stream    completion times of a stream of jobs, under several ways to share
python -m evaluation.jobs failover  the cost of killing a switch in the middle of an all-reduce
"""

import importlib
import sys
from collections.abc import Sequence

COMMANDS = ("stream", "failover")


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if not words or words[0] not in COMMANDS:
        print(f"evaluation.jobs: say what: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"evaluation.jobs.{words[0]}").main(words[1:]))


if __name__ == "__main__":
    sys.exit(main())
