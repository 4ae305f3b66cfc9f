"""Readiness of an agent: whether it runs its job now, with which configuration, and if it does not, why not."""

from __future__ import annotations

import threading

from controlplane.common.agentconfig import AgentConfig
from worker_agent.errors import AgentError, NotReadyError


class Readiness:
    """The state of an agent as the controller's events change it, for threads that wait for it. It is thread-safe.

    Args:
        problem: why the agent is not ready at first, in words.
    """

    def __init__(self, problem: str) -> None:
        self._changed = threading.Condition()
        self._config: AgentConfig | None = None
        self._ready = False
        self._problem = problem
        self._stopped = ""  # why the last epoch ended
        self._failure: AgentError | None = None

    @property
    def config(self) -> AgentConfig | None:
        """The configuration that runs, or ran last; None where there was none yet."""
        return self._config

    @property
    def ready(self) -> bool:
        """Whether there is a configuration and all agents of the job are there."""
        with self._changed:
            return self._ready

    @property
    def problem(self) -> str:
        """The reason, in words, for which the agent is not ready; empty when it is."""
        with self._changed:
            return "" if self._ready else self._problem

    # -- waiting --------------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> AgentConfig:
        """Wait until the agent is ready, and return its configuration.

        Raises:
            NotReadyError: it was not ready within `timeout` seconds; the message has what is missing.
            AgentError: it never will be, for the reason that `fail` was given.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._failure is not None, timeout)
            if self._failure is not None:
                raise self._failure
            if not self._ready or self._config is None:
                raise NotReadyError(f"not ready after {round(timeout, 2):g} s: {self._problem}")
            return self._config

    def wait_change(self, seconds: float) -> None:
        """Wait until something changes, at most `seconds`. Raise AgentError once the agent cannot go on."""
        with self._changed:
            if self._failure is None:
                self._changed.wait(seconds)
            if self._failure is not None:
                raise self._failure

    # -- what happens -----------------------------------------------------------------------------------------------

    def wait_for_others(self, reason: str) -> None:
        """Take note that something is missing before the agent can begin."""
        with self._changed:
            if not self._ready:
                self._problem = f"{self._stopped}; {reason}" if self._stopped else reason
            self._changed.notify_all()

    def miss_controller(self, reason: str) -> None:
        """Take note that the controller does not answer, while a running job goes on."""
        with self._changed:
            if not self._ready:
                self._problem = reason
            self._changed.notify_all()

    def begin(self, config: AgentConfig) -> None:
        """Take note that the agent runs `config`, and all agents of the job are there."""
        with self._changed:
            self._config, self._ready, self._problem, self._stopped = config, True, "", ""
            self._changed.notify_all()

    def follow(self, config: AgentConfig) -> None:
        """Take note that the agent runs `config` from now on; this does not change whether it is ready."""
        with self._changed:
            self._config = config
            self._changed.notify_all()

    def stop(self, reason: str) -> None:
        """Take note that the epoch has ended; another may begin."""
        with self._changed:
            self._ready = False
            self._problem = self._stopped = reason
            self._changed.notify_all()

    def stop_if_ready(self, reason: str) -> bool:
        """Do as `stop`, if the agent is ready, and return whether it was."""
        with self._changed:
            if not self._ready:
                return False
            self.stop(reason)
            return True

    def close(self, reason: str) -> None:
        """Take note that the agent is closed, and is not ready for that reason."""
        with self._changed:
            self._ready, self._problem = False, reason
            self._changed.notify_all()

    def fail(self, error: AgentError) -> None:
        """Fail for ever: every waiting thread gets this error."""
        with self._changed:
            self._ready, self._failure, self._problem = False, error, str(error)
            self._changed.notify_all()

    def abandon(self, reason: str) -> None:
        """Fail, as `fail` does, in a forked process. The lock is replaced, because another thread of the parent may
        hold it.
        """
        self._changed = threading.Condition()
        self._ready, self._problem, self._failure = False, reason, AgentError(reason)
