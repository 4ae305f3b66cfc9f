"""Times as people read them. Commands on a node that has no planner use this module, too."""

from __future__ import annotations

import time


def clock(when: float) -> str:
    """Return a time (seconds since 1970) as people read it, in this machine's zone; in seconds, where no calendar has
    it."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    except (OverflowError, ValueError, OSError):
        return f"{when:g} seconds after 1970"
