"""The change of a fragment's values since the sites agreed on them, as a site submits it for a round.

The change consists of tensors. Only those are sent that have changed at some site since training began: each site
submits the tensors that have changed at itself, or of which it knows that they have at others, and submits the round
again where the coordinator names more of them, or a smaller norm
(controlplane/planner/strategies/wan/site_contents.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, sqrt

import numpy as np

from controlplane.planner.strategies.wan.site_contents import Contents
from overlay.core.errors import OverlayError
from overlay.sites.packing import Floats, squares_of

NOTHING = 2
"""Number of values that a site submits for a round in which no tensor has changed at any site."""


class Change:
    """Holds the change of one site in one round, and makes it fit those of the other sites.

    Args:
        tensors: the change of each tensor of which this site has one, by its number: float32 of one dimension.
        sizes: numbers of values of all tensors.
        sent: the tensors that are sent in any case, as bits.
        reference: norm of the values that have changed.
        most: maximum norm, as a multiple of the median of the other sites' norms; None for any norm.

    Attributes:
        contents: the tensors that are sent, and the norm.
        not_finite: numbers of the tensors that have NaN or infinities: such a change cannot be submitted.
    """

    def __init__(
        self, tensors: Mapping[int, Floats], sizes: Sequence[int], *, sent: int = 0, reference: float = 0.0,
        most: float | None = None,
    ) -> None:  # fmt: skip
        self._tensors, self._sizes = dict(tensors), sizes
        squares = {number: squares_of(values) for number, values in tensors.items()}
        self.not_finite = [number for number, each in squares.items() if not isfinite(each)]
        for number, each in squares.items():
            sent |= int(each != 0) << number
        self.contents = Contents(sent, sqrt(sum(squares.values())), reference, most)

    def adapt(self, contents: Contents) -> None:
        """Make the change one of these contents. Raise OverlayError if they name tensors that there are not."""
        if contents.tensors >> len(self._sizes):
            raise OverlayError(f"the other sites send tensors that this model does not have ({contents.tensors:x})")
        if contents.norm < self.contents.norm:
            factor = contents.norm / self.contents.norm
            self._tensors = {
                number: (values.astype(np.float64) * factor).astype(np.float32)
                for number, values in self._tensors.items()
            }
        self.contents = contents

    def sent(self) -> tuple[Floats, tuple[int, ...]]:
        """Return the values of the tensors that are sent, and the number of each; a few zeros if none is sent."""
        numbers = self._numbers()
        if not numbers:
            return np.zeros(NOTHING, np.float32), (NOTHING,)
        sizes = tuple(self._sizes[number] for number in numbers)
        parts = [self._tensors.get(number, np.zeros(self._sizes[number], np.float32)) for number in numbers]
        return np.concatenate(parts), sizes

    def split(self, values: Floats) -> dict[int, Floats]:
        """Return the part of each tensor in `values`, which has those of all tensors that are sent."""
        found, first = {}, 0
        for number in self._numbers():
            found[number] = values[first : first + self._sizes[number]]
            first += self._sizes[number]
        return found

    def _numbers(self) -> list[int]:
        return [number for number in range(len(self._sizes)) if self.contents.tensors >> number & 1]
