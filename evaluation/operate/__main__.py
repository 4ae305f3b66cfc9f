"""Entry point of `python -m evaluation.operate` (see `run`)."""

from __future__ import annotations

import sys

from evaluation.chaos.harness import main
from evaluation.operate.run import OperatorsDay

if __name__ == "__main__":
    sys.exit(main(OperatorsDay))
