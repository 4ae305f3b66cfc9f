"""DistributedDataParallel's gradients summed in the network: one line in a training script.

    state = InArtState(controller="10.1.0.1:9600")
    model.register_comm_hook(state, inart_hook)

The hook gives what DDP's default gives, the mean over all ranks, and returns at once: its Future is completed from
another thread. Any number of buckets may be under way. Gradients may be on the CPU or on CUDA devices, float32, float16
or bfloat16. A step that does not get through the network is done over torch.distributed, and so are those after it
until the network is back (recovery.py).
"""

# No postponed annotations here: DDP compares the hook's with the class itself.
import contextlib
import logging
import threading
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from controlplane.rpc.tls import Tls
from worker_agent.agent import Agent, controller_address
from worker_agent.engine import DEFAULT_TIMEOUT, DTYPES
from worker_agent.errors import AgentError, NotReadyError
from worker_agent.local import LocalAgent
from worker_agent.recovery import FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, Reducer, Return, Steps, agree
from worker_agent.staging import Completion, CudaStaging

STEADY_SECONDS = 60.0
"""In the network for so long: what failed before is forgotten, and the next way back begins quickly."""

logger = logging.getLogger("inart")


class FallbackWarning(UserWarning):
    """The job trains without in-network aggregation; the message says why."""


