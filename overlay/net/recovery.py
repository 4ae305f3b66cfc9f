"""Recovers the running tasks of a coordinator that has ended: the restarted one learns them from the agents.

A coordinator stores nothing for that (CREW paper, IV-B: the controller is stateless), because the agents have the
running tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.planner.plan.task import Task

NUMBERS_PER_COORDINATOR = 1 << 16
"""A restarted coordinator numbers its tasks from the next multiple of this on, so that no number is used twice."""


@dataclass(frozen=True)
class AgentState:
    """The state that an agent tells when it joins.

    Attributes:
        epoch: epoch of the coordinator that the agent followed last; 0 where none has told it anything yet.
        newest: the highest number of a task that the agent was told of.
        running: by number, the task and whether the agent has every result that it is to get of it.
        ended: for each task that is over, whether it was done (else it was given up).
    """

    epoch: int
    newest: int
    running: Mapping[int, tuple[Task, bool]]
    ended: Mapping[int, bool]

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> AgentState:
        """Return the state in the message "join". Raise ValueError, KeyError or TypeError for one that is not well
        formed.
        """
        tasks = [(Task.from_json(each["task"]), bool(each["finished"])) for each in message.get("running", ())]
        return cls(
            int(message.get("epoch", 0)),
            int(message.get("newest", 0)),
            {task.number: (task, finished) for task, finished in tasks},
            {int(number): bool(done) for number, done in message.get("ended", ())},
        )


@dataclass(frozen=True)
class RecoveredTasks:
    """The tasks of the earlier coordinator, as its agents report them.

    Attributes:
        epoch: the earlier coordinator's epoch.
        number: new tasks are numbered above this.
        tasks: by number, each task under way and the agents that still wait for results of it.
        done, given_up: tasks that are over at some agents, which the other agents do not know yet.
    """

    epoch: int
    number: int
    tasks: Mapping[int, tuple[Task, frozenset[str]]]
    done: Mapping[int, Task]
    given_up: Mapping[int, Task]


def first_number(newest: int) -> int:
    """Return the multiple of NUMBERS_PER_COORDINATOR above the number of the newest task."""
    return (newest // NUMBERS_PER_COORDINATOR + 1) * NUMBERS_PER_COORDINATOR


def recover_tasks(states: Mapping[str, AgentState]) -> RecoveredTasks | None:
    """Return the tasks of the coordinator that these agents followed; None if they followed several, or none."""
    epochs = {state.epoch for state in states.values() if state.epoch}
    if len(epochs) != 1:
        return None
    tasks: dict[int, tuple[Task, frozenset[str]]] = {}
    done: dict[int, Task] = {}
    given_up: dict[int, Task] = {}
    known: dict[int, Task] = {}
    for state in states.values():
        for number, (task, _) in state.running.items():
            if number not in known or len(task.trees) > len(known[number].trees):
                known[number] = task  # the version that was mended last has the most trees
    for number, task in sorted(known.items()):
        ends = [state.ended[number] for state in states.values() if number in state.ended]
        if not all(ends):
            given_up[number] = task
            continue
        waiting = frozenset(node for node in task.awaited if _waits(states.get(node), number))
        if ends or not waiting:
            done[number] = task
        else:
            tasks[number] = task, waiting
    newest = max(state.newest for state in states.values())
    return RecoveredTasks(epochs.pop(), first_number(newest), tasks, done, given_up)


def _waits(state: AgentState | None, number: int) -> bool:
    """Return whether the agent with this state (None where it has not joined) still waits for results of a task."""
    if state is None:
        return True
    return not state.running[number][1] if number in state.running else number > state.newest
