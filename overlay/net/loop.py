"""The event loop of agents and coordinators (uvloop's where it is installed, else asyncio's), and where they listen."""

from __future__ import annotations

import asyncio
from typing import Any

from controlplane.common import dual_stack

try:
    import uvloop
except ImportError:  # it is optional: pip install 'inart[overlay]'
    uvloop = None


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop that does not run yet, for a thread of the caller's."""
    if uvloop is not None:
        return uvloop.new_event_loop()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(report_unless_lost_twice)
    return loop


def listening_at(host: str, port: int) -> dict[str, Any]:
    """Return the arguments with which asyncio's servers listen at this address. "::" stands for all addresses, IPv4
    ones included, and asyncio alone would refuse those. Raise OSError where the port is not free.
    """
    return {"sock": dual_stack.listener(port)} if host == dual_stack.ALL else {"host": host, "port": port}


def report_unless_lost_twice(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an exception in a callback as asyncio does by itself, except for one that is asyncio's own fault.

    Its transport for sockets (Python 3.11, selector_events.py, _write_ready) ends a connection twice where the peer
    resets it while TLS writes what had waited; the second time there is no socket left, which is an AttributeError. The
    connection's protocol has been told by then.
    """
    twice = "_call_connection_lost" in repr(context.get("handle"))
    if not (twice and isinstance(context.get("exception"), AttributeError)):
        loop.default_exception_handler(context)
