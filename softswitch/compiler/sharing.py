"""Finds out whether packets of a program may run at once, each with the lock of its registers' index alone.

A packet is atomic towards all others, so two of them may run at once only where neither could tell. That is so where
all register accesses of a packet, whatever it does, have one index: then the packet takes the lock of that index before
its first access, and keeps it. Counters only add up, and tables do not change while packets run.

    slot = base + (sequence & mask)    the index's field is written, or the same expression stands in its place
    sum_00.read(held, slot)            -> the lock is taken before this
    sum_00.write(slot, held + value)

An index is a field, or an expression over fields (p4c writes the expression out again wherever a field is read that was
just assigned). That it stays the same is shown for all paths through the tables, whether or not a packet could take
them:

1. no field in it is written after the lock could have been taken;
2. where a field F and an expression E both occur, F is assigned E in one place alone, before every use of E.

Other features that make packets depend on each other keep one lock for all: meters, digests, messages, random numbers,
copies (clone, resubmit, recirculate), idle timeouts, and an egress, which sees queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from softswitch.bmv2json.model import (
    Action,
    Argument,
    Const,
    FieldRef,
    HeaderRef,
    Op,
    P4Program,
    Primitive,
    Table,
)
from softswitch.compiler.layout import Layout, table_actions

MOST_COUNTS = 64
"""The most counters to which a packet may add (SS_MOST_COUNTS in ss_abi.h)."""
_READS = frozenset({"register_write", "count", "no_op", "exit", "_jump", "_jump_if_zero"})
_WRITES = frozenset({
    "assign", "modify_field", "add_to_field", "subtract_from_field", "add", "subtract", "bit_and", "bit_or", "bit_xor",
    "shift_left", "shift_right", "register_read", "drop", "mark_to_drop", "modify_field_with_hash_based_offset",
    "add_header", "remove_header", "assign_header", "copy_header", "truncate",
})  # fmt: skip
_JUMPS = ("_jump", "_jump_if_zero")
_Place = tuple[str, str, int]
_ANYTHING: _Place = ("anything", "", 0)
_INDEX_AT = {"register_read": 2, "register_write": 1}


@dataclass(frozen=True)
class Hold:
    """The place where an action takes the lock of a slot: before primitive ``at``, by this index."""

    at: int
    index: Argument


@dataclass(frozen=True)
class Sharing:
    """The places of locks that let packets run at once: one in each action that uses registers."""

    holds: dict[int, Hold]


class _NotShareableError(Exception):
    pass


def sharing(program: P4Program, layout: Layout) -> Sharing | None:
    """Return how packets of a program may run at once; None where they may not."""
    try:
        return _Analysis(program, layout).result()
    except _NotShareableError:
        return None


class _Analysis:
    """Checks all conditions for one program; raises `_NotShareableError` where one does not hold."""

    def __init__(self, program: P4Program, layout: Layout) -> None:
        self.program = program
        self.layout = layout
        self.tables = program.ingress.tables
        self.actions = {i: program.actions[i] for t in self.tables.values() for i in table_actions(t)}
        self.unions = {name for members in program.unions.values() for name in members}
        self.written: dict[int, list[_Place | None]] = {}
        self.after: dict[int, set[int]] = {}
        self.places: dict[FieldRef, frozenset[_Place]] = {}

    def result(self) -> Sharing:
        """Return the places of locks, if all conditions hold."""
        if self.program.egress.init is not None or self.program.meters:
            raise _NotShareableError
        if any(t.meter is not None or t.with_timeout for t in self.tables.values()):
            raise _NotShareableError
        primitives = [p for a in self.actions.values() for p in a.primitives]
        if any(p.op not in _READS | _WRITES for p in primitives) or self._counts() > MOST_COUNTS:
            raise _NotShareableError
        self.written = {i: [self._written(p) for p in a.primitives] for i, a in self.actions.items()}
        self.after = {i: self._after(i) for i in self.actions}
        holds: dict[int, Hold] = {}
        found: dict[int, list[Argument]] = {}
        for action in self.actions.values():
            accesses = [i for i, p in enumerate(action.primitives) if p.op in _INDEX_AT]
            if accesses:
                found[action.id] = [self._resolve(action, i) for i in accesses]
                holds[action.id] = self._hold(action, accesses[0])
        self._check(holds, found)
        return Sharing(holds)

    def _counts(self) -> int:
        """Return the most counters to which a packet adds; it goes through each table at most once."""
        return sum(
            int(t.with_counters)
            + max((sum(p.op == "count" for p in self.actions[i].primitives) for i in table_actions(t)), default=0)
            for t in self.tables.values()
        )

    # ---------------------------------------------------------------------------------------------------- one action

    def _resolve(self, action: Action, at: int) -> Argument:
        """Return the index of the access at ``at`` in terms of the fields as they were when the action began."""
        index: Argument = action.primitives[at].args[_INDEX_AT[action.primitives[at].op]]
        if not self._any(action.id, 0, at, index):
            return index
        jumps = any(p.op in _JUMPS for p in action.primitives[:at])
        for i in reversed(range(at)):
            primitive = action.primitives[i]
            if not self._any(action.id, i, i + 1, index):
                continue
            if jumps or primitive.op not in ("assign", "modify_field") or not isinstance(index, FieldRef):
                raise _NotShareableError
            index = primitive.args[1]
            if self._any(action.id, i, at, index):
                raise _NotShareableError
        return index

    def _hold(self, action: Action, first: int) -> Hold:
        if any(isinstance(t, Const) and t.value <= first for p in action.primitives for t in _targets(p)):
            raise _NotShareableError
        if any(p.op in _JUMPS for p in action.primitives[:first]):
            return Hold(0, self._resolve(action, first))
        return Hold(first, action.primitives[first].args[_INDEX_AT[action.primitives[first].op]])

    def _written(self, primitive: Primitive) -> _Place | None:
        """Return the place that a primitive may write to: a field, all of a header, or ``_ANYTHING`` where it cannot be
        told.
        """
        if primitive.op in ("drop", "mark_to_drop"):
            return ("header", "standard_metadata", 0)
        if primitive.op in _READS or not primitive.args:
            return None
        target = primitive.args[0]
        if isinstance(target, HeaderRef):
            return ("header", target.header, 0)
        if not isinstance(target, FieldRef) or target.header in self.unions:
            return _ANYTHING
        slot = self.layout.slot(target)
        return ("field", slot.place, slot.bit)

    def _reads(self, field: FieldRef) -> frozenset[_Place]:
        """Return the places where a write may change a field: its own, its header's, and the one that is not known."""
        if field not in self.places:
            slot = self.layout.slot(field)
            self.places[field] = frozenset((("field", slot.place, slot.bit), ("header", field.header, 0), _ANYTHING))
        return self.places[field]

    def _any(self, action_id: int, first: int, end: int, index: Argument) -> bool:
        """Return whether primitives from ``first`` to before ``end`` of an action may write to a field of an index."""
        places = frozenset().union(*(self._reads(field) for field in _fields(index)))
        return not places.isdisjoint(self.written[action_id][first:end])

    # ------------------------------------------------------------------------------------------------- the whole way

    def _check(self, holds: dict[int, Hold], found: dict[int, list[Argument]]) -> None:
        """Check that a packet's accesses all have the index of its first; raise `_NotShareableError` otherwise."""
        indices = list(dict.fromkeys(index for each in found.values() for index in each))
        fields = [index for index in indices if isinstance(index, FieldRef)]
        if len(indices) - len(fields) > 1 or len(fields) > 1:
            raise _NotShareableError
        for index in indices:
            for field in _fields(index):
                for action_id, hold in holds.items():
                    self._stays(field, action_id, hold.at)
        if len(indices) == 2:
            (expression,) = (index for index in indices if not isinstance(index, FieldRef))
            users = {i for i, each in found.items() if expression in each}
            self._assigned(fields[0], expression, users, holds)

    def _stays(self, field: FieldRef, action_id: int, at: int) -> None:
        """Check that the field is not written from primitive ``at`` of an action on; raise `_NotShareableError`
        otherwise.
        """
        if self._any(action_id, at, len(self.written[action_id]), field):
            raise _NotShareableError
        if any(self._any(i, 0, len(self.written[i]), field) for i in self.after[action_id]):
            raise _NotShareableError

    def _assigned(self, field: FieldRef, expression: Argument, users: set[int], holds: dict[int, Hold]) -> None:
        """Check that the field is assigned the expression once, before all uses of the expression, which keeps its
        value from there on; raise `_NotShareableError` otherwise.
        """
        wanted = self._reads(field)
        places = [(action, i) for action, each in self.written.items() for i, p in enumerate(each) if p in wanted]
        if len(places) != 1:
            raise _NotShareableError
        ((action_id, at),) = places
        action = self.actions[action_id]
        assign = action.primitives[at]
        if assign.op not in ("assign", "modify_field") or assign.args[1] != expression:
            raise _NotShareableError
        if any(p.op in _JUMPS for p in action.primitives[:at]):
            raise _NotShareableError
        for each in _fields(expression):
            self._stays(each, action_id, at)
        tables = [t for t in self.tables.values() if action_id in table_actions(t)]
        if len(tables) != 1 or len(table_actions(tables[0])) != 1 or tables[0].profile is not None:
            raise _NotShareableError
        past = self._reached(self.program.ingress.init, without=tables[0].name)
        for user in users:
            if user == action_id:
                if holds[user].at < at:
                    raise _NotShareableError
            elif any(user in table_actions(self.tables[name]) for name in past):
                raise _NotShareableError

    # ------------------------------------------------------------------------------------------------------ the graph

    def _after(self, action_id: int) -> set[int]:
        """Return the actions that may run after this one."""
        found: set[int] = set()
        for table in self.tables.values():
            if action_id in table_actions(table):
                for following in self._following(table):
                    for name in self._reached(following):
                        found.update(table_actions(self.tables[name]))
        return found

    @staticmethod
    def _following(table: Table) -> set[str | None]:
        return {*table.next_by_action.values(), table.next_default, table.next_hit, table.next_miss}

    def _reached(self, start: str | None, without: str | None = None) -> set[str]:
        """Return the tables that a packet may reach from a node, the node itself included."""
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            name = waiting.pop()
            if name is None or name in seen or name == without:
                continue
            seen.add(name)
            table = self.tables.get(name)
            if table is not None:
                waiting += self._following(table)
            else:
                node = self.program.ingress.conditionals[name]
                waiting += [node.true_next, node.false_next]
        return seen & set(self.tables)


def _targets(primitive: Primitive) -> tuple[Argument, ...]:
    return primitive.args[-1:] if primitive.op in _JUMPS else ()


def _fields(argument: object) -> Iterator[FieldRef]:
    """Yield the fields of an index. Raise `_NotShareableError` for an index of anything else."""
    if isinstance(argument, FieldRef):
        yield argument
    elif isinstance(argument, Op):
        for each in argument.args:
            yield from _fields(each)
    elif not isinstance(argument, Const):
        raise _NotShareableError
