"""A backend of torch.distributed: plain `dist.all_reduce` goes through the network's switches.

    import worker_agent.torch.backend                                            # registers it
    dist.init_process_group("cpu:inart,cuda:inart", pg_options=BackendOptions(controller="10.1.0.1:9600"))

or without options and with $INART_CONTROLLER (or $INART_AGENT, "unix:/path"), or for one dimension of a mesh:

    init_device_mesh("cuda", (4, 8), mesh_dim_names=("replicate", "shard"),
                     backend_override={"replicate": ("inart", BackendOptions(...))})

Sums (also PREMUL_SUM) and means of float32, float16 and bfloat16 go through the network with the hook's fallback, as
all-reduce and reduce-scatter; so do all-gather and broadcast of any dtype. With one rank per node, barriers and, on the
CPU, all-reduces of a few values of other types or by other operators go through the network, too. Everything else goes
to gloo (CPU) or NCCL (CUDA), including small tensors on CUDA or where a node has several ranks. A group within one node
does not use the network, because it has nothing to gain from it.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from controlplane.common.rpc.tls import Tls
from p4src.protocol import data_values
from worker_agent.collectives import GATHER, MEAN, SCATTER_SUM, SUM, Collective, Kind, broadcast
from worker_agent.errors import AbortedError
from worker_agent.fields import FIELDS
from worker_agent.gathered import gathered_words
from worker_agent.operands import DTYPES, SMALL_DTYPES
from worker_agent.shared import Options, local_rank
from worker_agent.torch.alike import TORCH_OPS
from worker_agent.torch.groups import TIMEOUT, Ranks, make_group
from worker_agent.torch.hook import OPERATION_TIMEOUT, Network
from worker_agent.torch.parts import Parts
from worker_agent.torch.untraced import untraced
from worker_agent.work import Work

NAME = "inart"
SMALLEST_BYTES = 4096
"""Size in bytes below which tensors go to gloo or NCCL on CUDA and where a node has several ranks: the ranks' agreement
would take as long. With one rank per node and on the CPU, the ranks agree on many small operations at once (early.py).
"""

LEAST_VALUES = 64
"""A lower limit of the data values of a packet in any practical network.

