"""The errors that the overlay raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controlplane.planner.strategies.wan.site_contents import Contents


class OverlayError(Exception):
    """A synchronisation failed. The message says why, and which agent is concerned."""


class NameTaken(OverlayError):
    """The coordinator refused an agent, since another one of its name is there, which may have ended without a word."""


class Late(OverlayError, TimeoutError):
    """A synchronisation did not end within the trainer's timeout. The message names the agents whose values are
    missing.
    """


class PeerLost(OverlayError):
    """An agent that the synchronisation needs, or the connection to it, is lost."""


class Behind(OverlayError):
    """The other sites have done the round that this site submitted values for: the site needs their state to go on.

    Attributes:
        round: the round that the other sites have reached.
    """

    def __init__(self, message: str, round_: int) -> None:
        super().__init__(message)
        self.round = round_


class Unfit(OverlayError):
    """The values of this site do not fit those of the other sites: they are to be submitted again.

    Attributes:
        contents: the contents that they are to have.
    """

    def __init__(self, message: str, contents: Contents) -> None:
        super().__init__(message)
        self.contents = contents


class Differs(OverlayError):
    """Another site trains something else than this one.

    Attributes:
        site: the other site.
        theirs: its description of that; "" if it is not known.
    """

    def __init__(self, message: str, site: str, theirs: str) -> None:
        super().__init__(message)
        self.site, self.theirs = site, theirs


class MessageError(OverlayError):
    """A peer sent bytes that are not a valid message of the overlay; its connection is closed."""
