"""A trainer's tensor during a task: the values to send, the results that replace them, and how to undo that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from overlay.core.message import Values


class TrainerTensor:
    """A trainer's tensor while a task replaces its values.

    Args:
        memory: called as memory(n); returns an array of n values.
        restorable: whether the submitted values may have to be restored; memory that no trainer has submitted need
            not be.

    Attributes:
        values: the tensor, float32 and of one dimension; None before it is submitted and after `clear`.
        source: the values to send: the same memory, or a copy where they must outlast the results.
    """

    def __init__(self, memory: Callable[[int], Values], *, restorable: bool) -> None:
        self._memory, self._restorable = memory, restorable
        self.values: Values | None = None
        self.source: Values | None = None
        self._overwritten: set[tuple[int, int]] = set()  # parts (start, end), whose submitted values are in `_kept`
        self._kept: Values | None = None  # as large as the tensor
        self._receiving: dict[int, Values] = {}  # by its start, the part into which a result may be received

    def submit(self, values: Values, *, copied: bool) -> None:
        """Take the trainer's values; with `copied`, keep a copy of them to send from."""
        self.values = values
        self.source = values
        if copied:
            self.source = self._memory(len(values))
            self.source[:] = values

    def buffer(self, start: int, end: int) -> Values | None:
        """Return the memory of this part of the tensor, into which a result may be received; None before the tensor is
        submitted.
        """
        if self.values is None:
            return None
        self.keep(start, end)
        part = self._receiving[start] = self.values[start:end]
        return part

    def write(self, start: int, end: int, result: Values) -> None:
        """Replace this part of the tensor by a result, unless the result was received into it (`buffer`)."""
        assert self.values is not None, "results are written after the trainer has submitted its values"
        if self._receiving.pop(start, None) is not result:
            self.keep(start, end)
            self.values[start:end] = result

    def add(self, start: int, end: int, values: Values) -> None:
        """Add the values to this part of the tensor."""
        assert self.values is not None, "values are added after the trainer has submitted its own"
        part = self.values[start:end]
        part += values

    def scale(self, factor: float) -> None:
        """Multiply the whole tensor by a factor; do nothing where no tensor is submitted."""
        if self.values is not None:
            np.multiply(self.values, np.float32(factor), out=self.values)

    def commit(self) -> None:
        """Forget the submitted values: the tensor has all results."""
        self._forget_kept()

    def restore(self) -> None:
        """Give the tensor the submitted values again, so that no sums stay in a part of it."""
        if self.values is None or self.source is None:
            return
        if self.source is not self.values:
            self.values[:] = self.source
        for start, end in self._overwritten:
            assert self._kept is not None, "parts are kept before results replace them"
            self.values[start:end] = self._kept[start:end]
        self._forget_kept()

    def clear(self) -> None:
        """Let go of the tensor, which is the trainer's again."""
        self.values = self.source = None
        self._forget_kept()

    def keep(self, start: int, end: int) -> None:
        """Keep the submitted values of a part that a result is going to replace, where there is no other copy. That
        costs least when something has just read them.
        """
        if self._restorable and self.values is not None and self.source is self.values:
            if (start, end) in self._overwritten:
                return
            if self._kept is None:
                self._kept = self._memory(len(self.values))
            self._kept[start:end] = self.values[start:end]
            self._overwritten.add((start, end))

    def _forget_kept(self) -> None:
        self._overwritten.clear()
        self._receiving.clear()
        self._kept = None
