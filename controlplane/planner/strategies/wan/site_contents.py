"""Contents of the values that sites submit for a round: which tensors they are of, and how large they are.

Sites send only the tensors that have changed at some site, and a site whose change is much larger than those of the
others must not decide the mean. A site knows neither of the others before it submits its values, so the coordinator
compares the contents before the round begins. It gives a submission that does not fit back to its site, which submits
again, with the contents that `adapted` returns:

- The tensors are those of all sites together.
- The norm is at most `most` times the median of the norms of the other sites that count (with a weight and a norm above
  0), or at most `reference` if no other site counts. Of an even number of norms, the median is the lower middle one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from statistics import median_low
from typing import Any

MOST_DIGITS = 1 << 18
"""Maximum number of hexadecimal digits of the tensors, each of which stands for four tensors."""


@dataclass(frozen=True)
class Contents:
    """Contents of the values of one site.

    Attributes:
        tensors: The numbers of the tensors whose values are submitted, as bits.
        norm: Euclidean norm of the values.
        reference: Norm of the values that the sites share, which the submitted values change.
        most: Maximum norm, as a multiple of the median of the other sites' norms; None for any norm.
    """

    tensors: int
    norm: float
    reference: float = 0.0
    most: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the contents as an object of JSON."""
        return {"tensors": f"{self.tensors:x}", "norm": self.norm, "reference": self.reference, "most": self.most}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Contents:
        """Return the contents that another process sent. Raise ValueError, KeyError or TypeError if they are wrong."""
        digits, norm, reference = str(data["tensors"]), float(data["norm"]), float(data["reference"])
        most = None if data["most"] is None else float(data["most"])
        tensors = int(digits[: MOST_DIGITS + 1], 16)
        numbers = norm, reference, most or 0.0
        if len(digits) > MOST_DIGITS or tensors < 0 or not all(0 <= each < inf for each in numbers):
            raise ValueError(f"contents: {digits[:80]}, {norm}, {reference}, {most} are outside their ranges")
        return cls(tensors, norm, reference, most)


def adapted(given: Mapping[str, tuple[float, Contents | None]]) -> dict[str, Contents]:
    """Return, for each site that has to submit its values again, the contents that they have to have.

    Args:
        given: weight and contents of each site's submission for a round; None for values of any contents.
    """
    contents = {site: each for site, (_, each) in given.items() if each is not None}
    tensors = 0
    for each in contents.values():
        tensors |= each.tensors
    norms = {site: each.norm for site, each in contents.items() if given[site][0] > 0 and each.norm > 0}
    wanted = {}
    for site, each in contents.items():
        rest = [norm for other, norm in norms.items() if other != site]
        limit = inf
        if each.most is not None and site in norms and len(contents) > 1:
            limit = each.most * median_low(rest) if rest else each.reference or inf
        fitting = replace(each, tensors=tensors, norm=min(each.norm, limit))
        if fitting != each:
            wanted[site] = fitting
    return wanted
