"""Runs the command `inart` as `python -m inart`."""

import sys

from inart.command import main

sys.exit(main())
