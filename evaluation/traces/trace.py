"""A trace: the collectives of one training step, in their order."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

HOW = ("ddp", "fsdp2", "hsdp")
"""What can be recorded: gradients in buckets (DDP), sharded over all nodes, sharded within a node and replicated."""


@dataclass(frozen=True)
class Operation:
    """A collective. nbytes: of the whole tensor, of an all-gather and a reduce-scatter of all parts together."""

    op: str
    dtype: str
    nbytes: int


@dataclass(frozen=True)
class Trace:
    """The operations of one step among `workers` nodes, in their order."""

    name: str
    workers: int
    operations: tuple[Operation, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> Trace:
        """Raises ValueError when it is no trace."""
        try:
            operations = tuple(Operation(**one) for one in known["operations"])
            return cls(str(known["name"]), int(known["workers"]), operations)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no trace: {error!r}") from None
