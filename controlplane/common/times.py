"""Times as people read them; commands on a node that has no planner use them, too."""

from __future__ import annotations

import time


def clock(when: float) -> str:
    """Return a time (seconds since 1970) as people read it, in this machine's zone.

    A time that no calendar has is said in seconds.
    """
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    except (OverflowError, ValueError, OSError):
        return f"{when:g} seconds after 1970"
