"""Sums DistributedDataParallel's gradients in the network, with one line in a training script.

    state = InArtState(controller="10.1.0.1:9600")
    model.register_comm_hook(state, inart_hook)

The hook computes what DDP computes by default, the mean over all ranks, and returns at once: its Future is completed
from another thread. Any number of buckets may be in progress. Gradients may be on the CPU or on CUDA devices, as
float32, float16 or bfloat16. A step that fails in the network is repeated over torch.distributed, and so are those
after it until the network is back (recovery.py). The ranks of a node first add up among themselves (local_ranks.py).
"""

# Annotations are not postponed here, because DDP compares the hook's annotations with the class itself.
import contextlib
import logging
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from controlplane.common.rpc.tls import Tls
from worker_agent.collectives import MEAN, Collective, Operation, collective
from worker_agent.errors import AbortedError, AgentError, AllReduceError
from worker_agent.fields import FIELDS
from worker_agent.metrics import Counts
from worker_agent.operands import DTYPES
from worker_agent.shared import Node, Options, Reducer, local_rank, node_for
from worker_agent.torch.choice import agreed_ways, said
from worker_agent.torch.control import Control
from worker_agent.torch.feedback import Feedback, Piece, names_of, pieces_of
from worker_agent.torch.groups import TIMEOUT, Ranks, default_store, fresh_name, timeout_of
from worker_agent.torch.journal import NETWORK, Journal
from worker_agent.torch.local_ranks import LocalRanks
from worker_agent.torch.parts import Order, Parts
from worker_agent.torch.passes import Passes, follow_models
from worker_agent.torch.places import Place, arrange, find_places
from worker_agent.torch.presence import Presence
from worker_agent.torch.recovery import Sequence
from worker_agent.torch.result import Result
from worker_agent.torch.returning import Joining
from worker_agent.torch.route import Route
from worker_agent.torch.untraced import untraced
from worker_agent.ways import Ways

AGREED_PATIENCE_SECONDS, PATIENCE_SECONDS = 3.0, 8.0
"""Seconds after which operations end when a rank that they wait for has left. The first holds where the ranks agree on
each step, so that no rank leaves before all have its results; without agreement the last results may still be on their
way.
"""

logger = logging.getLogger("inart")


class FallbackWarning(UserWarning):
    """The job trains without in-network aggregation; the message says why."""


