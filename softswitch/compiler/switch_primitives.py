"""Compiles primitives that ask the switch for an action or a value: drops, clones, digests, hashes, random numbers, log
lines.
"""

from __future__ import annotations

from softswitch.bmv2json.model import Const, FieldRef, HeaderRef, Named, Primitive, Vector
from softswitch.compiler.calculations import CalculationGen
from softswitch.compiler.expr import ExprGen
from softswitch.compiler.layout import Layout, Slot
from softswitch.compiler.operands import Handler, Operands
from softswitch.compiler.reroll import Statement
from softswitch.compiler.trace import SLACK
from softswitch.compiler.values import Value
from softswitch.errors import BadProgram, UnsupportedConstruct

SS_CLONE_REQUESTED = 0x8000
DROP_PORT = 511  # SS_DROP_PORT of ss_abi.h
STANDARD = "standard_metadata"


class SwitchPrimitives(Operands):
    """A generator of C for these primitives; ``messages`` has the formats of log_msg, by number."""

    def __init__(self, layout: Layout, expr: ExprGen, calculations: CalculationGen) -> None:
        super().__init__(layout, expr)
        self.calculations = calculations
        self.digest_index = {number: i for i, number in enumerate(self.program.digests)}
        self.messages: list[str] = []

    def handlers(self) -> dict[str, Handler]:
        """Return the method that compiles each primitive, by the primitive's name."""
        return {
            "drop": self._drop,
            "mark_to_drop": self._drop,
            "modify_field_with_hash_based_offset": self._hash,
            "modify_field_rng_uniform": self._random,
            "clone_ingress_pkt_to_egress": self._clone,
            "clone_egress_pkt_to_egress": self._clone,
            "resubmit": lambda p: self._field_list_flag(p, "resubmit_fields"),
            "recirculate": lambda p: self._field_list_flag(p, "recirculate_fields"),
            "generate_digest": self._digest,
            "truncate": self._truncate,
            "log_msg": self._log,
            "assert": self._assert,
            "assume": self._assert,
            "exit": lambda _: [Statement("p->base.target.exited = 1;")],
        }

    def _drop(self, primitive: Primitive) -> list[Statement]:
        """Mark a packet to be dropped.

        p4c passes the standard metadata that is marked. Where the P4 program gave an action a copy (`inout
        standard_metadata_t`), the copy is marked, which the program may or may not copy back.
        """
        (marked,) = primitive.args or (HeaderRef(STANDARD),)
        if isinstance(marked, HeaderRef) and marked.header != STANDARD:
            values = {"egress_spec": DROP_PORT, "mcast_grp": 0}
            fields = [FieldRef(marked.header, name) for name in values]
            return [self.assignment(self.expr.target(field), Const(values[field.field])) for field in fields]
        return [Statement("p->base.standard.egress_spec = SS_DROP_PORT; p->base.standard.mcast_grp = 0;", barrier=True)]

    def _hash(self, primitive: Primitive) -> list[Statement]:
        target, base, calculation, size = primitive.args
        assert isinstance(calculation, Named) and calculation.kind == "calculation"
        if any(i.kind == "payload" for i in self.program.calculations[calculation.name].inputs):
            raise UnsupportedConstruct("hash over the payload", primitive.source)
        slot = self.expr.target(target)
        value = Value("v", "u64", 0, (1 << 64) - 1)
        text = (
            f"{{ uint64_t n = {self._uint64(size)}; "
            f"const uint64_t v = {self.calculations.call(calculation.name)} % (n ? n : 1)"
            f" + {self._uint64(base)}; {self.expr.store(slot, value)} }}"
        )
        return [Statement(text, barrier=True)]

    def _random(self, primitive: Primitive) -> list[Statement]:
        target, low, high = primitive.args
        slot = self.expr.target(target)
        store = self.expr.store(slot, Value("v", "u64", 0, (1 << 64) - 1))
        text = (
            f"{{ const uint64_t lo = {self._uint64(low)}, hi = {self._uint64(high)}; if (lo <= hi) {{ "
            "uint64_t v = s->services->random(s->device), n = hi - lo + 1; v = (n ? v % n : v) + lo; "
            f"{store} }} }}"
        )
        return [Statement(text, barrier=True)]

    def _clone(self, primitive: Primitive) -> list[Statement]:
        session, fields = primitive.args
        text = (
            f"p->base.target.clone_session = (uint16_t)({self._uint64(session)} | {SS_CLONE_REQUESTED}u); "
            f"p->base.target.clone_fields = (uint16_t){self._uint64(fields)};"
        )
        return [Statement(text, barrier=True)]

    def _field_list_flag(self, primitive: Primitive, member: str) -> list[Statement]:
        return [Statement(f"p->base.target.{member} = (uint16_t){self._uint64(primitive.args[0])};", barrier=True)]

    def _digest(self, primitive: Primitive) -> list[Statement]:
        """Send a digest with the values at this moment, as v1model says (bmv2 sends those at the end of ingress)."""
        _, number = primitive.args
        assert isinstance(number, Const)
        if number.value == 0:  # p4c compiles an empty digest to number 0.
            return []
        digest = self.program.digests.get(number.value)
        if digest is None:
            raise BadProgram(f"{primitive.source}: digest {number.value} does not exist")
        values = [(self._number(element), width) for element, width in digest.elements]
        fill, size = self.pack(values)
        index = self.digest_index[number.value]
        text = f"{{ uint8_t d[{size + SLACK}]; {fill} s->services->digest(s->device, {index}, d, {size}); }}"
        return [Statement(text, barrier=True)]

    def pack(self, values: list[tuple[Value, int]]) -> tuple[str, int]:
        """Return C that packs values into ``d``, each in whole bytes, and the number of bytes.

        ``values`` has pairs (value, width in bits).
        """
        fill, at = "memset(d, 0, sizeof d);", 0
        for value, width in values:
            slot = Slot("bytes", f"d + {at}", 0, -width % 8, width, False, ("d", at))
            fill += " " + self.expr.store(slot, value)
            at += (width + 7) // 8
        return fill, at

    def _truncate(self, primitive: Primitive) -> list[Statement]:
        text = (
            f"{{ const uint64_t n = {self._uint64(primitive.args[0])}; "
            "if (n < p->base.target.truncate_to) p->base.target.truncate_to = (uint32_t)n; }"
        )
        return [Statement(text, barrier=True)]

    def _assert(self, primitive: Primitive) -> list[Statement]:
        """Compile ``assert`` and ``assume``: a packet that violates the condition is logged and dropped (bmv2
        aborts).
        """
        (condition,) = primitive.args
        self.messages.append(f"{primitive.op} does not hold at {primitive.source or 'an unknown line'}: packet dropped")
        text = (
            f"if ({self._uint64(condition)} == 0) {{ "
            f"s->services->log(s->device, {len(self.messages) - 1}, NULL, 0); "
            "p->base.standard.egress_spec = SS_DROP_PORT; p->base.standard.mcast_grp = 0; "
            "p->base.target.exited = 1; return; }"
        )
        return [Statement(text, barrier=True)]

    def _log(self, primitive: Primitive) -> list[Statement]:
        message, vector = primitive.args
        assert isinstance(message, Named) and isinstance(vector, Vector)
        values: list[str] = []
        for item in vector.items:
            value = self.expr.number(item)
            if value.kind == "wide":
                raise UnsupportedConstruct("log_msg of a value wider than 128 bits", primitive.source)
            if value.kind == "u128" and value.hi >= 1 << 127:
                raise UnsupportedConstruct("log_msg of a value wider than 127 bits", primitive.source)
            values.append(f"(u128)(i128){self.expr.convert(value, 'i128' if value.lo < 0 else 'u128')}")
        self.messages.append(message.name)
        number = len(self.messages) - 1
        if not values:
            return [Statement(f"s->services->log(s->device, {number}, NULL, 0);", barrier=True)]
        text = (
            f"{{ const u128 values[] = {{{', '.join(values)}}}; "
            f"s->services->log(s->device, {number}, values, {len(values)}); }}"
        )
        return [Statement(text, barrier=True)]
