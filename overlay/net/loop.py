"""The event loop of agents and coordinators: uvloop's where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio

try:
    import uvloop
except ImportError:  # an option: pip install 'inart[overlay]'
    uvloop = None


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Not running, of the calling thread's to be."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()
