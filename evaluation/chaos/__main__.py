"""Entry point of `python -m evaluation.chaos` (see `fabric`)."""

from __future__ import annotations

import sys

from evaluation.chaos.fabric import Fabric
from evaluation.chaos.harness import main

if __name__ == "__main__":
    sys.exit(main(Fabric))
