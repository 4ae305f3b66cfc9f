"""The errors of an all-reduce."""

from __future__ import annotations


class AgentError(RuntimeError):
    """An agent cannot do what was requested; this is the base of the errors below."""


class AllReduceError(AgentError):
    """An all-reduce failed; the content of its tensor is undefined.

    The engine refuses operations until it is configured again.
    """


class MismatchError(AllReduceError):
    """The workers did not submit the same operation: sizes, dtypes or operators differ."""


class ProgressTimeoutError(AllReduceError, TimeoutError):
    """No answer came on a tree within the engine's timeout; the message names tree, root and chunk."""


class AbortedError(AllReduceError):
    """The operation was ended from outside (a peer is lost, a new configuration, the engine is closed); the message
    says why.
    """


class ExhaustedError(AbortedError):
    """The sequence numbers of the epoch are used up: the operation was not started, and a new epoch begins."""


class NotReadyError(AgentError, TimeoutError):
    """The job cannot start, or continue, yet; the message says which nodes or whose answer is missing."""


class ClaimedError(AgentError):
    """Another process, which the message names, is already this node's agent."""