With it all ranks, even those that have not joined, decide alike which operations are small.
"""

MOST_BYTES = 2**31 - 1
"""Size in bytes above which tensors go to gloo or NCCL, too: an operation of an agent has at most this many elements,
which may be bytes.
"""

KEPT_WORKS = 4 if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7) else 0

logger = logging.getLogger("inart")


@dataclass(frozen=True)
class BackendOptions:
    """The options of the backend; those that are not named here have the meaning of InArtState's arguments.

    Attributes:
        smallest: size in bytes below which a tensor does not go through the network, the same on all ranks; None:
            SMALLEST_BYTES where that applies, else no limit.
        bits: bits per value of sums and means whose type has more, with stochastic rounding.
        group_timeout: timeout of operations over gloo and NCCL.
    """

    controller: str | None = None
    agent: str | None = None
    node: str | None = None
    timeout: float = 60.0
    operation_timeout: float = OPERATION_TIMEOUT
    fallback: bool = True
    take_over: bool = False
    interface: str | None = None
    tls: Tls | None = None
    smallest: int | None = None
    bits: int | None = None
    reproducible: bool = False
    group_timeout: timedelta = TIMEOUT

    @property
    def _timeout(self) -> timedelta:
        return self.group_timeout  # DeviceMesh reads this attribute.


class InArtWork(dist.Work):
    """An all-reduce in progress. On CUDA, waiting is in stream order, as with NCCL."""

    def __init__(self, future: torch.futures.Future[Any], work: Work | None = None) -> None:
        """Make the work of a Future; `work` is the agent's part of it, if waiting for that first gives the result
        sooner.
        """
        super().__init__()
        self._future = future
        self._part = work

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the result.

        Raise the error of the all-reduce, or TimeoutError when there is no result after `timeout` (None or 0: no
        limit); the operation goes on.
        """
        if timeout:
            ended = threading.Event()
            self._future.add_done_callback(lambda _: ended.set())
            if not ended.wait(timeout.total_seconds()):
                raise TimeoutError(f"the operation has no result yet: timed out after {timeout.total_seconds():g} s")
        elif self._part is not None:
            self._part.fetch(None)
        self._future.wait()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the Future of the list of tensors."""
        return self._future

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and self.exception() is None

    def exception(self) -> Exception | None:
        """Return the error, or None when there is none or the work is not done."""
        if not self._future.done():
            return None
        try:
            self._future.value()
        except Exception as error:
            return error
        return None

    def synchronize(self) -> None:
        self.wait()


class InArtProcessGroup(dist.ProcessGroup):
    """A process group over the network (see the module).

    Attributes:
        network: the reductions through the network; None where the group does not use it.
    """

    def __init__(self, opts: Any, options: BackendOptions) -> None:
        rank, size = opts.group_rank, opts.group_size
        super().__init__(rank, size)  # type: ignore[call-arg]
        # The number is the same on all ranks, and new even if a group of this name existed before.
        generation = opts.store.add(f"inart/generation/{rank}", 1)
        name = f"{opts.group_id}/{generation}"
        if options.bits is not None and options.bits not in FIELDS:
            raise ValueError(f"bits must be one of {', '.join(map(str, FIELDS))}, not {options.bits}")
        self._options = options
        self._reductions = 0
        self._scatters = False
        # Before torch 2.7 a caller in C++ (DDP) does not keep the Python object, without which the work is no
        # InArtWork.
        self._works: deque[InArtWork] = deque(maxlen=KEPT_WORKS)
        self._name, self._desc = opts.group_id, ""
        self._inner: Any = dist.ProcessGroup(dist.PrefixStore(f"{name}/others", opts.store), rank, size)
        backends = [("gloo", "cpu")] + ([("nccl", "cuda")] if torch.cuda.is_available() else [])
        for backend, device in backends:
            made = make_group(f"{name}/{device}", opts.store, rank, size, backend=backend, timeout=opts.timeout)
            kind = getattr(dist.ProcessGroup.BackendType, backend.upper())
            self._inner._register_backend(torch.device(device), kind, made._get_backend(torch.device(device)))
            self._inner._set_default_backend(kind)
        local, locals_ = local_rank()
        network = Network(
            Ranks(name, opts.store, rank, size),
            options=Options(
                options.controller,
                options.agent,
                options.node,
                options.interface,
                options.tls,
                options.operation_timeout,
                local,
                locals_,
                options.take_over,
            ),
            timeout=options.timeout,
            fallback=options.fallback,
            only_between_nodes=True,
            reproducible=options.reproducible,
        )
        self.network: Network | None = network if network.between_nodes else None
        if self.network is None:
            logger.info("a group of %d ranks in one node: gloo or NCCL", size)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Run through the network if possible; see torch.distributed.all_reduce."""
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        given = _reduction(opts)
        _check_mean(given, tensors[0])
        factor = _factor(given)
        if factor is not None and self._scales(tensors[0], SUM):
            for tensor in tensors:
                tensor.detach().mul_(factor)
            given = dist.ReduceOp.SUM
        op = _operation(given)
        if op is not None and len(tensors) == 1 and self._suits(tensors[0], op):
            return self._through_network(tensors[0], op)
        if len(tensors) == 1 and (few := self._of_few(tensors[0], given)) is not None:
            return self._through_network(tensors[0], few)
        if op == MEAN and all(tensor.device.type == "cpu" for tensor in tensors):
            return self._mean(tensors)  # gloo has no mean.
        options = dist.AllreduceOptions()
        options.reduceOp = given
        return _in_place(tensors, lambda whole: self._inner.allreduce(whole, options))

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        """Run through the network if possible; see torch.distributed.reduce_scatter_tensor."""
        self._scatters = True
        _check_mean(_reduction(opts), given)
        factor = _factor(_reduction(opts))
        if factor is not None and self._scales(given, SCATTER_SUM):
            given, opts = given.detach() * factor, _scatter_options(dist.ReduceOp.SUM)
        op = _operation(opts)
        if op is not None and self._suits(given, op.scattered) and given.numel() == self.size() * output.numel():
            parts = self._parts()
            if parts is not None and output.dtype == given.dtype:
                return self._work(*parts.reduce_scatter(output, given, self._encoded(op.scattered, given)))
        if op == MEAN and given.device.type == "cpu":  # gloo has no mean.
            if given.is_floating_point():
                scattered = _scatter_options(dist.ReduceOp.SUM)
                return self._inner._reduce_scatter_base(output, given / self.size(), scattered)
            whole = given.detach().clone(memory_format=torch.contiguous_format)
            own = whole.view(self.size(), -1)[self.rank()]
            return self._work(
                self._mean([whole]).get_future().then(lambda _: [output.detach().copy_(own.view_as(output))])
            )
        return self._inner._reduce_scatter_base(output, given, *(() if opts is None else (opts,)))

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        """Run through the network if possible; see torch.distributed.all_gather_into_tensor."""
        if self._suits(output, GATHER) and output.numel() == self.size() * given.numel():
            parts = self._parts()
            if parts is not None and output.dtype == given.dtype:
                return self._work(*parts.all_gather(output, given))
        return self._inner._allgather_base(output, given, *(() if opts is None else (opts,)))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Run through the network if possible; see torch.distributed.all_gather."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        if len(inputs) == 1 and all(one.shape == inputs[0].shape for one in outputs[0]):
            size = inputs[0].numel() * inputs[0].element_size() * self.size()
            if self._suits(inputs[0], GATHER, nbytes=size) and (parts := self._parts()) is not None:
                return self._work(*parts.all_gather(list(outputs[0]), inputs[0]))
        return self._inner.allgather(outputs, inputs, *(() if opts is None else (opts,)))

    def broadcast(self, tensors: Any, opts: Any = None, *more: Any) -> Any:
        """Run through the network if possible; see torch.distributed.broadcast."""
        source = getattr(opts, "rootRank", None)
        if source is not None and not more and len(tensors) == 1 and self._suits(tensors[0], broadcast(source)):
            parts = self._parts()
            if parts is not None:
                return self._work(*parts.broadcast(tensors[0], source))
        given = *(() if opts is None else (opts,)), *more
        return _in_place(tensors, lambda whole: self._inner.broadcast(whole, *given))

    def barrier(self, opts: Any = None) -> Any:
        """Run through the network if possible; see torch.distributed.barrier."""
        nothing = torch.zeros(1, dtype=torch.uint8, device="cpu")
        if not torch.cuda.is_available() and (few := self._of_few(nothing, dist.ReduceOp.MAX)) is not None:
            return self._through_network(nothing, few)
        return self._inner.barrier(*(() if opts is None else (opts,)))

    def _of_few(self, tensor: torch.Tensor, given: Any) -> Collective | None:
        """Return the operation on a few values of any type if the network can do it, else None."""
        name = str(tensor.dtype).removeprefix("torch.")
        op = _operation(given) or next((few for few, ops in _FEW.items() if given == ops), None)
        if op is None or not self._takes_small(tensor) or name not in {*DTYPES, *SMALL_DTYPES} - {"bool"}:
            return None
        if op.merge in ("and", "or", "xor") if tensor.is_floating_point() else op.mean:
            return None
        words = gathered_words(op, name, tensor.numel(), self.size(), data_values(LEAST_VALUES))
        return op if words and self._at_least(tensor.numel() * tensor.element_size(), tensor) else None

    def _takes_small(self, tensor: torch.Tensor) -> bool:
        network, dense = self.network, tensor.layout == torch.strided
        return network is not None and network.local is None and tensor.device.type == "cpu" and dense

    def _at_least(self, nbytes: int, tensor: torch.Tensor) -> bool:
        smallest = self._options.smallest
        if smallest is None:
            smallest = 1 if self._takes_small(tensor) else SMALLEST_BYTES
        return smallest <= nbytes

    def _work(self, future: torch.futures.Future[Any], part: Work | None = None) -> InArtWork:
        work = InArtWork(future, part)
        self._works.append(work)
        return work

    def _parts(self) -> Parts | None:
        return self.network.parts() if self.network is not None else None

    def _suits(self, tensor: torch.Tensor, op: Collective, *, nbytes: int | None = None) -> bool:
        """Return whether this operation on the tensor goes through the network: it can, and gloo or NCCL is not known
        to be faster.

        `nbytes` is the number of bytes that the whole operation moves (None: the tensor's).
        """
        size = tensor.numel() * tensor.element_size() if nbytes is None else nbytes
        network = self.network
        ways = network.ways if network is not None and self._options.bits is None else None
        return (
            network is not None
            and not (ways is not None and ways.is_faster_outside(op, size, alone=not self._scatters))
            and tensor.layout == torch.strided
            and (op.raw or str(tensor.dtype).removeprefix("torch.") in DTYPES)
            and tensor.device.type in ("cpu", "cuda")
            and self._at_least(size, tensor)
            and size <= MOST_BYTES
        )

    def _scales(self, tensor: torch.Tensor, op: Collective) -> bool:
        """Return whether this class multiplies the values of a PREMUL_SUM, which FSDP2 uses when it is given a divisor.

        gloo cannot multiply, and the network only adds. Small tensors on CUDA go to NCCL, which can multiply.
        """
        return tensor.is_floating_point() and (tensor.device.type == "cpu" or self._suits(tensor, op))

    def _through_network(self, tensor: torch.Tensor, op: Collective) -> InArtWork:
        assert self.network is not None, "it suits"
        tensor = tensor.detach()
        op = self._encoded(op, tensor)
        if tensor.is_contiguous():
            future, part = self.network.start(tensor, op, True)
            return self._work(future.then(lambda future: [future.value()]), part)
        whole = tensor.contiguous()

        def copy_back(future: torch.futures.Future[torch.Tensor]) -> list[torch.Tensor]:
            return [tensor.copy_(future.value())]

        future, part = self.network.start(whole, op, True)
        return self._work(future.then(copy_back), part)

    def _encoded(self, op: Collective, tensor: torch.Tensor) -> Collective:
        """Return the operation with the bits of the options if they are fewer than those of the tensor's type."""
        bits = self._options.bits
        if bits is None or bits >= 8 * tensor.element_size():
            return op
        self._reductions += 1
        return op.encoded(bits, self._reductions)

    def _mean(self, tensors: list[torch.Tensor]) -> InArtWork:
        """Start a mean over gloo. As with NCCL, the mean of integers is an integer: its fraction is cut off."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM  # type: ignore[assignment]

        def divide(future: torch.futures.Future[Any]) -> list[torch.Tensor]:
            future.value()
            return [
                tensor.detach().div_(self.size(), rounding_mode=None if tensor.is_floating_point() else "trunc")
                for tensor in tensors
            ]

        summed = _in_place(tensors, lambda whole: self._inner.allreduce(whole, options))
        return self._work(summed.get_future().then(divide))

    # A group that is a Python class stores its own name and description: torch asks this object, not the C++ object.

    def _set_group_name(self, name: Any) -> None:
        self._name = name

    @property
    def group_name(self) -> Any:
        """The name that torch.distributed gave the group."""
        return self._name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def group_desc(self) -> str:
        """The description of the group."""
        return self._desc

    def getBackendName(self) -> str:
        """Return the backend's name; torch.distributed calls this."""
        return NAME

    def shutdown(self) -> None:
        """Leave the job."""
        network, self.network = self.network, None
        if network is not None:
            network.close()
        self._inner.shutdown()

    def abort(self) -> None:
        """End operations in progress with an error, on all ranks; the group cannot be used any more.

        Operations over NCCL are aborted; gloo has no abort, and ends an operation when the other ranks go. Without
        operations in progress, this is `shutdown`.
        """
        if self.network is not None:
            self.network.abort("the process group was aborted")
        self._inner.abort()
        self._inner = _Ended()

    def __repr__(self) -> str:
        return f"InArtProcessGroup(rank={self.rank()}, size={self.size()})"


