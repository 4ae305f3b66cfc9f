"""Versions of a job's plan at an agent: the one that holds and, while the plan changes, the one that comes next.

A worker's is worker_versions.py, a parameter server's ps_server/versions.py; member.py tells both what the controller
says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from controlplane.common.agentconfig import AgentConfig, RepairedTree
from worker_agent.reporter import Statistics


class PlanVersions(ABC):
    """The engines of one agent. Called by one thread at a time, but for `open_chunks` and `statistics`.

    joins_late: whether it can begin with a new version while the other agents run.
    """

    joins_late = False

    @abstractmethod
    def configure(self, config: AgentConfig, interface: str) -> None:
        """Run `config` from now on, whatever ran before. Raises AgentError, ValueError, OSError."""

    @abstractmethod
    def prepare(self, config: AgentConfig, interface: str, again: bool) -> int:
        """Make ready for `config` beside what runs; a worker holds its operations from now on and says how many it has
        started. again: what runs is stopped, and a worker says which is the first operation whose result it lacks.
        Raises AgentError, ValueError, OSError."""

    def done(self) -> Sequence[int]:
        """Return, after `prepare` with `again`, the operations whose results it can give to others."""
        return ()

    @abstractmethod
    def switch_over(self, first_operation: int, given: Mapping[int, int]) -> None:
        """Switch over to what was prepared, from this operation on. given: operations whose results come from the
        worker with this number. Raises AgentError."""

    @abstractmethod
    def withdraw(self) -> None:
        """Drop what was prepared."""

    @abstractmethod
    def repaired(self, trees: Sequence[RepairedTree]) -> None:
        """Trees of what runs were led another way."""

    @abstractmethod
    def retire(self) -> None:
        """Drop what ran before the last switch-over."""

    @abstractmethod
    def stop(self, reason: str) -> None:
        """End what is under way; nothing new until `configure`."""

    @abstractmethod
    def end(self, in_order: bool) -> None:
        """Give everything back. in_order: the agent leaves a job that runs, and the others may finish."""

    @abstractmethod
    def open_chunks(self) -> Mapping[int, int]:
        """Return, by tree, its oldest chunk that is under way, where there is one. Every agent looks several times a
        second, so it must cost little. Raises AgentError: there is no engine."""

    @abstractmethod
    def statistics(self) -> Statistics:
        """Return the statistics for the controller's status. Raises AgentError: there is no engine."""