class Network:
    """The reductions of one process group through the network, with a fallback.

    The DDP hook, the backend and the FSDP hook share it. Its arguments are those of InArtState; making it is a
    collective call.

    Args:
        only_between_nodes: whether a group within one node stays out of the network; `between_nodes` tells.
        passes: the forward passes of the models whose gradients are reduced; None: they are not counted.
    """

    def __init__(
        self,
        ranks: Ranks,
        *,
        options: Options,
        given: Reducer | None = None,
        timeout: float = 60.0,
        fallback: bool = True,
        only_between_nodes: bool = False,
        reproducible: bool = False,
        passes: Passes | None = None,
    ) -> None:
        options = options.resolved()
        if options.operation_timeout is None:
            seconds = max(TIMEOUT, ranks.timeout()).total_seconds()
            options = replace(options, operation_timeout=seconds)
        self.between_nodes = True
        self.counts = Counts()
        self.fallback = fallback
        self.reducer: Reducer | None = None
        self._given = given
        self._node: Node | None = None
        self._route: Route | None = None
        self._name, self._rank, self._size = ranks.name, ranks.rank, ranks.size
        self._workers = ranks.size
        self.local: LocalRanks | None = None
        self.sequence: Sequence | None = None
        self._control = Control(ranks.group("control"), ranks.timeout().total_seconds())
        self._order: Order | None = None
        self._parts: Parts | None = None
        self.ways: Ways | None = None
        self._presence: Presence | None = None
        self.aborted: AllReduceError | None = None
        self.journal = Journal()
        self._timeout = ranks.timeout
        options, places = find_places(options, ranks, self._control, alone=given is not None, timeout=timeout)
        if given is None:
            self._node = node_for(options)
        problem = self._join_first(ranks, places, timeout, only_between_nodes)
        if not self.between_nodes:
            return
        if only_between_nodes:
            self._order = Order(Control(ranks.group("order")), self._position)
        problems = self._control.agree(problem)
        if problems and not fallback:
            self.close()
            raise AgentError(f"cannot aggregate in the network: {problems}")
        if problems or fallback or self.local is not None:
            network = Joining(self.join, self._check_reducer, self._left, self._returned)
            self.sequence = Sequence(
                ranks, network, control=self._control, local=self.local, agreement=fallback, counts=self.counts,
                reproducible=reproducible, passes=passes or Passes(),
            )  # fmt: skip
        self._begin(problems)
        self._presence = Presence(
            ranks.name,
            ranks.store,
            ranks.rank,
            journal=self.journal,
            end=self.abort,
            late=self._late,
            patience=AGREED_PATIENCE_SECONDS if fallback else PATIENCE_SECONDS,
        )
        if fallback and not reproducible:
            self._choose_ways(problems)
        self._control.seconds = None

    def _join_first(self, ranks: Ranks, places: list[Place], timeout: float, only_between_nodes: bool) -> str:
        """Find the ranks of this node, join the job, and return this rank's problem in words; empty where there is
        none.

        A group within one node is closed instead where `only_between_nodes` says so.
        """
        try:
            self.local = self._find_local(places, ranks.store, ranks.rank)
            if only_between_nodes and self._workers == 1:
                self.between_nodes = False
                self.close()
                return ""
            known = self._node.workers if self._node is not None else 0
            if known and (problem := self._check_workers(known)):
                return problem  # The job need not be complete to know that.
            self.reducer = self.join(timeout)
            return self._check_workers(self.reducer.world_size)
        except (AgentError, OSError, ValueError) as error:
            return str(error)

    def _begin(self, problems: str) -> None:
        """Begin in the network, or outside of it where any rank has a problem."""
        if problems:
            assert self.sequence is not None, "made where there are problems"
            self.sequence.begin_outside(problems)
            return
        assert self.reducer is not None, "nobody has a problem"
        if self.sequence is not None:
            self.sequence.begin_in_network(self.reducer)
        self._route = Route(self.reducer)
        node = getattr(self.reducer, "node", "") or "this node"
        ranks = f", {self.local.size} ranks a node" if self.local is not None else ""
        logger.info("%s: in-network aggregation over %d workers%s", node, self._workers, ranks)

    def _choose_ways(self, problems: str) -> None:
        """Agree with the other ranks which operations are faster over torch.distributed; this is a collective call."""
        self.ways = agreed_ways(None if problems or self.local is not None else self.reducer, self._control)
        if self.ways is not None and self.sequence is not None:
            self.sequence.choose(self.ways)
            if line := said(self.ways):
                logger.info("%s", line)

    @property
    def in_network(self) -> bool:
        """Whether the next reduction goes through the network's switches."""
        if self.sequence is not None:
            return self.sequence.in_network
        return self.reducer is not None

    def reduce(self, buffer: torch.Tensor, op: Collective, last: bool) -> Result:
        """Start a reduction in place, and return the mean or sum over all ranks.

        Raise TypeError for a tensor that cannot be reduced.

        Args:
            buffer: the tensor.
            op: the operation.
            last: whether the buffer is the last of a step; the ranks agree on whole steps.
        """
        if not op.raw:
            check(buffer)
        elements, dtype = buffer.numel(), str(buffer.dtype).removeprefix("torch.")
        entry = self.journal.begin(lambda: f"{op.plain} of {elements} {dtype}", self._timeout().total_seconds())
        try:
            result = self.start(buffer, op, last)
        except BaseException:
            self.journal.cancel(entry)
            raise
        entry.done = result.future.done
        return result

    def start(self, buffer: torch.Tensor, op: Collective, last: bool, before: torch.Tensor | None = None) -> Result:
        """Start a reduction of a tensor that is known to be reducible.

        The arguments are those of `reduce`, and `before`: a copy of the buffer's content, if there is one.
        """
        if self.aborted is not None:
            raise self.aborted
        if self.sequence is not None:
            return self.sequence.start(buffer, op, last or not self.fallback, before)
        if self._route is None:
            raise AgentError("the job does not run in the network")
        return self._route.begin(buffer, op)

    def parts(self) -> Parts | None:
        """Return the collectives whose arrays have one part per rank; None when they do not go through the network,
        because not all ranks have been in it yet.

        This is a collective call until they have.
        """
        if self.aborted is not None:
            raise self.aborted
        if self._parts is None and self._order is not None and (order := self._order.find()) is not None:
            if self.sequence is not None:
                self.sequence.fallback.order = order
            if self.local is not None:
                self.local.worker = order[self._rank] % self._workers
            self._parts = Parts(self._rank, order, lambda buffer, op, before: self.start(buffer, op, True, before))
        return self._parts

    def join(self, timeout: float) -> Reducer:
        """Return a reducer that is ready.

        Raise AgentError, OSError or ValueError when there is none within `timeout` seconds.
        """
        if self._given is not None:
            return self._given
        assert self._node is not None, "or it is given"
        return self._node.join(timeout)

    def metrics(self) -> dict[str, float]:
        """Return the counters; see InArtState.metrics."""
        numbers = self.counts.metrics() | {"in_network": float(self.in_network)}
        stats = getattr(self.reducer, "stats", None)
        if stats is not None:
            with contextlib.suppress(AgentError):
                numbers["measured_mbps"] = stats().measured_mbps
        return numbers

    def abort(self, error: AllReduceError) -> None:
        """End the operations in progress with this error, here and then on the other ranks, and leave.

        Any thread may call this.
        """
        self.aborted = self.aborted or error
        sequence, node, presence = self.sequence, self._node, self._presence
        stuck = any(entry.path == NETWORK for entry in self.journal.in_progress())
        if presence is not None:
            presence.leave(f"has given the process group up ({error})")
        if self._order is not None:
            self._order.end(error)
        if sequence is not None:
            sequence.abort(error)
        if stuck and node is not None:
            node.abort(str(error))
        self.close()

    def _late(self) -> list[str]:
        route = self._route
        return self.sequence.late() if self.sequence is not None else route.late() if route is not None else []

    def close(self) -> None:
        """Leave the job after the last reduction. A second call does nothing."""
        sequence, self.sequence = self.sequence, None
        if sequence is not None:
            sequence.close()
        presence = self._presence
        if presence is not None:
            presence.leave()
            presence.join()
        self._route = self.reducer = None
        # These objects hold this one and groups of gloo, which close their connections when no object holds them.
        self._order = self._parts = None
        self._control.end(self.aborted or AbortedError("the process group is closed"))
        node, self._node = self._node, None
        if node is not None:
            node.close()

    def _position(self) -> int:
        """Return the number of this rank's part in an array with one part per rank (passage.py); -1 where it is not
        known.
        """
        index = int(getattr(self.reducer, "index", -1))
        return index if self.local is None or index < 0 else self.local.rank * self._workers + index

    def _find_local(self, places: list[Place], store: Any, rank: int) -> LocalRanks | None:
        """Return the ranks of this node in the group when there are several."""
        mine, nodes = arrange(places, rank)
        self._workers = nodes
        if len(mine) == 1:
            return None
        return LocalRanks(f"{self._name}/node/{min(mine)}", store, mine.index(rank), len(mine), nodes)

    def _check_workers(self, workers: int) -> str:
        """Return in words why a job with this number of workers does not fit the process group; empty if it fits."""
        if workers == self._workers:
            return ""
        nodes = "" if self._workers == self._size else f" on {self._workers} nodes"
        return f"the job has {workers} workers, the process group {self._size} ranks{nodes}"

    def _check_reducer(self, reducer: Reducer) -> str:
        return self._check_workers(reducer.world_size)

    def _left(self, reasons: str) -> None:
        known = self.reducer.world_size if self.reducer is not None else self._node.workers if self._node else 0
        other_size = bool(known and self._check_workers(known))
        self.reducer = None
        message = f"in-network aggregation is not used, torch.distributed's all-reduce is, until it is back: {reasons}"
        if other_size:  # No failure happened that could be repaired.
            message = (
                "in-network aggregation is not used for this process group, torch.distributed's all-reduce is: "
                f"{reasons}. That stays so: only a group of all the job's workers goes through the network"
            )
        # The warning is given each time, and without a line of our source code.
        warnings.warn_explicit(message, FallbackWarning, "inart", 1)
        if logger.hasHandlers():
            logger.warning("%s", message)

    def _returned(self, reducer: Reducer) -> None:
        self.reducer = reducer
        logger.warning("in-network aggregation is used again")


