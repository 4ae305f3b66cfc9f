"""DistributedDataParallel's gradients summed in the network: one line in a training script.

    state = InArtState(controller="10.1.0.1:9600")
    model.register_comm_hook(state, inart_hook)

The hook gives what DDP's default gives, the mean over all ranks, and returns at once: its Future is completed from the
agent's thread. Any number of buckets may be under way. Gradients may be on the CPU or on CUDA devices, float32, float16
or bfloat16.
"""

# No postponed annotations here: DDP compares the hook's with the class itself.
import threading
import warnings
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from controlplane.rpc.tls import Tls
from worker_agent.agent import connect
from worker_agent.engine import DEFAULT_TIMEOUT, DTYPES, Operation, Work
from worker_agent.errors import AgentError
from worker_agent.local import LocalAgent
from worker_agent.staging import Completion, CudaStaging


class Reducer(Protocol):
    """What the hook needs of an agent: worker_agent.Agent, or a LocalAgent over a socket."""

    @property
    def world_size(self) -> int: ...

    def allreduce_async(self, array: Any, op: Operation = "sum", *, dtype: str | None = None) -> Work: ...

    def close(self) -> None: ...


class FallbackWarning(UserWarning):
    """The job trains without in-network aggregation; the message says why."""


class InArtState:
    """State of `inart_hook`: joins the job's controller when it is made.

    Make it on all ranks, after `torch.distributed.init_process_group`: the ranks agree over the process group whether
    all of them can run in-network. If one cannot, all use torch.distributed's all-reduce, with a FallbackWarning.
    Later failures are errors, since gradients may be lost in one.

    Args:
        controller: "host:port"; None: $INART_CONTROLLER.
        agent: instead of a controller: "unix:/path" of a `python -m worker_agent serve` on this machine, or an agent
            that is there already (the caller closes it).
        node: name in the topology; None: the one whose address this machine has.
        process_group: of the DDP model; None: the default group.
        timeout: seconds to wait for the other agents.
        operation_timeout: seconds without progress after which an all-reduce fails.
        fallback: False: raise instead of falling back, on all ranks.
        interface, tls: see worker_agent.Agent.

    Raises:
        AgentError: it cannot run in-network and `fallback` is False.
    """

    def __init__(
        self,
        controller: str | None = None,
        *,
        agent: str | Reducer | None = None,
        node: str | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout: float = 60.0,
        operation_timeout: float = DEFAULT_TIMEOUT,
        fallback: bool = True,
        interface: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise RuntimeError("call torch.distributed.init_process_group before making an InArtState")
        group = process_group or dist.group.WORLD
        assert group is not None, "initialised, so there is a default group"
        self.process_group: dist.ProcessGroup = group
        self.reducer: Reducer | None = None
        self._owns_reducer = agent is None or isinstance(agent, str)
        self._staging: CudaStaging | None = None
        self._lock = threading.Lock()
        problem = ""
        try:
            if agent is not None and controller is not None:
                raise ValueError("give a controller or an agent, not both")
            if isinstance(agent, str):
                self.reducer = LocalAgent(agent, timeout)
            elif agent is not None:
                self.reducer = agent
            else:
                self.reducer = connect(
                    controller, node, timeout, interface=interface, tls=tls, operation_timeout=operation_timeout
                )
            world = dist.get_world_size(self.process_group)
            if self.reducer.world_size != world:
                problem = f"the job has {self.reducer.world_size} workers, the process group {world} ranks"
        except (AgentError, OSError, ValueError) as error:
            problem = str(error)
        problems = self._agree(problem)
        if problems:
            self.close()
            if not fallback:
                raise AgentError(f"cannot aggregate in the network: {problems}")
            message = f"in-network aggregation is not used, torch.distributed's all-reduce is: {problems}"
            warnings.warn(message, FallbackWarning, stacklevel=2)

    def _agree(self, problem: str) -> str:
        """The problems of all ranks, in words; empty when there are none. A collective call."""
        everyone: list[Any] = [None] * dist.get_world_size(self.process_group)
        dist.all_gather_object(everyone, problem, group=self.process_group)
        found = {rank: text for rank, text in enumerate(everyone) if text}
        # Often the same for all: a controller that is not there.
        causes = sorted(set(found.values()), key=list(found.values()).index)
        lines = []
        for cause in causes[:4]:
            ranks = [str(rank) for rank, text in found.items() if text == cause]
            which = "all ranks" if len(ranks) == len(everyone) else f"rank {', '.join(ranks)}"
            lines.append(f"{which}: {cause}")
        return "; ".join(lines) + ("; ..." if len(causes) > 4 else "")

    @property
    def in_network(self) -> bool:
        """Whether gradients go through the network's switches (else through torch.distributed)."""
        return self.reducer is not None

    def start(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """The mean of a bucket over all ranks, in place, when the Future is done."""
        assert self.reducer is not None
        name = str(buffer.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise TypeError(f"gradients are {name}, InArt reduces {', '.join(DTYPES)}: train in one of these")
        if buffer.device.type == "cpu":
            return _start_cpu(self.reducer, buffer)
        if buffer.device.type == "cuda":
            with self._lock:
                if self._staging is None:
                    self._staging = CudaStaging(self.reducer.allreduce_async)
            return self._staging.start(buffer)
        raise TypeError(f"gradients are on {buffer.device}, InArt reduces those on CPU and CUDA devices")

    def close(self) -> None:
        """Leave the job; do it after the last backward. Again: nothing happens."""
        if self._staging is not None:
            self._staging.close()
            self._staging = None
        if self.reducer is not None and self._owns_reducer:
            self.reducer.close()
        self.reducer = None


def _start_cpu(reducer: Reducer, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    completion = Completion(buffer)
    reducer.allreduce_async(buffer, "mean").add_done_callback(lambda work: completion.finish(work.exception()))
    return completion.future


def inart_hook(state: InArtState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook for `DistributedDataParallel.register_comm_hook`."""
    if not state.in_network:
        return default_hooks.allreduce_hook(state.process_group, bucket)
    return state.start(bucket.buffer())
