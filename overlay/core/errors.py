"""What can go wrong in an overlay."""


class OverlayError(Exception):
    """A synchronisation could not be done. The message says why and who."""


class Late(OverlayError, TimeoutError):
    """A synchronisation was not done in the time that the trainer gave it. The message says who is missing."""


class PeerLost(OverlayError):
    """An agent or a connection that the synchronisation needed is gone."""


class MessageError(OverlayError):
    """A peer sent what is no message of ours; its connection is closed."""