def _in_place(tensors: list[torch.Tensor], start: Callable[[list[torch.Tensor]], Any]) -> Any:
    """Start an operation of gloo or NCCL on tensors, in place, and return its Work.

    gloo takes the first bytes of a tensor's memory for its values, whatever its strides are, and so reduces what lies
    between them. Therefore it gets a contiguous copy.
    """
    if all(one.layout != torch.strided or one.device.type != "cpu" or one.is_contiguous() for one in tensors):
        return start(tensors)
    wholes = [one.detach().contiguous() for one in tensors]

    def copy_back(future: torch.futures.Future[Any]) -> list[torch.Tensor]:
        future.value()
        return [one.detach().copy_(whole) for one, whole in zip(tensors, wholes, strict=True)]

    return InArtWork(start(wholes).get_future().then(copy_back))


class _Ended:
    """Replaces the groups of gloo and NCCL once the process group has ended: their connections close, so that other
    ranks that wait for this one have an error.
    """

    def __getattr__(self, name: str) -> Any:
        raise AbortedError(f"the process group was aborted: no {name}")

    def abort(self) -> None:
        """Do nothing, since the group has ended."""

    def shutdown(self) -> None:
        """Do nothing, since the group has ended."""


def _reduction(opts: Any) -> Any:
    return dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


