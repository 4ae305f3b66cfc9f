"""A trainer's tensor during a task: the values to send, the results that replace them, and how to undo that."""

from __future__ import annotations

import numpy as np

from overlay.core.message import Values


class TrainerTensor:
    """values: the trainer's tensor, float32 and of one dimension; None before it is submitted and after `clear`.
    source: the values to send: the same memory, or a copy where they must outlast the results. restorable: whether the
    submitted values may have to be restored; not so for memory that no trainer has submitted."""

    def __init__(self, *, restorable: bool) -> None:
        self._restorable = restorable
        self.values: Values | None = None
        self.source: Values | None = None
        self._overwritten: dict[tuple[int, int], Values] = {}  # (start, end) -> the submitted values

    def submit(self, values: Values, *, copied: bool) -> None:
        """The trainer's values are there. copied: they are sent from a copy."""
        self.values = values
        self.source = values.copy() if copied else values

    def buffer(self, start: int, end: int) -> Values | None:
        """The memory of this part of the tensor, into which a result may be received; None: there is no tensor yet."""
        if self.values is None:
            return None
        self._keep(start, end)
        return self.values[start:end]

    def write(self, start: int, end: int, result: Values) -> None:
        """A result replaces this part of the tensor, unless it was received into it (`buffer`)."""
        assert self.values is not None, "results are written after the trainer has submitted its values"
        part = self.values[start:end]
        if part.ctypes.data != result.ctypes.data:
            self._keep(start, end)
            part[:] = result

    def add(self, start: int, end: int, values: Values) -> None:
        """Adds to this part of the tensor."""
        assert self.values is not None, "values are added after the trainer has submitted its own"
        part = self.values[start:end]
        part += values

    def scale(self, factor: float) -> None:
        """Multiplies the whole tensor; nothing when there is none."""
        if self.values is not None:
            np.multiply(self.values, np.float32(factor), out=self.values)

    def commit(self) -> None:
        """The tensor has all results: the submitted values are not needed any more."""
        self._overwritten.clear()

    def restore(self) -> None:
        """The tensor has the submitted values again, so that no sums stay in a part of it."""
        if self.values is None or self.source is None:
            return
        if self.source is not self.values:
            self.values[:] = self.source
        for (start, end), values in self._overwritten.items():
            self.values[start:end] = values
        self._overwritten.clear()

    def clear(self) -> None:
        """The tensor is the trainer's again."""
        self.values = self.source = None
        self._overwritten.clear()

    def _keep(self, start: int, end: int) -> None:
        """Keeps the submitted values of a part that a result is going to replace, where there is no other copy."""
        if self._restorable and self.values is not None and self.source is self.values:
            self._overwritten.setdefault((start, end), self.values[start:end].copy())
