"""Reads the collectives out of Chakra's execution traces in protobuf (NAME.RANK.et), which its linker and converter
make and which simulators (ASTRA-sim) take.

Such a file is a metadata message and then one message for each node of the rank's graph, each with its length as a
varint before it. Of the nodes only the collectives count here, and of these the type, the bytes of their inputs and the
name. These files do not have the type of the values (they are replayed as float32) and the size of the groups, which is
the number of files of the same NAME in the folder. Nodes are replayed in the file's order, one after the other, as NCCL
runs the operations of a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from evaluation.traces.trace import Operation, Trace

WORD = 4
"""Bytes of a float32."""
COLLECTIVE = 7
"""The type of a node that is a collective."""
OPS = {0: "allreduce", 2: "all_gather", 5: "broadcast", 7: "reduce_scatter", 8: "reduce_scatter"}
"""The operations of our traces, by Chakra's numbers of collectives."""
OTHERS = {1: "reduce", 3: "gather", 4: "scatter", 6: "all-to-all"}
BARRIER = 9
VARINT_MOST = 5
"""Most bytes of a varint with 32 bits."""


@cache
def _node_type() -> Any:
    """Return the class of a node, with the fields that count here; other fields of a message are ignored."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="inart/chakra.proto", package="inart.chakra", syntax="proto3")
    attribute = file.message_type.add(name="Attribute")
    attribute.field.add(name="name", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    for name, number, kind in (
        ("int32", 7, field.TYPE_INT32),
        ("int64", 9, field.TYPE_INT64),
        ("uint32", 11, field.TYPE_UINT32),
        ("uint64", 13, field.TYPE_UINT64),
    ):
        attribute.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    node = file.message_type.add(name="Node")
    node.field.add(name="name", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    node.field.add(name="type", number=3, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    attributes = node.field.add(name="attributes", number=10, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED)
    attributes.type_name = ".inart.chakra.Attribute"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inart.chakra.Node"))


def read_chakra(path: Path, workers: int) -> Trace:
    """Return the collectives of the file's rank. `workers` is the number of ranks where the folder has no file of
    another rank. Raise ValueError for a file of another kind, without a collective, or with one that the network cannot
    do; OSError.
    """
    prefix = path.name.split(".")[0]
    ranks = len(list(path.parent.glob(f"{prefix}.*.et")))
    workers = ranks if ranks > 1 else workers
    try:
        operations = tuple(_operations(path.read_bytes(), workers))
    except (DecodeError, IndexError) as error:
        raise ValueError(f"{path}: no trace of Chakra's: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not operations:
        raise ValueError(f"{path}: no collective in it")
    return Trace(prefix, workers, operations)


def _messages(content: bytes) -> Iterator[bytes]:
    """Yield the messages, each of which has its length before it. Raise IndexError for half a message at the end."""
    at = 0
    while at < len(content):
        length = 0
        for place in range(VARINT_MOST):
            byte = content[at]
            at += 1
            length |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                break
        else:
            raise IndexError(f"a message's length has over {VARINT_MOST} bytes")
        if at + length > len(content):
            raise IndexError("it ends in the middle of a message")
        yield content[at : at + length]
        at += length


def _operations(content: bytes, workers: int) -> Iterator[Operation]:
    messages = _messages(content)
    next(messages, None)  # the file's metadata
    for message in messages:
        node = _node_type().FromString(message)
        if node.type != COLLECTIVE:
            continue
        numbers = {each.name: each.int32 or each.int64 or each.uint32 or each.uint64 for each in node.attributes}
        kind = numbers.get("comm_type", BARRIER)  # without one: the host's call of a collective that has its own node
        if kind == BARRIER:
            continue
        if "comm_size" not in numbers:
            raise ValueError(f"collective {node.name!r} has no comm_size")
        size = numbers["comm_size"]
        if kind not in OPS:
            name, known = OTHERS.get(kind, f"collective {kind}"), ", ".join(sorted(set(OPS.values())))
            raise ValueError(f"{node.name!r} is of the kind {name}: these go in the network: {known}")
        nbytes = size * workers if OPS[kind] == "all_gather" else size
        unit = WORD * workers if OPS[kind] in ("all_gather", "reduce_scatter") else WORD
        yield Operation(OPS[kind], "float32", -(-nbytes // unit) * unit)
