"""How many examples hypothesis draws for a property, and which.

`make test` tries a part of them, the same in every run: what it says depends on the code alone. `make nightly` sets
INART_EXAMPLES, and tries many, others in every run.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

DEFAULT_PART = 0.2
"""The part of its examples that `make test` tries a property on; each example of a planner's property takes up to a
second of CPU time."""
FEWEST = 5


def chosen_part() -> float | None:
    """Return what $INART_EXAMPLES multiplies numbers of examples by; None if it is not set."""
    text = os.environ.get("INART_EXAMPLES")
    return None if text is None else float(text)


def examples(usual: int) -> int:
    """Return the number of examples of a property: `usual` times $INART_EXAMPLES, or a part of `usual`."""
    part = chosen_part()
    return max(FEWEST, round(usual * (DEFAULT_PART if part is None else part)))


def nightly(*values: object) -> Any:
    """Return the values of a parametrized case of which `make test` runs a like one: this one is for `make nightly`."""
    return pytest.param(*values, marks=pytest.mark.nightly)
