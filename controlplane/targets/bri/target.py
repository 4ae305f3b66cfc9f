"""A Tofino switch as a target: installs rule sets over the Barefoot Runtime Interface.

bf_switchd loads the program when it starts, and a deployment only binds to it. Loading a program over BRI would reset
the whole device, its ports and other programs included; that is left to the switch's operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from controlplane.planner.entries import RuleSet
from controlplane.planner.frontpanel import FrontPanelPort
from controlplane.targets.base import RPC_SECONDS, Change, Counters, Operation, SwitchAddress, TargetError, Traffic
from controlplane.targets.bri.entries import Entry, Step, check
from controlplane.targets.bri.ledger import Ledger
from controlplane.targets.bri.ports import FIRST_UNKNOWN, PORT_UP, RECEIVED, SENT, Panel, PortMap, read_port
from controlplane.targets.bri.program import (
    LABEL_TABLE,
    PORT_NAMES,
    PORT_STATISTICS,
    PORTS,
    VERDICT_COUNTER,
    Program,
    number_of,
)
from controlplane.targets.bri.reading import rule_set
from controlplane.targets.bri.schema import Schema
from controlplane.targets.bri.session import Session, new_client_id
from controlplane.targets.bri.steps import batches, steps
from controlplane.targets.connecting import SessionTarget
from p4src.protocol import VERDICTS

BATCH = 256
"""Most entries in one request."""

START_BF_SWITCHD = "start bf_switchd with it: $SDE/run_switchd.sh -p {program} (docs/tofino.md)"


def check_program(session: Session, program: Program) -> None:
    """Check that the switch runs this build of the program; raise TargetError otherwise."""
    how = START_BF_SWITCHD.format(program=program.name)
    if program.name not in session.programs:
        runs = ", ".join(session.programs) or "no program"
        raise TargetError(f"{session.where} runs {runs}, not {program.name}: {how}")
    other = program.other_than(session.description(program.name))
    if other:
        raise TargetError(
            f"{session.where} runs another build of {program.name} than {program.own.source}: {other}; "
            f"compile this version's p4src/tofino for it, then {how}"
        )


def ask(client: Any, program: Program, switch: SwitchAddress, timeout: float) -> str:
    """Return a line that says that the switch answers and runs the program, without binding to it. Raise TargetError
    where it does not."""
    session = Session(client, switch, program=None, client_id=new_client_id(), timeout=timeout)
    try:
        check_program(session, program)
    finally:
        session.close()
    return f"BRI, runs program {program.name} as compiled here"


@dataclass(frozen=True)
class SwitchState:
    """State that was read from a switch: our entries, and ports that others made.

    Attributes:
        used: ports that others made and that we use.
        others: ports that others made and that the topology names.
    """

    entries: list[Entry]
    used: dict[str, FrontPanelPort]
    others: dict[str, FrontPanelPort]
    ports: PortMap


class BriTarget(SessionTarget[Session]):
    """One switch over BRI.

    Args:
        client: the SDE's module bfrt_grpc.client (`controlplane.targets.bri.sde.load_client`).
        panel: the topology's ports of the switch; without it, everything can be removed, with the ports that the switch
            has.
    """

    def __init__(
        self,
        switch: SwitchAddress,
        program: Program,
        client: Any,
        *,
        panel: Panel | None = None,
        ledger: Ledger | None = None,
        on_lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        super().__init__(switch, on_lost=on_lost)
        self.program = program
        self.client = client
        self.panel = panel or Panel({})
        self.ledger = ledger or Ledger(switch.address, switch.device_id)
        self.polite = True  # BRI gives a program to the first client that asks.
        self.client_id = new_client_id()
        # The ports' numbers, as the switch gave them in this session.
        self._numbers: tuple[Session, PortMap] | None = None

    @property
    def demoted(self) -> bool:
        """False, since another client cannot take the program: BRI takes it from no client."""
        return False

    def _open(self, left: float) -> Session:
        """Return a session that is connected, subscribed and bound."""
        return Session(
            self.client,
            self.switch,
            program=self.program.name,
            client_id=self.client_id,
            timeout=max(0.1, left),
            on_lost=self._lost,
        )

    def runs_program(self, timeout: float = RPC_SECONDS) -> bool:
        session = self.session
        if self.program.name not in session.programs:
            return False
        if self.program.other_than(session.description(self.program.name)):
            return False
        session.heartbeat(self.program.schema.table(LABEL_TABLE), timeout)
        return True

    def load_pipeline(self) -> bool:
        """Check that the switch runs our program, without loading anything. Raise TargetError where it does not."""
        check_program(self.session, self.program)
        return False

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self) -> RuleSet:
        return self._rules(self._state())

    def _rules(self, state: SwitchState) -> RuleSet:
        rules = rule_set(self.program, self.name, state.entries, state.ports)
        return replace(rules, ports=tuple(sorted((*rules.ports, *state.used.values()))))

    def _state(self) -> SwitchState:
        ports = PortMap(self.panel, self._devices())
        made, used = self.ledger.made(), self.ledger.used()
        wanted = {port.name: port for port in self.panel.ports}
        state = SwitchState([], {}, {}, ports)
        for table in self.program.tables():
            for entry in self.session.read(self.program.schema.tables[table]):
                name = self._port_name(ports, number_of(entry)) if table == PORTS else ""
                if name in made or (table != PORTS and self.program.is_ours(entry)):
                    state.entries.append(self.program.only_ours(entry))
                elif name in used or name in wanted:
                    port = read_port(name, entry)
                    if name in wanted and _suits(wanted[name], port):
                        port = wanted[name]
                    (state.used if name in used else state.others)[name] = port
        return state

    def _devices(self) -> dict[str, int]:
        """Return the device ports of the front-panel ports that we use or have made, as the switch answers."""
        table = self.program.schema.tables[PORT_NAMES]
        planned = {port.name for port in self.panel.ports}
        names = planned | self.ledger.made() | self.ledger.used()
        devices: dict[str, int] = {}
        for name in sorted(names):
            connector, channel = map(int, name.split("/"))
            try:
                found = self.session.read(table, (("$CONN_ID", connector), ("$CHNL_ID", channel)))
            except TargetError as error:
                if name not in planned and self.alive:
                    continue  # The port was recorded when the switch had other ports.
                raise TargetError(f"{self.session.where}: front-panel port {name} cannot be found: {error}") from None
            (device,) = (value for entry in found for field, value in entry.data if field == "$DEV_PORT")
            assert isinstance(device, int)
            devices[name] = device
        return devices

    def _port_name(self, ports: PortMap, device: int) -> str:
        try:
            return ports.name(device)
        except TargetError:
            return ""  # This port is neither ours nor the topology's.

    # -- writing -------------------------------------------------------------------------------------------------

    def apply(self, changes: list[Change]) -> None:
        """Apply changes to what the switch holds now. After an error some may be installed, and the caller restores the
        switch."""
        if not changes:
            return
        state = self._state()
        rules = _changed(self._rules(state), changes)
        own = tuple(port for port in rules.ports if not self._is_used(port, state))
        wanted = self.program.entries(replace(rules, ports=own), state.ports)
        check(self.program.schema, wanted, f"switch {self.name}")
        todo = steps(self.program, state.entries, wanted)
        for batch in batches(todo, BATCH):
            self._write(batch, len(todo), state.ports)
        for name in set(state.used) - {port.name for port in rules.ports}:
            self.ledger.forget(name)

    def _is_used(self, port: FrontPanelPort, state: SwitchState) -> bool:
        """Return whether somebody else made the port, and record that we use it. Raise TargetError where its settings
        differ."""
        there = state.used.get(port.name, state.others.get(port.name))
        if there is None:
            return False
        if there != port:
            raise TargetError(
                f"{self.session.where}: {there} was configured by somebody else; the topology wants {port}: "
                "change the topology file, or remove the port on the switch"
            )
        if port.name in state.others:
            self.ledger.note(port.name, made=False)
        return True

    def _write(self, batch: Sequence[Step], of: int, ports: PortMap) -> None:
        operation, table = batch[0].operation, self.program.schema.tables[batch[0].entry.table]
        names = [ports.name(number_of(step.entry)) for step in batch] if table.name == PORTS else []
        if operation is Operation.INSERT:
            # They are recorded first: a port that we may have made must be one that we can remove.
            for name in names:
                self.ledger.note(name, made=True)
        with self._explained(batch, of, words=_words):
            self.session.write(table, operation, batch, rollback=table.name in self.program.own.tables)
        if operation is Operation.DELETE:
            for name in names:
                self.ledger.forget(name)

    def clear_slots(self, slots: Collection[int]) -> int:
        """Set all registers of these slots to 0, in all pipes. Return the number of cells. Raise TargetError where a
        write fails.

        No entry may lead to the slots any more, since a recirculating packet would mix cleared and uncleared halves.
        """
        done = 0
        for entries in cleared(self.program.own, slots):
            todo = [Step(Operation.MODIFY, entry) for entry in entries]
            for at in range(0, len(todo), BATCH):
                batch = todo[at : at + BATCH]
                with self._explained(batch, len(todo), words=_words):
                    table = self.program.own.tables[batch[0].entry.table]
                    self.session.write(table, Operation.MODIFY, batch, rollback=False)
                done += len(batch)
        return done

    # -- counters ------------------------------------------------------------------------------------------------

    def read_verdicts(self, timeout: float = RPC_SECONDS) -> dict[str, int]:
        verdicts: dict[str, int] = {}
        with self.session.within(timeout):
            entries = self.session.read(self.program.schema.table(VERDICT_COUNTER), from_hw=True)
        for entry in entries:
            index = number_of(entry)
            if index < len(VERDICTS):
                verdicts[VERDICTS[index]] = _count(entry, "$COUNTER_SPEC_PKTS")
        return verdicts

    def read_counters(self, timeout: float = RPC_SECONDS) -> Counters:
        labels: dict[tuple[int, int], tuple[int, int]] = {}
        with self.session.within(timeout):
            ports = PortMap(self.panel, self._devices())
            entries = self.session.read(self.program.schema.table(LABEL_TABLE), from_hw=True)
        for entry in entries:
            device, label = self.program.label_key(entry)
            counted = _count(entry, "$COUNTER_SPEC_PKTS"), _count(entry, "$COUNTER_SPEC_BYTES")
            labels[ports.number(device), label] = counted
        return Counters(self.read_verdicts(timeout), labels)

    def read_traffic(self) -> Traffic | None:
        """Return what passed each front-panel port, aggregation packets included: Ethernet frames with their
        checksums."""
        ports = self._known_ports()
        found: dict[int, tuple[int, int]] = {}
        for entry in self.session.read(self.program.schema.tables[PORT_STATISTICS], from_hw=True):
            number = ports.number(number_of(entry))
            if number < FIRST_UNKNOWN:
                found[number] = _count(entry, RECEIVED), _count(entry, SENT)
        return Traffic(found, whole=True)

    def read_ports(self, timeout: float) -> dict[int, bool] | None:
        with self.session.within(timeout):
            ports = self._known_ports()
            entries = self.session.read(self.program.schema.tables[PORTS])
        found = {ports.number(number_of(entry)): dict(entry.data).get(PORT_UP) is True for entry in entries}
        return {number: up for number, up in found.items() if number < FIRST_UNKNOWN}

    def _known_ports(self) -> PortMap:
        """Return the translation of port numbers; the switch is asked once in a session."""
        session = self.session
        if self._numbers is None or self._numbers[0] is not session:
            self._numbers = session, PortMap(self.panel, self._devices())
        return self._numbers[1]


def _count(entry: Entry, field: str) -> int:
    value = dict(entry.data).get(field, 0)
    assert isinstance(value, int)
    return value


def _words(step: Step) -> str:
    return f"{step.operation.value} {step.entry}"


def _suits(wanted: FrontPanelPort, there: FrontPanelPort) -> bool:
    """Return whether a port has the settings that we want. Settings that the topology leaves to the driver may have any
    value."""
    same = (wanted.speed, wanted.fec, wanted.loopback) == (there.speed, there.fec, there.loopback)
    return same and wanted.autoneg in ("default", there.autoneg)


def _changed(rules: RuleSet, changes: Sequence[Change]) -> RuleSet:
    """Return the rule set after the changes."""
    items = {(item.kind, item.key): item for item in rules.items()}
    for change in changes:
        items.pop((change.item.kind, change.item.key), None)
        if change.operation is not Operation.DELETE:
            items[change.item.kind, change.item.key] = change.item
    return RuleSet.of(rules.switch, items.values())


REGISTER = "Register"
"""Kind of the tables that stand for registers in BRI."""
OF_SLOTS = "slot_epoch"
"""A register with one cell per slot; others may have several."""


def cleared(program: Schema, slots: Iterable[int]) -> Iterator[list[Entry]]:
    """Yield, for each register of a program, the entries that set these slots to 0."""
    there, number = sorted(slots), program.table(OF_SLOTS).size
    for table in program.tables.values():
        if table.kind != REGISTER:
            continue
        (index,) = table.keys
        data = tuple((name, 0) for name in table.data)
        yield [
            Entry(table.name, ((index, first + slot),), None, data)
            for first in range(0, table.size, number)
            for slot in there
        ]
