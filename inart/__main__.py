"""`python -m inart`: the command `inart`."""

import sys

from inart.command import main

sys.exit(main())
