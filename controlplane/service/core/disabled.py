"""Reasons for which no plan uses a switch, a link or a server."""

from __future__ import annotations

from enum import StrEnum


class Why(StrEnum):
    """Reason for which something is disabled. Its value is what people read in `status`, on the page and in metrics."""

    LOST = "lost"
    """A switch has not answered, or an agent is gone. It is used again when it has been back for some time."""
    SILENT = "silent"
    """Packets went into a switch or link, and none came out. It is tried again after some time, since nothing but
    packets can tell whether it works again."""
    CORRUPTS = "corrupts"
    """A switch or link has changed bits of what it carried or added. Only an operator enables it again."""
    PORT_DOWN = "port down"
    """A port of a link is down, as the switch there says."""
    OPERATOR = "operator"
    """An operator has disabled it. It stays disabled until an operator enables it, also when the controller is started
    again."""
    UNUSED = "not in the plan"
    """A parameter server of a job could be used, and the running plan does without it."""
