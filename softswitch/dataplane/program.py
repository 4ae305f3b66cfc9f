"""A compiled program: its declarations, under the names of the bmv2 JSON, and the native code of its pipeline."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, replace

from softswitch.bmv2json.model import Action, Key, P4Program, Table
from softswitch.bmv2json.reader import read_program
from softswitch.compiler.build import compile_program
from softswitch.compiler.codegen import Generated, generate
from softswitch.compiler.trace import Point
from softswitch.dataplane.profiles import ProfileInfo


@dataclass(frozen=True)
class TableInfo:
    """A match-action table as the program declares it.

    Attributes:
        const_entries: whether the entries come from the program and cannot be changed.
        default_const: whether the default action cannot be changed.
        needs_priority: whether the table has a ternary, range or optional key, so that entries have a priority.
        profile: the action profile whose members or groups the entries point to; then there is no default action.
    """

    name: str
    keys: tuple[Key, ...]
    actions: tuple[str, ...]
    size: int
    const_entries: bool
    default_action: str
    default_params: tuple[int, ...]
    default_const: bool
    has_direct_counter: bool
    needs_priority: bool
    has_direct_meter: bool = False
    has_idle_timeout: bool = False
    profile: str | None = None


class Program:
    """A compiled P4 program: its declarations, and the native code of its pipeline."""

    def __init__(self, p4: P4Program, code: Generated, path: str, digest: str) -> None:
        self.p4 = p4
        self.code = code
        self.digest = digest
        self.library = ctypes.CDLL(path)
        self._traced: tuple[ctypes.CDLL, int, tuple[Point, ...]] | None = None
        self._traced_lock = threading.Lock()
        self.address = ctypes.addressof(ctypes.c_char.in_dll(self.library, "ss_program"))
        self.actions: dict[str, Action] = {}
        for action in p4.actions.values():
            self.actions.setdefault(action.name, action)
        self.tables = {plan.table.name: self._table_info(plan.table) for plan in code.tables.values()}
        # The size of a direct counter or meter is its table's.
        self.counters = {
            name: replace(counter, size=self.tables[counter.table].size) if counter.table else counter
            for name, counter in p4.counters.items()
        }
        self.meters = {
            name: replace(meter, size=self.tables[meter.table].size) if meter.table else meter
            for name, meter in p4.meters.items()
        }
        self.header_types = tuple(p4.header_types.values())
        self.registers = p4.registers
        self.value_sets = p4.value_sets
        self.digests = tuple(p4.digests.values())
        self.profiles = {
            p.name: ProfileInfo(p.name, tuple(code.profiles[p.name].numbers), p.size, p.selector is not None)
            for p in p4.profiles.values()
        }

    @classmethod
    def load(cls, bmv2_json: bytes | str) -> Program:
        """Parse and check a program, generate C and compile that (cached by digest).

        Raise ``BadProgram`` for malformed JSON, ``UnsupportedConstruct`` for what softswitch does not implement,
        ``CompilerFailed`` if no C compiler works.
        """
        p4 = read_program(bmv2_json)
        code = generate(p4)
        path, digest = compile_program(code.source)
        return cls(p4, code, str(path), digest)

    def traced(self) -> tuple[int, tuple[Point, ...]]:
        """Return the address and the trace points of the variant of the program that reports its steps.

        It has the same state as the program. It is compiled at the first call.
        """
        with self._traced_lock:
            if self._traced is None:
                code = generate(self.p4, trace=True)
                path, _ = compile_program(code.source, quick=True)
                library = ctypes.CDLL(str(path))
                address = ctypes.addressof(ctypes.c_char.in_dll(library, "ss_program"))
                self._traced = (library, address, code.points)
            return self._traced[1:]

    def _table_info(self, table: Table) -> TableInfo:
        return TableInfo(
            name=table.name,
            keys=table.keys,
            actions=tuple(self.p4.actions[i].name for i in table.actions),
            size=table.size,
            const_entries=table.const_entries,
            default_action="NoAction" if table.profile else self.p4.actions[table.default_action].name,
            default_params=table.default_params,
            default_const=table.default_const,
            has_direct_counter=table.with_counters,
            needs_priority=any(k.match_kind in ("ternary", "range") for k in table.keys),
            has_direct_meter=table.meter is not None,
            has_idle_timeout=table.with_timeout,
            profile=table.profile,
        )
