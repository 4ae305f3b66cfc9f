"""Converts plain numbers, as compiled programs have them, to values of P4 types as ``P4Data``.

The P4Runtime specification describes this in "Representation of Arbitrary P4 Types".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from softswitch.p4runtime import bytestring
from softswitch.p4runtime.status import invalid, unimplemented
from softswitch.p4runtime.stubs import p4data_pb2, p4types_pb2

MAX_DEPTH = 32


@dataclass(frozen=True)
class Shape:
    """A P4 type: ``kind`` is bit, int, bool, struct or tuple; ``width`` is the width of a leaf in bits."""

    kind: str
    width: int = 0
    members: tuple[Shape, ...] = ()

    def leaves(self) -> Iterator[Shape]:
        """Yield the types of the numbers that a value consists of, in order."""
        if self.kind in ("struct", "tuple"):
            for member in self.members:
                yield from member.leaves()
        else:
            yield self

    def encode(self, values: Iterator[int], data: p4data_pb2.P4Data) -> None:
        """Fill ``data`` from the next unsigned numbers of ``values``, one per leaf."""
        if self.kind in ("struct", "tuple"):
            target = getattr(data, self.kind)
            target.SetInParent()
            for member in self.members:
                member.encode(values, target.members.add())
        elif self.kind == "bool":
            data.bool = bool(next(values))
        elif self.kind == "int":
            data.bitstring = bytestring.encode_signed(next(values), self.width)
        else:
            data.bitstring = bytestring.encode(next(values))


def shape_of(spec: p4types_pb2.P4DataTypeSpec, info: p4types_pb2.P4TypeInfo, what: str, depth: int = 0) -> Shape:
    """Return the shape of a type. Raise UNIMPLEMENTED for kinds that digests cannot have.

    Those kinds are headers, stacks, errors and varbits.
    """
    if depth > MAX_DEPTH:
        raise invalid(f"{what}: types are nested more than {MAX_DEPTH} deep")
    which = spec.WhichOneof("type_spec")
    if which == "bitstring":
        kind = spec.bitstring.WhichOneof("type_spec")
        if kind in ("bit", "int"):
            return Shape(kind, getattr(spec.bitstring, kind).bitwidth)
    elif which == "bool":
        return Shape("bool", 1)
    elif which == "tuple":
        return Shape("tuple", members=tuple(shape_of(one, info, what, depth + 1) for one in spec.tuple.members))
    elif which == "struct":
        if spec.struct.name not in info.structs:
            raise invalid(f"{what}: the P4Info does not describe struct {spec.struct.name}")
        members = info.structs[spec.struct.name].members
        return Shape("struct", members=tuple(shape_of(one.type_spec, info, what, depth + 1) for one in members))
    elif which == "serializable_enum":
        if spec.serializable_enum.name not in info.serializable_enums:
            raise invalid(f"{what}: the P4Info does not describe enum {spec.serializable_enum.name}")
        underlying = info.serializable_enums[spec.serializable_enum.name].underlying_type
        return Shape("bit", underlying.bitwidth)
    elif which == "new_type":
        if spec.new_type.name not in info.new_types:
            raise invalid(f"{what}: the P4Info does not describe type {spec.new_type.name}")
        new = info.new_types[spec.new_type.name]
        if new.WhichOneof("representation") == "original_type":
            return shape_of(new.original_type, info, what, depth + 1)
        if new.translated_type.WhichOneof("sdn_type") == "sdn_bitwidth":
            return Shape("bit", new.translated_type.sdn_bitwidth)
    raise unimplemented(f"{what}: values of type {which or 'unknown'} are not supported")
