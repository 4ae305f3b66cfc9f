"""The path of a tensor through the network."""

from __future__ import annotations

import torch

from worker_agent.collectives import Collective
from worker_agent.lane import Lane, lane_of
from worker_agent.shared import Reducer
from worker_agent.torch.result import Completion, Result
from worker_agent.torch.staging import CudaStaging


class Route:
    """Gives tensors to the agent, from host memory or from a CUDA device."""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer
        self.lane: Lane = lane_of(reducer)
        self.staging = CudaStaging(self.lane)

    def begin(self, buffer: torch.Tensor, op: Collective) -> Result:
        """Start the mean or sum over the workers, in place. Raise AgentError where the agent refuses."""
        if buffer.is_cuda:
            return self.staging.start(buffer, op)
        completion = Completion(buffer)
        completion.work = self.lane.submit(buffer, op)
        completion.work.add_done_callback(lambda done: completion.finish(done.exception()))
        return completion

    def late(self) -> list[str]:
        """Return the workers that are waited for, if the agent can tell."""
        ask = getattr(self.reducer, "late", None)
        return list(ask()) if ask is not None else []
