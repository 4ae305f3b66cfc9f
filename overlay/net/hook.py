"""PyTorch over the overlay: a DDP communication hook, and model averaging for partial reduce and multicasts.

    agent = overlay.Agent(("10.0.0.1", 9700), "h3", listen=("10.0.0.3", 0))
    model.register_comm_hook(hook.HookState(agent), hook.overlay_hook)     # every rank, every step

or between local steps, where not all agents take part each time (CREW, SelMcast):

    average(model, agent)
"""

# No annotations from __future__ here: DDP compares the types of the hook's parameters.
from concurrent.futures import Future

import torch
from torch import nn
from torch.distributed import GradBucket

from overlay.net.agent import Agent, Done


class HookState:
    """The state that DDP passes to the hook: the node's agent."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent


def overlay_hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Replace the bucket by its mean over all ranks; the future ends in the agent's thread. Raise TypeError for a
    tensor that is not float32 on the CPU.
    """
    tensor = bucket.buffer()
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        raise TypeError(f"the overlay's hook takes float32 gradients on the CPU, got {tensor.dtype} on {tensor.device}")
    result: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def finished(done: Future[Done]) -> None:
        error = done.exception()
        if error is None:
            result.set_result(tensor)
        else:
            result.set_exception(error)  # type: ignore[arg-type]

    state.agent.synchronise_async(tensor.detach().numpy()).add_done_callback(finished)
    return result


@torch.no_grad()
def average(model: nn.Module, agent: Agent, timeout: float | None = None) -> Done:
    """Submit the model's parameters (float32, CPU), wait, and copy the result into them. Raise OverlayError where the
    synchronisation fails, and Late (a TimeoutError) when `timeout` seconds have passed.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    done = agent.synchronise(flat.numpy(), timeout)
    first = 0
    for parameter in parameters:
        parameter.copy_(flat[first : first + parameter.numel()].view_as(parameter))
        first += parameter.numel()
    return done
