"""The errors that the overlay raises."""


class OverlayError(Exception):
    """A synchronisation failed. The message says why, and which agent is concerned."""


class Late(OverlayError, TimeoutError):
    """A synchronisation did not end within the trainer's timeout. The message names the agents that are missing."""


class PeerLost(OverlayError):
    """An agent, or the connection to an agent, that the synchronisation needed is gone."""


class MessageError(OverlayError):
    """A peer sent bytes that are not a valid message of the overlay; its connection is closed."""
