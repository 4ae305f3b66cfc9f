"""The nodes that a flow still reaches: the sender's side of a minimum cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # importing SciPy takes 0.4 s: only code that searches for cuts does
    from scipy.sparse import csr_matrix

UNITS = 1_000_000  # units of a rate, as SciPy's flows are whole numbers


def senders_side(graph: csr_matrix, flow: csr_matrix, source: int) -> NDArray[np.int32]:
    """Return the nodes to which more can flow from `source`; all links out of this set are full. `graph` has capacities
    in whole numbers, `flow` a maximum flow in it from `source` (`scipy.sparse.csgraph.maximum_flow`).
    """
    from scipy.sparse.csgraph import breadth_first_order

    left = graph - flow
    left.data[left.data < 0] = 0
    left.eliminate_zeros()
    reached: NDArray[np.int32] = breadth_first_order(left, source, return_predecessors=False)
    return reached
