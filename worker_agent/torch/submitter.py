"""Hands a rank's operations to the network, and keeps copies for the case that one fails there."""

from __future__ import annotations

from collections.abc import Callable

import torch

from worker_agent.collectives import Kind
from worker_agent.errors import AgentError
from worker_agent.metrics import Counts
from worker_agent.torch.local_ranks import LocalRanks
from worker_agent.torch.passage import passage
from worker_agent.torch.route import Route
from worker_agent.torch.steps import Item
from worker_agent.work import Work


class Submitter:
    """Submits operations in their order.

    Args:
        local: the ranks of this node; None: this is the only one.
        agreement: whether an operation may be repeated, from a copy of its input.
        early_done, early_failed: called, from any thread, when an early operation has its result or has failed.
    """

    def __init__(
        self,
        local: LocalRanks | None,
        agreement: bool,
        counts: Counts,
        early_done: Callable[[Item], None],
        early_failed: Callable[[], None],
    ) -> None:
        self._local, self._agreement, self._counts = local, agreement, counts
        self._early_done, self._early_failed = early_done, early_failed
        self._copies: dict[int, torch.Tensor] = {}

    def submit(self, item: Item, route: Route, alone: bool) -> None:
        """Start an operation; if that fails, `item.problem` says why.

        `alone` says that no other step is in progress.
        """
        if (
            item.written is not None
        ):  # an operation that another thread starts must come after the work that wrote the buffer
            item.written.wait()
        try:
            if self._local is not None:
                item.passage = passage(self._local, item.buffer, item.op, route)
                item.reduced = item.passage.reduced
            elif item.early:
                if not item.op.raw:  # The caller may write over its own copy as soon as it has the result.
                    item.before = item.buffer.clone()
                self._submit_early(item, route)
            else:
                # Broadcasts and gathers do not change the source's data.
                if self._agreement and item.before is None and not item.op.raw:
                    item.before = self._copy(item, alone)
                item.reduced = route.begin(item.buffer, item.op)
        except AgentError as error:
            item.problem = str(error)
            item.ended.set()

    def _submit_early(self, item: Item, route: Route) -> None:
        """Start an operation whose result the caller gets at once, and on which the ranks agree later."""
        self._counts.step_begins(True)
        item.completion.work = work = route.lane.submit(item.buffer, item.op)

        def ended(_: Work) -> None:
            error = work.exception()
            if error is not None:
                item.problem = str(error)
                item.ended.set()
                self._early_failed()
                return
            scattered = item.op.kind is Kind.REDUCE_SCATTER
            item.kept = item.buffer.new_empty(0) if scattered else item.buffer.clone()
            item.ended.set()
            self._counts.step_ends(item.step.began, item.added)
            self._early_done(item)

        work.add_done_callback(ended)

    def _copy(self, item: Item, alone: bool) -> torch.Tensor:
        """Return a copy of the buffer's content; its memory is reused by the next step if this one is alone."""
        buffer, position = item.buffer, len(item.step.items) - 1
        if not alone:
            return buffer.clone()
        copy = self._copies.get(position)
        if copy is None or (copy.shape, copy.dtype, copy.device) != (buffer.shape, buffer.dtype, buffer.device):
            copy = self._copies[position] = torch.empty_like(buffer)
        return copy.copy_(buffer)
