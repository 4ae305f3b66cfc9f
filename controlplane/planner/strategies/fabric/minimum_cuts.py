"""The nodes that a flow still reaches: the sender's side of a minimum cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # SciPy takes 0.4 s to import: only who looks for cuts brings it along
    from scipy.sparse import csr_matrix

UNITS = 1_000_000  # of a rate: SciPy's flows are of whole numbers


def senders_side(graph: csr_matrix, flow: csr_matrix, source: int) -> NDArray[np.int32]:
    """Return the nodes to which more can flow from `source`. graph: capacities in whole numbers; flow: a maximum flow
    in it from `source` (`scipy.sparse.csgraph.maximum_flow`). What leaves these nodes is full."""
    from scipy.sparse.csgraph import breadth_first_order

    left = graph - flow
    left.data[left.data < 0] = 0
    left.eliminate_zeros()
    reached: NDArray[np.int32] = breadth_first_order(left, source, return_predecessors=False)
    return reached