def _check_mean(op: Any, tensor: torch.Tensor) -> None:
    """Raise TypeError for a mean of bool values, as NCCL's backend does."""
    if op == dist.ReduceOp.AVG and tensor.dtype == torch.bool:
        raise TypeError("ReduceOp.AVG: bool values have no mean; use SUM, MIN or MAX")


def _operation(opts: Any) -> Collective | None:
    """Return the collective of options or of an operator; None where it is neither sum nor mean."""
    given = _reduction(opts)
    return SUM if given == dist.ReduceOp.SUM else MEAN if given == dist.ReduceOp.AVG else None


def _factor(op: Any) -> Any:
    """Return the factor of PREMUL_SUM, a number or a one-element tensor; None where it is another operator."""
    return op.__getstate__()[1] if op == dist.ReduceOp.PREMUL_SUM else None


def _scatter_options(op: Any) -> Any:
    options = dist.ReduceScatterOptions()
    options.reduceOp = op
    return options


_FEW = {Collective(Kind.ALL_REDUCE, merge=merge): op for merge, op in TORCH_OPS.items()}

_OTHERS = (
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "all_gather_single_coalesced",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
    "_start_coalescing",
    "_end_coalescing",
    "_get_backend",
    "set_timeout",
    "_set_default_timeout",
)


