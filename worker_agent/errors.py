"""What can go wrong with an all-reduce."""

from __future__ import annotations


class AgentError(RuntimeError):
    """An agent cannot do what was asked: base of the errors below."""


class AllReduceError(AgentError):
    """An all-reduce failed; its tensor's content is undefined. The engine refuses work until it is configured again."""


class MismatchError(AllReduceError):
    """The workers did not submit the same operation: sizes, dtypes or sum/mean differ."""


class ProgressTimeoutError(AllReduceError, TimeoutError):
    """No answer came on a tree for the engine's timeout; the message names tree, root and chunk."""


class AbortedError(AllReduceError):
    """The operation was ended from outside (a peer is gone, new configuration, engine closed); the message says why."""


class NotReadyError(AgentError, TimeoutError):
    """The job cannot start, or go on, yet: the message says which nodes or whose answer is missing."""


class ClaimedError(AgentError):
    """This node's agent runs already, in another process, which the message names."""
