"""A trace: the collectives of one training step, in their order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

HOW = ("ddp", "fsdp2", "fsdp2-ahead", "hsdp")
"""Kinds of training that can be recorded: gradients in buckets (DDP), sharded over all nodes, the same with parameters
gathered ahead (`worker_agent.torch.fsdp.gather_ahead`), sharded within a node and replicated."""


@dataclass(frozen=True)
class Operation:
    """A collective.

    Attributes:
        nbytes: bytes of the whole tensor; for an all-gather and a reduce-scatter those of all parts together.
        beside: places in the trace of the operations before it that may still be under way when it begins; the
            others have ended.
    """

    op: str
    dtype: str
    nbytes: int
    beside: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trace:
    """The operations of one step among `workers` nodes, in their order."""

    name: str
    workers: int
    operations: tuple[Operation, ...]

    def groups(self) -> list[list[Operation]]:
        """Return the operations in groups, each of which begins when all before it have ended."""
        found: list[list[Operation]] = []
        for one in self.operations:
            if not found or not one.beside:
                found.append([])
            found[-1].append(one)
        return found

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> Trace:
        """Return the trace in an object of JSON. Raise ValueError when it is none."""
        try:
            operations = [Operation(**one) for one in known["operations"]]
            operations = [replace(one, beside=tuple(map(int, one.beside))) for one in operations]
            name, workers = str(known["name"]), int(known["workers"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"no trace: {error!r}") from None
        for place, one in enumerate(operations):
            if any(not 0 <= other < place for other in one.beside):
                raise ValueError(f"no trace: operation {place} is beside {one.beside}, which are not all before it")
        return cls(name, workers, tuple(operations))
