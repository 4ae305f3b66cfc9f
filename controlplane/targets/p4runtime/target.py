"""A P4Runtime switch (bmv2's simple_switch_grpc, softswitch) as a target.

It needs no feature that only one of them has. Known differences: bmv2 cannot read registers, reserves the multicast
groups from 2^15 on, and applies the valid updates of a batch when others fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from controlplane.planner.entries import RuleSet
from controlplane.targets.base import RPC_SECONDS, Change, Counters, NotPrimary, SwitchAddress, TargetError, Traffic
from controlplane.targets.connecting import SessionTarget
from controlplane.targets.p4runtime.program import LABEL_TABLE, OTHER_RECEIVED, OTHER_SENT, VERDICT_COUNTER, Program
from controlplane.targets.p4runtime.session import ElectionId, HeldByAnother, Outranked, Session, new_election_id
from controlplane.targets.p4runtime.stubs import p4runtime_pb2
from p4src.protocol import VERDICTS

LOWEST_ELECTION_ID = 0, 1
LEAVING_SECONDS = 1.0
"""Seconds for which a controller that has just ended may still seem to be connected."""

BATCH = 100
"""Most updates in one Write. A failed Write is answered with an error per update, as metadata, of which gRPC takes 8
KB."""


class P4RuntimeTarget(SessionTarget[Session]):
    """One switch over P4Runtime."""

    def __init__(
        self, switch: SwitchAddress, program: Program, *, on_lost: Callable[[str], None] = lambda reason: None
    ) -> None:
        super().__init__(switch, on_lost=on_lost)
        self.program = program
        self.polite = False
        self._patience = 0.0
        self._connected = False  # Whether `connect` has ever succeeded.

    @property
    def demoted(self) -> bool:
        """Whether another controller has taken the switch over."""
        return self._session is not None and self._session.demoted

    def connect(self, timeout: float) -> None:
        self._patience = time.monotonic() + LEAVING_SECONDS
        super().connect(timeout)
        self.polite, self._connected = False, True

    def _open(self, left: float) -> Session:
        """Open a session with an election id above all that the switch has seen, unless another controller keeps the
        switch."""
        if self.polite:
            self._ask_whether_free()
        try:
            return self._session_with(new_election_id())
        except HeldByAnother as error:
            # A reconnecting controller takes the switch from nobody: two controllers would take it from each other for
            # ever.
            if not isinstance(error, Outranked) and (self.polite or self._connected):
                raise
            return self._session_with(new_election_id(above=error.highest))

    def _session_with(self, election_id: ElectionId) -> Session:
        return Session(self.switch, election_id, on_lost=self._lost)

    def _ask_whether_free(self) -> None:
        """Ask with the lowest election id, which takes the switch from no controller. Raise NotPrimary where one holds
        it."""
        try:
            Session(self.switch, LOWEST_ELECTION_ID).close()
        except Outranked:
            return
        except NotPrimary as error:
            if time.monotonic() < self._patience:
                raise TargetError(str(error)) from None
            raise NotPrimary(
                f"{self.switch} has a controller that lives: tell that "
                "one (inart job add, remove), end it, or take over with --take-over"
            ) from None

    def load_pipeline(self) -> bool:
        if self.runs_program():
            return False
        self.session.set_pipeline(self.program.pipeline_config())
        return True

    def runs_program(self, timeout: float = RPC_SECONDS) -> bool:
        return self.session.pipeline_cookie(timeout) == self.program.cookie

    def read(self) -> RuleSet:
        return self.program.rule_set(self.name, self.session.read_entities(self.program.read_requests()))

    def apply(self, changes: list[Change]) -> None:
        for start in range(0, len(changes), BATCH):
            self._write(changes[start : start + BATCH], len(changes))

    def _write(self, changes: Sequence[Change], of: int) -> None:
        with self._explained(changes, of, words=lambda change: change):
            self.session.write_batch(self.program.write_request(changes))

    def read_verdicts(self, timeout: float = RPC_SECONDS) -> dict[str, int]:
        counter = p4runtime_pb2.CounterEntry(counter_id=self.program.counter(VERDICT_COUNTER).preamble.id)
        verdicts: dict[str, int] = {}
        for entity in self.session.read_entities([p4runtime_pb2.Entity(counter_entry=counter)], timeout):
            index = entity.counter_entry.index.index
            if index < len(VERDICTS):
                verdicts[VERDICTS[index]] = entity.counter_entry.data.packet_count
        return verdicts

    def read_counters(self, timeout: float = RPC_SECONDS) -> Counters:
        direct = p4runtime_pb2.DirectCounterEntry()
        direct.table_entry.table_id = self.program.table(LABEL_TABLE).preamble.id
        labels: dict[tuple[int, int], tuple[int, int]] = {}
        for entity in self.session.read_entities([p4runtime_pb2.Entity(direct_counter_entry=direct)], timeout):
            entry = entity.direct_counter_entry
            if entry.table_entry.match:
                labels[self.program.label_key(entry.table_entry)] = (entry.data.packet_count, entry.data.byte_count)
        return Counters(self.read_verdicts(timeout), labels)

    def clear_slots(self, slots: Collection[int]) -> int:
        return 0  # bmv2 has no access to registers over P4Runtime

    def read_traffic(self) -> Traffic | None:
        """Return what the program counts by port: all packets but those of aggregations."""
        if not self.program.has_counter(OTHER_RECEIVED):
            return None
        received, sent = (self.program.counter(name).preamble.id for name in (OTHER_RECEIVED, OTHER_SENT))
        asked = [p4runtime_pb2.CounterEntry(counter_id=each) for each in (received, sent)]
        counted: dict[int, dict[int, int]] = {received: {}, sent: {}}
        for entity in self.session.read_entities([p4runtime_pb2.Entity(counter_entry=each) for each in asked]):
            cell = entity.counter_entry
            counted[cell.counter_id][cell.index.index] = cell.data.byte_count
        ports = {port: (count, counted[sent].get(port, 0)) for port, count in counted[received].items()}
        return Traffic(ports, whole=False)

    def read_ports(self, timeout: float) -> dict[int, bool] | None:
        """Return None: P4Runtime has no state of ports."""
        return None

    def packet_out(self, frame: bytes) -> None:
        """Give the switch a frame, which enters its pipeline by its CPU port (if it has one)."""
        self.session.packet_out(frame)