def _delegate(name: str) -> Any:
    def method(self: InArtProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"As the `{name}` of gloo or NCCL."
    return method


# Versions of torch before 2.12 use these names.
InArtProcessGroup._allgather_base = InArtProcessGroup.all_gather_single  # type: ignore[method-assign,assignment]
InArtProcessGroup._reduce_scatter_base = InArtProcessGroup.reduce_scatter_single  # type: ignore[method-assign,assignment]

for _name in _OTHERS:
    if hasattr(dist.ProcessGroup, _name):  # Some methods came with later versions of torch.
        setattr(InArtProcessGroup, _name, _delegate(_name))

for _name, _method in list(vars(InArtProcessGroup).items()):
    if hasattr(dist.ProcessGroup, _name) and inspect.isfunction(_method):
        setattr(InArtProcessGroup, _name, untraced(_method))


def create(opts: Any, options: Any) -> InArtProcessGroup:
    """Return a new group; torch.distributed calls this. Raise TypeError for another backend's options."""
    if options is not None and not isinstance(options, BackendOptions):
        raise TypeError(f"the options of backend {NAME!r} are worker_agent.backend.BackendOptions, not {options!r}")
    return InArtProcessGroup(opts, options or BackendOptions())


def register() -> None:
    """Register "inart" with torch.distributed, which importing this module does. A second call does nothing."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])


register()
