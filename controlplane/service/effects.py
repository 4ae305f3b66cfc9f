"""Carries out what the core decides about one job's agents: messages to their streams, timers, epochs, the log."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial

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


@dataclass
class _Storing:
    """An epoch whose number is being stored.

    Attributes:
        carried_on: the number; 0 for a new one.
        ended: the core was told of the outcome.
        problem: the error because of which it could not be stored.
    """

    carried_on: int
    ended: bool = False
    problem: Exception | None = None


class Effects:
    """Owns the state of one job's agents. Whoever reads or changes anything here holds `lock`.

    Args:
        plan_without: called (node, reason) with the lock held when a node was lost and the job runs on; it must not
            wait.

    Attributes:
        state: the core's state, to be set before the first event.
        news: a condition that is notified after every event. What waits for it lets other threads have the lock.
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
        self._storing: _Storing | None = None
        self._waiting: deque[tuple[Event, Mapping[str, AgentConfig] | None]] = deque()
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

    def take(self, event: Event, configs: Mapping[str, AgentConfig] | None = None) -> tuple[actions.Action, ...]:
        """Decide on an event, carry out the actions that follow, and return them. `configs` become those of the running
        plan first.

        If an epoch's number is being stored, wait for that, before and afterwards, without the lock. Raise what storing
        raises; the core has then been told that it failed.
        """
        with self.lock:
            self.settle()
            done, storing = self._decide(event, configs)
            if storing is not None:
                self.news.wait_for(lambda: storing.ended)
                if storing.problem is not None:
                    raise storing.problem
            return done

    def post(self, event: Event, configs: Mapping[str, AgentConfig] | None = None) -> None:
        """Do what `take` does, without waiting for an epoch's number to be stored: the event is decided afterwards."""
        with self.lock:
            if self._storing is not None:
                self._waiting.append((event, configs))
            else:
                self._decide(event, configs)

    def settle(self) -> None:
        """Wait until no epoch's number is being stored, without the lock meanwhile."""
        self.news.wait_for(lambda: self._storing is None)

    @property
    def storing(self) -> bool:
        """Whether an epoch's number is being stored, so that events wait."""
        return self._storing is not None

    def _decide(
        self, event: Event, configs: Mapping[str, AgentConfig] | None = None
    ) -> tuple[tuple[actions.Action, ...], _Storing | None]:
        """Decide on an event and carry out what follows. Return the actions, and the epoch that is being stored."""
        if configs is not None:
            self.configs = dict(configs)
        before, now = self.state, time.monotonic()
        self.state, decided = decide(before, event, now)
        self.journal.add(before, event_of_job(self.journal.job, before, event, now=now, clock=time.time()), self.state)
        if self.state.phase == Phase.CLOSED:
            self.journal.end()
        for action in decided:
            if isinstance(action, actions.StoreEpoch):
                self._storing = _Storing(action.carried_on)
                context = copy_context()  # with the name of whoever has ordered it
                work = partial(context.run, self._store, self._storing)
                threading.Thread(target=work, name="store-epoch", daemon=True).start()
            else:
                self._carry_out(action)
        self._said = None
        self.news.notify_all()
        return decided, self._storing

    def _store(self, storing: _Storing) -> None:
        """Store an epoch's number without the lock, since a store may answer late. Then decide on the outcome, and on
        the events that waited for it."""
        stored: Event
        try:
            if storing.carried_on:
                self._epochs.adopt(storing.carried_on)
            stored = EpochStored(storing.carried_on or self._epochs.next())
        except Exception as error:
            storing.problem = error
            stored = EpochNotStored(str(error))
        with self.lock:
            self._storing = None
            self._decide(stored)
            while self._waiting and self._storing is None:
                self._decide(*self._waiting.popleft())
            storing.ended = True
            self.news.notify_all()

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