class InArtState:
    """State of `inart_hook`: joins the job's controller when it is made. One for each DDP model.

    Make it on all ranks, after `torch.distributed.init_process_group`: the ranks agree over the process group whether
    all of them can run in-network. If one cannot, at the start or at a later step, all use torch.distributed's
    all-reduce from that step on, each says so with a FallbackWarning, and all return at one later step once all can.
    No gradient is lost: a step that did not arrive everywhere is done again, over torch.distributed, from what the
    gradients were. This costs a copy of the gradients in memory and an all-reduce of four bytes over gloo a step.

    Args:
        controller: "host:port"; None: $INART_CONTROLLER.
        agent: instead of a controller: "unix:/path" of a `python -m worker_agent serve` on this machine, or an agent
            that is there already (the caller closes it).
        node: name in the topology; None: the one whose address this machine has.
        process_group: of the DDP model; None: the default group.
        timeout: seconds to wait for the other agents at the start.
        operation_timeout: seconds without progress after which an all-reduce fails.
        fallback: False: raise instead, on all ranks at the start, on those that notice in a step; no copy, no
            agreement.
        interface, tls: see worker_agent.Agent.

    Attributes:
        steps_in_network, steps_outside, falls: how many steps went which way (with fallback), and how often the job
            left the network.

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
        self.steps_in_network = self.steps_outside = self.falls = 0
        self._source = _Source(
            controller, agent, node=node, operation_timeout=operation_timeout, interface=interface, tls=tls
        )
        self._staging: CudaStaging | None = None
        self._lock = threading.Lock()
        self._return: Return | None = None
        self._between_steps = True
        self._in_network_since = time.monotonic()
        self._pause = FIRST_PAUSE_SECONDS
        world, problem = dist.get_world_size(group), ""
        try:
            self.reducer = self._source.join(timeout)
            if self.reducer.world_size != world:
                problem = f"the job has {self.reducer.world_size} workers, the process group {world} ranks"
        except (AgentError, OSError, ValueError) as error:
            problem = str(error)
        problems = agree(problem, group)
        if problems and not fallback:
            self.close()
            raise AgentError(f"cannot aggregate in the network: {problems}")
        self._steps = Steps(group, self._fall_back) if fallback else None
        if problems:
            self._fall_back(problems)

    @property
    def in_network(self) -> bool:
        """Whether gradients go through the network's switches (else through torch.distributed)."""
        return self.reducer is not None

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The mean of a bucket over all ranks, when the Future is done."""
        if self._steps is None:
            return self.start(bucket.buffer())
        if self._between_steps:
            self._between_steps = False
            self._begin_step()
        if bucket.is_last():
            self._between_steps = True
        if not self.in_network:
            return default_hooks.allreduce_hook(self.process_group, bucket)
        self._check(bucket.buffer())
        return self._steps.add(bucket.buffer(), self.start, bucket.is_last())

    def start(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """The mean of a tensor over all ranks, in place, through the network. Raises AgentError, TypeError."""
        self._check(buffer)
        with self._lock:
            if self.reducer is None:
                raise AgentError("the job does not run in the network")
            if buffer.device.type == "cpu":
                return _start_cpu(self.reducer, buffer)
            if self._staging is None:
                self._staging = CudaStaging(self.reducer.allreduce_async)
            return self._staging.start(buffer)

    @staticmethod
    def _check(buffer: torch.Tensor) -> None:
        name = str(buffer.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise TypeError(f"gradients are {name}, InArt reduces {', '.join(DTYPES)}: train in one of these")
        if buffer.device.type not in ("cpu", "cuda"):
            raise TypeError(f"gradients are on {buffer.device}, InArt reduces those on CPU and CUDA devices")

    def _begin_step(self) -> None:
        if self._return is not None and (reducer := self._return.poll()) is not None:
            self._return.close()
            with self._lock:
                self._return, self.reducer = None, reducer
            self._in_network_since = time.monotonic()
            logger.warning("in-network aggregation is used again")
        if self.in_network:
            self.steps_in_network += 1
        else:
            self.steps_outside += 1

    def _fall_back(self, reasons: str) -> None:
        """From now on over torch.distributed, on all ranks; called on all of them at the same step."""
        steady = time.monotonic() - self._in_network_since > STEADY_SECONDS
        self._pause = FIRST_PAUSE_SECONDS if steady or not self.falls else min(2 * self._pause, LAST_PAUSE_SECONDS)
        self.falls += 1
        assert self._steps is not None, "only then"
        with self._lock:
            self.reducer = None
            staging, self._staging = self._staging, None
            world = dist.get_world_size(self.process_group)
            self._return = Return(self._source.join, self._steps.group, world, self._pause)
        if staging is not None:
            staging.close()
        message = f"in-network aggregation is not used, torch.distributed's all-reduce is, until it is back: {reasons}"
        warnings.warn(message, FallbackWarning, stacklevel=3)

    def close(self) -> None:
        """Leave the job; do it after the last backward. Again: nothing happens."""
        steps, self._steps = getattr(self, "_steps", None), None
        if steps is not None:
            steps.close()
        if self._return is not None:
            self._return.close()
            self._return = None
        if steps is not None and dist.is_initialized():
            with contextlib.suppress(ValueError):  # gone with the default group meanwhile
                dist.destroy_process_group(steps.group)
        if self._staging is not None:
            self._staging.close()
            self._staging = None
        self.reducer = None
        self._source.close()


class _Source:
    """Where the reducer comes from: joins, and joins again. Arguments as InArtState's."""

    def __init__(
        self,
        controller: str | None,
        agent: str | Reducer | None,
        *,
        node: str | None,
        operation_timeout: float,
        interface: str | None,
        tls: Tls | None,
    ) -> None:
        self._controller = controller
        self._given = agent
        self._make_agent = lambda address: Agent(
            address, node, interface=interface, tls=tls, operation_timeout=operation_timeout
        )
        self._own: Agent | LocalAgent | None = None

    def join(self, timeout: float) -> Reducer:
        """A reducer that is ready. Raises AgentError, OSError, ValueError: not within `timeout` seconds, or never."""
        if self._given is not None and self._controller is not None:
            raise ValueError("give a controller or an agent, not both")
        if self._given is not None and not isinstance(self._given, str):
            return self._given
        if isinstance(self._given, str):
            # A connection is ready when it is made, and does not become so again.
            self.close()
            self._own = LocalAgent(self._given, timeout)
            return self._own
        agent = self._own if isinstance(self._own, Agent) else self._make_agent(controller_address(self._controller))
        self._own = agent
        try:
            agent.wait_ready(timeout)
        except NotReadyError:
            raise  # it stays joined: the others may come
        except AgentError:
            self.close()
            raise
        return agent

    def close(self) -> None:
        """End what was made here."""
        own, self._own = self._own, None
        if own is not None:
            own.close()


def _start_cpu(reducer: Reducer, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    completion = Completion(buffer)
    reducer.allreduce_async(buffer, "mean").add_done_callback(lambda work: completion.finish(work.exception()))
    return completion.future


def inart_hook(state: InArtState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook for `DistributedDataParallel.register_comm_hook`."""
    return state.reduce(bucket)
