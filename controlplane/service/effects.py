"""Carries out what the core decides about one job's agents: messages to their streams, timers, epochs, the log."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.log_lines import Log
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.service.core import actions
from controlplane.service.core.events import EpochNotStored, EpochStored, Event
from controlplane.service.core.journal import event_of_job
from controlplane.service.core.membership import decide
from controlplane.service.core.state import Phase, Place, State
from controlplane.service.epochs import EpochStore
from controlplane.service.hanging import Rounds
from controlplane.service.journal import CoreJournal, Journal
from controlplane.service.members import Member
from controlplane.service.words import message
from controlplane.targets.secret_labels import SecretLabels


class Effects:
    """Owns the state of one job's agents. Whoever reads or changes anything here holds `lock`.

    Args:
        plan_without: called (node, reason) with the lock held when a node was lost and the job runs on; it must not
            wait.

    Attributes:
        state: the core's state, to be set before the first event.
        news: a condition that is notified after every event.
        configs: by node, the configurations of the running plan.
        offered: by node, those of a migration that is under way.
        members: agents' streams, by the number of their connection.
        failures: by epoch, why its migration failed, until somebody has read it.
    """

    def __init__(
        self,
        configs: Mapping[str, AgentConfig],
        epochs: EpochStore,
        labels: SecretLabels | None,
        *,
        log: Log,
        plan_without: Callable[[str, str], None],
        journal: CoreJournal | None = None,
    ) -> None:
        self.state: State
        self.configs = dict(configs)
        self.offered: dict[str, AgentConfig] = {}
        self.members: dict[int, Member] = {}
        self.failures: dict[int, str] = {}
        self.journal = journal or CoreJournal(Journal())
        self.lock = threading.RLock()
        self.news = threading.Condition(self.lock)
        self._epochs, self._labels = epochs, labels
        self._log, self._plan_without = log, plan_without
        self.rounds = Rounds()
        self._said: tuple[actions.Word, pb.Event | None] | None = None  # the last action for an agent, and its message

    def places(self, configs: Mapping[str, AgentConfig]) -> tuple[Place, ...]:
        """Return what the core has to know of a plan's configurations."""
        return tuple(
            Place(node, config.role, config.address, self.as_told(config).digest, config.both_roles)
            for node, config in configs.items()
        )

    def as_told(self, config: AgentConfig) -> AgentConfig:
        """Return a configuration with the labels that are on the wire."""
        return config if self._labels is None else self._labels.configuration(config)

    def take(self, event: Event) -> tuple[actions.Action, ...]:
        """Decide on an event, carry out all actions that follow, and return them.

        Raise what storing an epoch raises; the core has then been told that it failed.
        """
        done: list[actions.Action] = []
        problem: Exception | None = None
        with self.lock:
            events = deque([event])
            while events:
                event, before, now = events.popleft(), self.state, time.monotonic()
                self.state, decided = decide(before, event, now)
                entry = event_of_job(self.journal.job, before, event, now=now, clock=time.time())
                self.journal.add(before, entry, self.state)
                if self.state.phase == Phase.CLOSED:
                    self.journal.end()
                for action in decided:
                    done.append(action)
                    if isinstance(action, actions.StoreEpoch):
                        try:
                            events.append(EpochStored(self._store(action.carried_on)))
                        except Exception as error:
                            problem = error
                            events.append(EpochNotStored(str(error)))
                    else:
                        self._carry_out(action)
            self._said = None
            self.news.notify_all()
        if problem is not None:
            raise problem
        return tuple(done)

    def _store(self, carried_on: int) -> int:
        if not carried_on:
            return self._epochs.next()
        self._epochs.adopt(carried_on)
        return carried_on

    def _carry_out(self, action: actions.Action) -> None:
        match action:
            case actions.Tell(node, connection, word):
                self._tell(node, connection, word)
            case actions.Say(line, warn):
                (self._log.warning if warn else self._log.info)(line)
            case actions.After(seconds, event):
                timer = threading.Timer(seconds, self._later, [event])
                timer.daemon = True
                timer.start()
            case actions.PlanWithout(node, reason):
                self._plan_without(node, reason)
            case actions.MigrationFailed(epoch, reason):
                self.failures[epoch] = reason

    def _later(self, event: Event) -> None:
        with suppress(OSError):  # no epoch could be stored: the core has logged that, and tries again
            self.take(event)

    def _tell(self, node: str, connection: int, word: actions.Word) -> None:
        member = self.members.get(connection)
        if member is None:
            return
        if isinstance(word, actions.SwitchOver):
            self.configs = self.offered
        if isinstance(word, actions.Configure | actions.SwitchOver):
            member.begin(self.rounds.number)
        if self._said is None or self._said[0] is not word or isinstance(word, actions.Configure | actions.Prepare):
            self._said = word, message(word, node, self._told)  # an action for many agents is one message
        member.events.put(self._said[1])
        if isinstance(word, actions.End):
            del self.members[connection]

    def _told(self, node: str, epoch: int) -> AgentConfig:
        """Return the configuration with which a node's agent is told to work in an epoch: that of a migration, or
        that of the running plan."""
        migration = self.state.migration
        configs = self.offered if migration is not None and migration.epoch == epoch else self.configs
        return replace(self.as_told(configs[node]), epoch=epoch, key=self._epochs.key(epoch))
