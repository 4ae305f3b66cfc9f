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

import functools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]

from controlplane.common.rpc.tls import Tls
from p4src.protocol import data_values
from worker_agent.collectives import GATHER, MEAN, SCATTER_SUM, SUM, Collective, Kind, broadcast
from worker_agent.errors import AbortedError
from worker_agent.fields import FIELDS
from worker_agent.gathered import gathered_words
from worker_agent.operands import DTYPES, SMALL_DTYPES
from worker_agent.shared import Options, local_rank
from worker_agent.torch.alike import TORCH_OPS
from worker_agent.torch.asked import described, on_host, timeout_in
from worker_agent.torch.groups import TIMEOUT, Ranks, make_group, timeout_of
from worker_agent.torch.handle import InArtWork, Outside
from worker_agent.torch.hook import Network
from worker_agent.torch.journal import OUTSIDE
from worker_agent.torch.parts import Parts
from worker_agent.torch.result import Result
from worker_agent.torch.untraced import untraced
from worker_agent.torch.waiting import Follower, retire

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
        operation_timeout: see InArtState.
        group_timeout: timeout of a group that DeviceMesh makes with these options. Elsewhere it is the `timeout` of
            init_process_group and new_group.
    """

    controller: str | None = None
    agent: str | None = None
    node: str | None = None
    timeout: float = 60.0
    operation_timeout: float | None = None
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


class InArtProcessGroup(dist.ProcessGroup):
    """A process group over the network (see the module).

    Attributes:
        network: the reductions through the network; None where the group does not use it.
        journal: the operations of this rank.
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
        self._name, self._desc, self._store = opts.group_id, "", opts.store
        self._follower = Follower("inart-outside")
        self._inner: Any = dist.ProcessGroup(dist.PrefixStore(f"{name}/others", opts.store), rank, size)
        backends = [("gloo", "cpu")] + ([("nccl", "cuda")] if torch.cuda.is_available() else [])
        for backend, device in backends:
            made = make_group(f"{name}/{device}", opts.store, rank, size, backend=backend, timeout=opts.timeout)
            kind = getattr(dist.ProcessGroup.BackendType, backend.upper())
            self._inner._register_backend(torch.device(device), kind, made._get_backend(torch.device(device)))
            self._inner._set_default_backend(kind)
        local, locals_ = local_rank()
        network = Network(
            Ranks(name, opts.store, rank, size, lambda: timeout_of(self._inner)),
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
        self.journal = network.journal
        if self.network is None:
            logger.info("a group of %d ranks in one node: gloo or NCCL", size)

    def _issue(self, kind: OpType, given: tuple[Any, ...], start: Callable[[], Any]) -> Any:
        """Start an operation with the next number, and return its handle.

        Args:
            kind: the kind of operation.
            given: the arguments of the method.
            start: starts it, and returns its result or the handle of gloo or NCCL.
        """
        network = self.network
        if network is not None and network.aborted is not None:
            raise network.aborted
        timeout = timeout_in(given) or timeout_of(self._inner)
        entry = self.journal.begin(described(kind, given), timeout.total_seconds())
        try:
            started = start()
        except BaseException:
            self.journal.cancel(entry)
            raise
        if isinstance(started, Result):
            result = started
        elif network is not None and on_host(given):
            self._count_outside(network, kind)
            entry.path, entry.work = OUTSIDE, started
            result = Outside(started, lambda: network.aborted)
        else:  # NCCL watches its operations, and gloo those of a node.
            if network is not None:
                self._count_outside(network, kind)
            self.journal.end(entry)
            return started
        entry.done = result.done
        work = InArtWork(result, kind, entry, self.journal)
        self._works.append(work)
        return work

    def _count_outside(self, network: Network, kind: OpType) -> None:
        name = kind.name.strip("_").lower()
        if network.counts.outside(name):
            logger.info(
                "%s: this operation went over torch.distributed; the metric operations_outside counts such operations, "
                "and docs/training.md lists those that the network carries",
                name,
            )

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
            return self._mean(tensors, opts)  # gloo has no mean.
        return self._in_place(tensors, lambda whole: self._inner.allreduce(whole, _reduce_options(given, opts)))

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        """Run through the network if possible; see torch.distributed.reduce_scatter_tensor."""
        self._scatters = True
        _check_mean(_reduction(opts), given)
        factor = _factor(_reduction(opts))
        if factor is not None and self._scales(given, SCATTER_SUM):
            given, opts = given.detach() * factor, _scatter_options(dist.ReduceOp.SUM, opts)
        op = _operation(opts)
        if op is not None and self._suits(given, op.scattered) and given.numel() == self.size() * output.numel():
            parts = self._parts()
            if parts is not None and output.dtype == given.dtype:
                return parts.reduce_scatter(output, given, self._encoded(op.scattered, given))
        if op == MEAN and given.device.type == "cpu":  # gloo has no mean.
            if given.is_floating_point():
                options = _scatter_options(dist.ReduceOp.SUM, opts)
                return self._inner._reduce_scatter_base(output, given / self.size(), options)
            whole = given.detach().clone(memory_format=torch.contiguous_format)
            own = whole.view(self.size(), -1)[self.rank()]
            summed = self._inner.allreduce([whole], _reduce_options(dist.ReduceOp.SUM, opts))
            return self._follower.then(
                summed, lambda: output.detach().copy_(self._divided(own).view_as(output)), [output]
            )
        return self._inner._reduce_scatter_base(output, given, *(() if opts is None else (opts,)))

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        """Run through the network if possible; see torch.distributed.all_gather_into_tensor."""
        if self._suits(output, GATHER) and output.numel() == self.size() * given.numel():
            parts = self._parts()
            if parts is not None and output.dtype == given.dtype:
                return parts.all_gather(output, given)
        return self._inner._allgather_base(output, given, *(() if opts is None else (opts,)))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Run through the network if possible; see torch.distributed.all_gather."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        if len(inputs) == 1 and all(one.shape == inputs[0].shape for one in outputs[0]):
            size = inputs[0].numel() * inputs[0].element_size() * self.size()
            if self._suits(inputs[0], GATHER, nbytes=size) and (parts := self._parts()) is not None:
                return parts.all_gather(list(outputs[0]), inputs[0])
        return self._inner.allgather(outputs, inputs, *(() if opts is None else (opts,)))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Run through the network as one operation if possible; see torch.distributed.all_reduce_coalesced."""
        op = _operation(opts)
        if op is not None and self._suit(tensors, op):
            reduced = self._through_network(_joined(tensors), op)
            return reduced.then(lambda value: _split(value[0], tensors))
        return self._inner.allreduce_coalesced(tensors, *(() if opts is None else (opts,)))

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Run several torch.distributed.all_gather_into_tensor through the network as one operation if possible."""
        size = self.size()
        fits = all(out.numel() == size * one.numel() for out, one in zip(outputs, inputs, strict=True))
        if fits and self._suit(outputs, GATHER, inputs) and (parts := self._parts()) is not None:
            own = _joined(inputs)
            whole = own.new_empty(size, own.numel())
            sizes = [one.numel() for one in inputs]
            return parts.all_gather(whole, own).then(lambda _: _split(whole, outputs, sizes))
        return self._inner.allgather_into_tensor_coalesced(outputs, inputs, *(() if opts is None else (opts,)))

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Run several torch.distributed.reduce_scatter_tensor through the network as one operation if possible."""
        self._scatters = True
        op, size = _operation(opts), self.size()
        fits = all(one.numel() == size * out.numel() for out, one in zip(outputs, inputs, strict=True))
        suit = op is not None and fits and self._suit(inputs, op.scattered, outputs)
        if op is not None and suit and (parts := self._parts()) is not None:
            whole = torch.cat([one.detach().reshape(size, -1) for one in inputs], dim=1)
            own = whole.new_empty(whole.shape[1])
            reduced = parts.reduce_scatter(own, whole, self._encoded(op.scattered, whole))
            return reduced.then(lambda _: _split(own, outputs))
        return self._inner.reduce_scatter_tensor_coalesced(outputs, inputs, *(() if opts is None else (opts,)))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Run through the network if possible; see torch.distributed.reduce_scatter."""
        self._scatters = True
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        op = _operation(opts)
        fits = len(outputs) == 1 and all(one.shape == outputs[0].shape for one in inputs[0])
        suit = op is not None and fits and self._suit(inputs[0], op.scattered, outputs)
        if op is not None and suit and (parts := self._parts()) is not None:
            whole = _joined(inputs[0])
            return parts.reduce_scatter(outputs[0], whole, self._encoded(op.scattered, whole))
        return self._inner.reduce_scatter(outputs, inputs, *(() if opts is None else (opts,)))

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Run through the network as one operation if possible; see torch.distributed.all_gather_coalesced."""
        fits = all([out.shape for out in row] == [one.shape for one in inputs] for row in outputs)
        every = [one for row in outputs for one in row]
        if fits and self._suit(every, GATHER, inputs) and (parts := self._parts()) is not None:
            own = _joined(inputs)
            whole = own.new_empty(self.size() * own.numel())
            return parts.all_gather(whole, own).then(lambda _: _split(whole, every))
        return self._inner.allgather_coalesced(outputs, inputs, *(() if opts is None else (opts,)))

    def broadcast(self, tensors: Any, opts: Any = None, *more: Any) -> Any:
        """Run through the network if possible; see torch.distributed.broadcast."""
        source = getattr(opts, "rootRank", None)
        if source is not None and not more and len(tensors) == 1 and self._suits(tensors[0], broadcast(source)):
            parts = self._parts()
            if parts is not None:
                return parts.broadcast(tensors[0], source)
        given = *(() if opts is None else (opts,)), *more
        return self._in_place(tensors, lambda whole: self._inner.broadcast(whole, *given))

    def barrier(self, opts: Any = None) -> Any:
        """Run through the network if possible; see torch.distributed.barrier."""
        nothing = torch.zeros(1, dtype=torch.uint8, device="cpu")
        if not torch.cuda.is_available() and (few := self._of_few(nothing, dist.ReduceOp.MAX)) is not None:
            return self._through_network(nothing, few).then(lambda _: [])
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

    def _suit(self, whole: list[torch.Tensor], op: Collective, parts: Any = ()) -> bool:
        """Return whether one operation on tensors goes through the network.

        Args:
            whole: the tensors that have the elements of all ranks.
            parts: those that have the elements of one rank.
        """
        kinds = {(one.layout, one.dtype, one.device) for one in (*whole, *parts)}
        size = sum(one.numel() * one.element_size() for one in whole) if len(kinds) == 1 else 0
        return len(kinds) == 1 and self._suits(whole[0], op, nbytes=size)

    def _scales(self, tensor: torch.Tensor, op: Collective) -> bool:
        """Return whether this class multiplies the values of a PREMUL_SUM, which FSDP2 uses when it is given a divisor.

        gloo cannot multiply, and the network only adds. Small tensors on CUDA go to NCCL, which can multiply.
        """
        return tensor.is_floating_point() and (tensor.device.type == "cpu" or self._suits(tensor, op))

    def _through_network(self, tensor: torch.Tensor, op: Collective) -> Result:
        assert self.network is not None, "it suits"
        tensor = tensor.detach()
        op = self._encoded(op, tensor)
        whole = tensor.contiguous()  # The same tensor, where it is contiguous.
        reduced = self.network.start(whole, op, True)
        return reduced.then(lambda value: [value if whole is tensor else tensor.copy_(value)])

    def _encoded(self, op: Collective, tensor: torch.Tensor) -> Collective:
        """Return the operation with the bits of the options if they are fewer than those of the tensor's type."""
        bits = self._options.bits
        if bits is None or bits >= 8 * tensor.element_size():
            return op
        self._reductions += 1
        return op.encoded(bits, self._reductions)

    def _mean(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """Start a mean over gloo. Floating-point values are divided first: their sum may be beyond the type."""
        options = _reduce_options(dist.ReduceOp.SUM, opts)
        if not tensors[0].is_floating_point():
            return self._in_place(tensors, lambda whole: self._inner.allreduce(whole, options), self._divided)

        def start(wholes: list[torch.Tensor]) -> Any:
            for whole in wholes:
                whole.detach().div_(self.size())
            return self._inner.allreduce(wholes, options)

        return self._in_place(tensors, start)

    def _divided(self, total: torch.Tensor) -> torch.Tensor:
        """Return the mean of a sum of integers, in place. As with NCCL it is an integer: its fraction is cut off."""
        return total.detach().div_(self.size(), rounding_mode="trunc")

    def _in_place(
        self,
        tensors: list[torch.Tensor],
        start: Callable[[list[torch.Tensor]], Any],
        finish: Callable[[torch.Tensor], object] | None = None,
    ) -> Any:
        """Start an operation of gloo or NCCL on tensors, in place, and return its handle or result.

        gloo takes the first bytes of a tensor's memory for its values, whatever its strides are, and so reduces what
        lies between them. Therefore it gets a contiguous copy. `finish` is called with each tensor on the CPU
        afterwards.
        """
        plain = all(one.layout != torch.strided or one.device.type != "cpu" or one.is_contiguous() for one in tensors)
        if plain and finish is None:
            return start(tensors)
        wholes = tensors if plain else [one.detach().contiguous() for one in tensors]

        def complete() -> None:
            for one, whole in zip(tensors, wholes, strict=True):
                if finish is not None:
                    finish(whole)
                if not plain:
                    one.detach().copy_(whole)

        return self._follower.then(start(wholes), complete, tensors)

    # A group that is a Python class stores its own name and description: torch asks this object, not the C++ object.

    def _set_group_name(self, name: Any) -> None:
        self._name = name
        if hasattr(_distributed_c10d, "FlightRecorderHook"):  # since torch 2.15
            self._name_for_hooks()

    def _name_for_hooks(self) -> None:
        """Register a backend that only has a name. torch's hooks, in C++, ask the backends of a group that has devices
        for their names; the operations of this group never reach these backends.
        """

        class Named(_distributed_c10d.Backend):
            def getBackendName(self) -> str:
                return NAME

        kind = dist.ProcessGroup.BackendType.CUSTOM
        base: Any = super()
        base._register_backend(torch.device("cpu"), kind, Named(self.rank(), self.size()))
        base._set_default_backend(kind)
        base._set_group_name(self._name)

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

    def get_group_store(self) -> Any:
        """Return the store of the group."""
        return self._store

    def _get_sequence_number_for_group(self) -> int:
        return self.journal.begun

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing, since the numbers of all ranks begin at 0."""

    @property
    def supports_reconfigure(self) -> bool:
        """Whether the ranks of the group can be changed."""
        return False

    def shutdown(self) -> None:
        """Leave the job."""
        network, self.network = self.network, None
        if network is not None:
            network.close()
        self._follower.close(0.0)
        self._inner.shutdown()
        self._retire()

    def _retire(self) -> None:
        entries = self.journal.in_progress()
        retire(self._inner, [entry.work for entry in entries if entry.work is not None])

    def abort(self) -> None:
        """End operations in progress with an error, on all ranks; the group cannot be used any more.

        Operations over NCCL are aborted; gloo has no abort, and ends an operation when the other ranks go. Without
        operations in progress, this is `shutdown`.
        """
        aborted = AbortedError("the process group was aborted")
        if self.network is not None:
            self.network.abort(aborted)
        self._follower.end(aborted)
        self._inner.abort()
        self._retire()
        self._inner = _Ended()

    def __repr__(self) -> str:
        return f"InArtProcessGroup(rank={self.rank()}, size={self.size()})"


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


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([one.detach().reshape(-1) for one in tensors])


def _split(whole: torch.Tensor, tensors: Any, sizes: list[int] | None = None) -> list[torch.Tensor]:
    """Copy the elements along the last dimension of `whole` to the tensors in turn, and return the tensors.

    `sizes` is the number of elements along this dimension for each tensor (None: all of its elements).
    """
    parts = whole.split([one.numel() for one in tensors] if sizes is None else sizes, dim=-1)
    for one, part in zip(tensors, parts, strict=True):
        one.detach().copy_(part.reshape(one.shape))
    return list(tensors)


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


def _reduce_options(op: Any, given: Any) -> Any:
    return _options(dist.AllreduceOptions(), op, given)


def _scatter_options(op: Any, given: Any) -> Any:
    return _options(dist.ReduceScatterOptions(), op, given)


def _options(options: Any, op: Any, given: Any) -> Any:
    """Set the operator, and the timeout of the given options if they have one, and return the options."""
    options.reduceOp = op
    if (timeout := timeout_in((given,))) is not None:
        options.timeout = timeout
    return options


_FEW = {Collective(Kind.ALL_REDUCE, merge=merge): op for merge, op in TORCH_OPS.items()}

_KINDS = {
    "allgather": "ALLGATHER",
    "allgather_coalesced": "ALLGATHER_COALESCED",
    "allgather_into_tensor_coalesced": "ALLGATHER_INTO_TENSOR_COALESCED",
    "all_gather_single": "_ALLGATHER_BASE",
    "all_gather_single_coalesced": "ALLGATHER_INTO_TENSOR_COALESCED",
    "allreduce": "ALLREDUCE",
    "allreduce_coalesced": "ALLREDUCE_COALESCED",
    "alltoall": "ALLTOALL",
    "alltoall_base": "ALLTOALL_BASE",
    "all_to_all_single": "ALLTOALL_BASE",
    "barrier": "BARRIER",
    "broadcast": "BROADCAST",
    "gather": "GATHER",
    "gather_into_tensor": "GATHER",
    "gather_single": "GATHER",
    "reduce": "REDUCE",
    "reduce_scatter": "REDUCE_SCATTER",
    "reduce_scatter_single": "_REDUCE_SCATTER_BASE",
    "reduce_scatter_single_coalesced": "REDUCE_SCATTER_TENSOR_COALESCED",
    "reduce_scatter_tensor_coalesced": "REDUCE_SCATTER_TENSOR_COALESCED",
    "scatter": "SCATTER",
}
"""Maps the methods for collectives to their kinds."""

_BASE = {"BackendType", "rank", "size", "name", "bound_device_id", "boxed", "unbox", "_get_backend_name", "_id"}
_BASE |= {"_pybind11_conduit_v1_", "_register_backend", "_set_default_backend"}
"""The members that this class has from ProcessGroup itself. It takes all others from the group over gloo and NCCL."""

_REFUSED = {
    "get_reconfigure_handle": "cannot change its ranks",
    "reconfigure": "cannot change its ranks",
    "register_pre_hook": "calls no hooks, since those of gloo do not see operations in the network",
    "register_post_hook": "calls no hooks, since those of gloo do not see operations in the network",
}


def _refuse(name: str, why: str) -> Any:
    def method(self: InArtProcessGroup, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{name}: a process group of backend {NAME!r} {why}")

    method.__name__ = name
    method.__doc__ = f"Raise NotImplementedError: the group {why}."
    return method


def _delegate(name: str) -> Any:
    def method(self: InArtProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"As the `{name}` of gloo or NCCL."
    return method


def _numbered(name: str, method: Any) -> Any:
    kind = getattr(OpType, _KINDS[name], OpType.UNKNOWN)

    @functools.wraps(method)
    def call(self: InArtProcessGroup, *args: Any, **kwargs: Any) -> Any:
        return self._issue(kind, (*args, *kwargs.values()), lambda: method(self, *args, **kwargs))

    return call


def _complete(group: Any) -> None:
    """Add the members that a ProcessGroup of this version of torch has, each as gloo's or NCCL's group has it."""
    for name in {*dir(dist.ProcessGroup), *_KINDS} - _BASE:
        own, member = vars(group).get(name), getattr(dist.ProcessGroup, name, None)
        member = own if member is None else member  # Other versions of torch have another name for it.
        if isinstance(member, property) and own is None:
            setattr(group, name, property(lambda self, name=name: getattr(self._inner, name)))  # type: ignore[misc]
        if name.startswith("__") or not callable(member):
            continue
        if own is None:
            own = _refuse(name, _REFUSED[name]) if name in _REFUSED else _delegate(name)
        setattr(group, name, untraced(_numbered(name, own) if name in _KINDS else own))
    # Versions of torch before 2.12 use these names.
    group._allgather_base = group.all_gather_single
    group._reduce_scatter_base = group.reduce_scatter_single
    group.allgather_into_tensor_coalesced = group.all_gather_single_coalesced
    group.reduce_scatter_tensor_coalesced = group.reduce_scatter_single_coalesced


_complete(InArtProcessGroup)


def create(opts: Any, options: Any) -> InArtProcessGroup:
    """Return a new group; torch.distributed calls this. Raise TypeError for another backend's options, and ValueError
    for those that it cannot honour.
    """
    if options is not None and not isinstance(options, BackendOptions):
        raise TypeError(f"the options of backend {NAME!r} are worker_agent.backend.BackendOptions, not {options!r}")
    if getattr(opts, "enable_reconfigure", False):  # since torch 2.15
        raise ValueError(
            f"enable_reconfigure=True: a process group of backend {NAME!r} cannot change its ranks; leave it out, or "
            "use worker_agent.torch.torchft.ProcessGroupInArt with torchft"
        )
    return InArtProcessGroup(opts, options or BackendOptions())


def register() -> None:
    """Register "inart" with torch.distributed, which importing this module does. A second call does nothing."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])


register()
