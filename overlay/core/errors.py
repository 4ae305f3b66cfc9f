"""The errors that the overlay raises."""


class OverlayError(Exception):
    """A synchronisation failed. The message says why, and which agent is concerned."""


class Late(OverlayError, TimeoutError):
    """A synchronisation did not end within the trainer's timeout. The message names the agents that are missing."""


class PeerLost(OverlayError):
    """An agent, or the connection to an agent, that the synchronisation needed is gone."""


class Behind(OverlayError):
    """Other sites have done the round that this site submitted values for: it needs their state before it goes on.

    round: the one that the others have reached.
    """

    def __init__(self, message: str, round_: int) -> None:
        super().__init__(message)
        self.round = round_


class MessageError(OverlayError):
    """A peer sent bytes that are not a valid message of the overlay; its connection is closed."""
