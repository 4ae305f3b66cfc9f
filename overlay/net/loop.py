"""The event loop of agents and coordinators: uvloop's where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio

try:
    import uvloop
except ImportError:  # it is optional: pip install 'inart[overlay]'
    uvloop = None


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop that does not run yet, for a thread of the caller's."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()