def check(buffer: torch.Tensor) -> None:
    """Check that the network can reduce a tensor; raise TypeError where it cannot and a fallback would not help."""
    name = str(buffer.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise TypeError(f"gradients are {name}, InArt reduces {', '.join(DTYPES)}: train in one of these")
    if buffer.device.type not in ("cpu", "cuda"):
        raise TypeError(f"gradients are on {buffer.device}, InArt reduces those on CPU and CUDA devices")
    if buffer.layout != torch.strided:
        raise TypeError(f"the tensor's layout is {buffer.layout}, InArt reduces dense tensors: use to_dense()")


class InArtState:
    """The state of `inart_hook`, which joins the job's controller when it is made. Use one for each DDP model.

    Make it on all ranks after `torch.distributed.init_process_group`: the ranks agree over the process group whether
    all of them can run in the network. If one cannot, at the start or at a later step, all use torch.distributed's
    all-reduce from that step on and give a FallbackWarning, and all return at one later step once all can. No gradient
    is lost: a step that did not complete on all ranks is repeated over torch.distributed from the original gradients.
    This costs a copy of the gradients in memory and an all-reduce of 24 bytes over gloo per step.

    A node may have any number of ranks (LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun sets them; otherwise they are
    counted). They share one agent, and so do all states of a process. The operations of all states must come in the
    same order on all ranks.

    Args:
        controller: "host:port"; None: $INART_CONTROLLER, or the one that this process uses already.
        agent: instead of a controller: "unix:/path" of an `inart agent` on this machine ($INART_AGENT where neither is
            given), or an existing agent (the caller closes it).
        node: name in the topology; None: the node whose address this machine has.
        process_group: the process group of the DDP model; None: the default group.
        timeout: seconds to wait for the other agents at the start.
        operation_timeout: seconds without progress after which an operation in the network fails and is repeated over
            torch.distributed; None: 30 minutes, or the process group's timeout if that is longer. After the process
            group's timeout it fails for good, wherever it is.
        fallback: False: raise errors instead, on all ranks at the start and on the ranks that notice one in a step;
            there is no copy and no agreement.
        take_over: replace another job's trainers that use this node's agent; otherwise this one is refused.
        interface, tls: see worker_agent.Agent.
        bits: bits per value in packets: 32, 16, 10 or 8, the same on all ranks; None: 32 for float32, 16 for float16
            and bfloat16. With fewer bits than its type has, a gradient is rounded stochastically, and with one rank per
            node the residual is kept for each parameter and added to its next gradient (state_dict contains it).
        reproducible: True: steps that run over torch.distributed (on the CPU) give the same bits as in the network,
            which takes longer.

    Attributes:
        steps_in_network, steps_outside: numbers of steps in the network and outside (with fallback).
        falls: how often the job left the network.

    Raises:
        AgentError: the job cannot run in the network and `fallback` is False.
    """

    def __init__(  # noqa: PLR0913  (options by keyword)
        self,
        controller: str | None = None,
        *,
        agent: str | Reducer | None = None,
        node: str | None = None,
        process_group: dist.ProcessGroup | None = None,
        timeout: float = 60.0,
        operation_timeout: float | None = None,
        fallback: bool = True,
        take_over: bool = False,
        interface: str | None = None,
        tls: Tls | None = None,
        bits: int | None = None,
        reproducible: bool = False,
    ) -> None:
        if bits is not None and bits not in FIELDS:
            raise ValueError(f"bits must be one of {', '.join(map(str, FIELDS))}, not {bits}")
        if not dist.is_initialized():
            raise RuntimeError("call torch.distributed.init_process_group before making an InArtState")
        group = process_group or dist.group.WORLD
        assert group is not None, "initialised, so there is a default group"
        self.process_group: dist.ProcessGroup = group
        _guard_fsdp1()
        both = agent is not None and controller is not None
        rank, size = local_rank()
        options = Options(
            controller,
            agent if isinstance(agent, str) else None,
            node,
            interface,
            tls,
            operation_timeout,
            rank,
            size,
            take_over,
        )
        follow_models(InArtState, lambda state: state._passes)
        self._bits, self._reductions = bits, 0
        self._passes = Passes()
        self._feedback = Feedback()
        given: Any = _Refusing("give a controller or an agent, not both") if both else agent
        self._network = Network(
            Ranks(
                fresh_name(group),
                default_store(),
                dist.get_rank(group),
                dist.get_world_size(group),
                lambda: timeout_of(group),
            ),
            options=options,
            given=None if isinstance(given, str) else given,
            timeout=timeout,
            fallback=fallback,
            reproducible=reproducible,
            passes=self._passes,
        )

    @property
    def in_network(self) -> bool:
        """Whether gradients go through the network's switches; otherwise they go through torch.distributed."""
        return self._network.in_network

    @property
    def reducer(self) -> Reducer | None:
        """The agent while the job runs in the network."""
        return self._network.reducer

    @property
    def steps_in_network(self) -> int:
        return self._network.counts.steps_in_network

    @property
    def steps_outside(self) -> int:
        return self._network.counts.steps_outside

    @property
    def falls(self) -> int:
        return self._network.counts.falls

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Return a Future of the mean of a bucket over all ranks."""
        last = not self._network.fallback or bucket.is_last()
        if bucket.buffer().is_sparse:
            return self._reduce_sparse(bucket.buffer(), last and self._network.fallback)
        pieces = pieces_of(bucket) if self.keeps_errors(bucket.buffer()) else []
        return self.reduce_pieces(bucket.buffer(), pieces, last).future

    def _reduce_sparse(self, gradient: torch.Tensor, last: bool) -> torch.futures.Future[torch.Tensor]:
        """Return a Future of the mean of a sparse gradient, which the process group computes as DDP does by default.

        `last` says that the step ends with it, so that the ranks agree on the other buckets.
        """
        if self._network.counts.outside("sparse gradient"):
            logger.warning(
                "sparse gradients: torch.distributed reduces them, because the network only adds dense tensors; "
                "sparse=False makes the gradients of an embedding dense"
            )
        if last:
            self._network.reduce(torch.zeros(1, dtype=gradient.dtype, device=gradient.device), MEAN, True)
        work = self.process_group.allreduce([gradient.div_(self.process_group.size())])
        return work.get_future().then(lambda reduced: reduced.value()[0])

    def reduce_gradient(self, gradient: torch.Tensor, parameter: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Return a Future of the mean of one parameter's gradient, in place, which is done."""
        pieces = [Piece(parameter, 0, gradient.numel())] if self.keeps_errors(gradient) else []
        whole = gradient.contiguous()
        reduced = self.reduce_pieces(whole, pieces)
        gradient.copy_(reduced.wait())
        return reduced.future

    def keeps_errors(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's residuals are kept and added to the next one.

        They are where its values lose bits, and no other rank of the node has added to them before.
        """
        return self._fewer(tensor) and self._network.local is None

    def reduce_pieces(self, buffer: torch.Tensor, pieces: list[Piece], last: bool = True) -> Result:
        """Start the mean over all ranks, in place; `pieces` are the owners of the gradients in the buffer, if
        `keeps_errors`.
        """
        if not pieces:
            return self._network.reduce(buffer, self._operation(MEAN, buffer), last)
        check(buffer)
        whole = self._feedback.begin(buffer, pieces)
        reduced = self._network.reduce(whole, self._operation(MEAN, buffer, feedback=True), last)
        return reduced.then(lambda mean: self._feedback.end(mean, buffer, pieces))

    def _fewer(self, tensor: torch.Tensor) -> bool:
        return self._bits is not None and self._bits < 8 * tensor.element_size()

    def _operation(self, op: Collective, tensor: torch.Tensor, *, feedback: bool = False) -> Collective:
        """Return the operation with its bits per value and a new random seed."""
        if self._bits is None or (self._bits == 32 and tensor.element_size() == 4):
            return op
        self._reductions += 1
        return op.encoded(self._bits, self._reductions, feedback=feedback)

    def state_dict(self, model: torch.nn.Module) -> dict[str, Any]:
        """Return the part of a checkpoint that each rank has to save for itself, when values travel in fewer bits than
        their type has: the residual of each parameter's gradient, and the number of random seeds used.
        """
        return {"reductions": self._reductions, "left": self._feedback.state(names_of(model))}

    def load_state_dict(self, state: Mapping[str, Any], model: torch.nn.Module) -> None:
        """Load the result of `state_dict` on this rank. Raise ValueError when it is another model's."""
        self._feedback.load(state["left"], names_of(model))
        self._reductions = int(state["reductions"])

    def allreduce(self, tensor: torch.Tensor, op: Operation = "mean") -> torch.futures.Future[torch.Tensor]:
        """Return a Future of the mean or sum of any contiguous tensor over all ranks, in place, as a step of its own.

        Raise TypeError for a tensor that cannot be reduced.
        """
        return self._network.reduce(tensor, self._operation(collective(op), tensor), True).future

    def metrics(self) -> dict[str, float]:
        """Return this state's counters by name; `{f"inart/{k}": v ...}` is the form for TensorBoard.

        steps_in_network, steps_outside, falls: see InArtState.
        in_network: 1 where the next step goes through the network, else 0.
        reductions, bytes_reduced: number of tensors that were reduced, and their bytes.
        communication_seconds: time from a step's first bucket to its last sum, over all steps.
        exposed_seconds: the part of this time after the last bucket was ready, when nothing could hide it.
        overlap: the fraction of this time that was hidden.
        measured_mbps: the rate on the wire, where this process runs the agent.
        """
        return self._network.metrics()

    def close(self) -> None:
        """Leave the job, after the last backward pass. A second call does nothing."""
        self._network.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "an InArtState holds connections of this process and cannot be pickled: save the model (ddp.module), and "
            "make a new state on each rank after loading; state.metrics() is plain numbers"
        )


class _Refusing:
    """Replaces a reducer when the arguments are invalid, so that the ranks agree about the problem before any of them
    raises.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @property
    def world_size(self) -> int:
        raise ValueError(self._reason)


FSDP1_ADVICE = (
    "FullyShardedDataParallel hands its hook sharded gradients, which this one does not take. What works: FSDP2's "
    "fully_shard with worker_agent.inart_fsdp(model, state); or init_process_group('cpu:inart,cuda:inart') and no hook "
    "(docs/training.md)"
)


def _guard_fsdp1() -> None:
    """Make FSDP1 refuse the hook when it is registered, instead of in the first backward pass."""
    module = sys.modules.get("torch.distributed.fsdp")
    wrapper = getattr(module, "FullyShardedDataParallel", None)
    if wrapper is None or hasattr(wrapper.register_comm_hook, "inart"):
        return
    register = wrapper.register_comm_hook

    def register_comm_hook(self: Any, state: object, hook: Any) -> None:
        if hook is inart_hook or isinstance(state, InArtState):
            raise TypeError(FSDP1_ADVICE)
        register(self, state, hook)

    register_comm_hook.inart = True  # type: ignore[attr-defined]
    register_comm_hook.__doc__ = register.__doc__
    wrapper.register_comm_hook = register_comm_hook


@untraced
def inart_hook(state: InArtState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket; this is the hook for `DistributedDataParallel.register_comm_hook`."""
    if isinstance(bucket, torch.Tensor):
        raise TypeError(FSDP1_ADVICE)
    if isinstance(bucket, tuple):  # torch.compile with optimize_ddp="python_reducer" reduces each gradient by itself.
        return state.reduce_gradient(*bucket)
    return state.reduce(bucket)
