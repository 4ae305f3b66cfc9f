"""Versions of a job's plan at an agent: the current one and, while the plan changes, the next one.

A worker's versions are in worker_versions.py, a parameter server's in ps_server/versions.py; member.py passes the
controller's messages on to both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from controlplane.common.agentconfig import AgentConfig, ReroutedTree
from worker_agent.reporter import Statistics


class PlanVersions(ABC):
    """The engines of one agent, by versions of the plan.

    All methods are called by one thread at a time, except `open_chunks` and `statistics`.

    Attributes:
        joins_late: whether the agent can begin with a new version while the other agents run.
    """

    joins_late = False

    @abstractmethod
    def configure(self, config: AgentConfig, interface: str) -> None:
        """Run `config` from now on, whatever ran before. Raise AgentError, ValueError or OSError where that fails."""

    @abstractmethod
    def prepare(self, config: AgentConfig, interface: str, again: bool) -> int:
        """Make ready for `config` beside the version that runs, and return an operation's number.

        A worker holds its operations back from now on, and returns how many it has started. With `again` the running
        version is stopped, and a worker returns the first operation whose result it lacks. Raise AgentError, ValueError
        or OSError where `config` cannot run.
        """

    def done(self) -> Sequence[int]:
        """Return, after `prepare` with `again`, the operations whose results this agent can give to others."""
        return ()

    @abstractmethod
    def switch_over(self, first_operation: int, given: Mapping[int, int]) -> None:
        """Switch over to the prepared version. Raise AgentError where that is impossible.

        Args:
            first_operation: the first operation that runs under the new version.
            given: for each operation whose result one worker gives to the others, that worker's number.
        """

    @abstractmethod
    def withdraw(self) -> None:
        """Drop the prepared version."""

    @abstractmethod
    def rerouted(self, trees: Sequence[ReroutedTree]) -> None:
        """Take note that trees of the running version were rerouted."""

    @abstractmethod
    def retire(self) -> None:
        """Drop the version that ran before the last switch-over."""

    @abstractmethod
    def stop(self, reason: str) -> None:
        """End all operations in progress with `reason`; there are no new ones until `configure`."""

    @abstractmethod
    def end(self, in_order: bool) -> None:
        """End the engines. `in_order` means that the agent leaves a running job, and the other agents may finish their
        operations.
        """

    @abstractmethod
    def open_chunks(self) -> Mapping[int, int]:
        """Return, for each tree with chunks in progress, the oldest of them.

        Every agent calls this several times a second, so it must cost little. Raise AgentError where there is no
        engine.
        """

    @abstractmethod
    def statistics(self) -> Statistics:
        """Return the statistics for the controller's status. Raise AgentError where there is no engine."""
