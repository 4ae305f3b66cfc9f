"""Reasons for which no plan uses a switch, a link or a server."""

from __future__ import annotations

from enum import StrEnum


class Why(StrEnum):
    """A reason; its value is what people read in `status`, on the page and in metrics."""

    LOST = "lost"
    """A switch that did not answer, or an agent that is gone. It is used again when it has been back for some time."""
    SILENT = "silent"
    """Packets went in and none came out. It is tried again after some time: nothing else tells whether it carries."""
    CORRUPTS = "corrupts"
    """A switch or link that has changed bits of what it carried or added. Only an operator enables it again."""
    PORT_DOWN = "port down"
    """A link, as the switch at one of its ends says."""
    OPERATOR = "operator"
    """Taken out by an order; it stays out until the next one, also when the controller starts again."""
    UNUSED = "not in the plan"
    """A server of a job that could be used, and that the plan which runs does without."""
