"""Reduces the gradients of FSDP2 between nodes in the network.

    mesh = init_device_mesh("cuda", (nodes, ranks_a_node), mesh_dim_names=("replicate", "shard"))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    state = InArtState(controller, process_group=mesh["replicate"].get_group())
    inart_fsdp(model, state)

FSDP2 gathers parameters and scatters gradients inside the node. Its result, a part of the gradients on each rank, is
averaged over the nodes by the hook: each rank's part with the same part on the other nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from worker_agent.torch.feedback import Piece
from worker_agent.torch.hook import InArtState

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


def inart_fsdp(model: nn.Module, state: InArtState) -> int:
    """Set the all-reduce hook of every FSDP2 module of `model` after `fully_shard`, and return their number.

    The hook waits for the network; work that is already queued on the device continues meanwhile.

    Args:
        model: the model.
        state: the state of the ranks that hold the same part, one per node.

    Raises:
        ValueError: there is no such module; a module has a mesh of two dimensions, whose own all-reduce would come
            before the hook; or the state's ranks also share a mesh.
        ImportError: this torch has no FSDP2.
    """
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:
        raise ImportError(f"FSDP2 came with torch 2.6, and this is {torch.__version__}") from None
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise ValueError("no module of the model is FSDP2's: call torch.distributed.fsdp.fully_shard first")
    others = set(dist.get_process_group_ranks(state.process_group)) - {dist.get_rank()}
    for module in modules:
        for mesh in _meshes(module):
            if mesh.ndim > 1:
                raise ValueError(
                    "a module is sharded over a mesh of two dimensions, so FSDP2 does its own all-reduce between the "
                    'nodes: give fully_shard mesh["shard"] alone, or keep the mesh and make it with '
                    'backend_override={"replicate": "inart"}, without this hook'
                )
            if others & set(mesh.mesh.flatten().tolist()):
                raise ValueError(
                    "the state's ranks are those that FSDP2 shards over: give it the ranks of the other nodes"
                )

    for module in modules:
        module.set_all_reduce_hook(reduce_of(module, state))
    return len(modules)


def gather_ahead(model: nn.Module, modules: int = 1) -> int:
    """Make FSDP2 gather the parameters of so many modules while those before them compute and scatter, and return how
    many modules are sharded.

    On CUDA it does so by itself. On the CPU it waits for each gather before it goes on, unless it is told which module
    comes next. Then a gather never runs beside a reduce-scatter, which a network with `gathers=1` carries at once.
    Modules must run in the order in which `model.modules()` has them. The parameters of so many more modules are in
    memory. Call this after `fully_shard`. Raise ValueError when no module is FSDP2's.
    """
    from torch.distributed.fsdp import FSDPModule

    sharded: list[FSDPModule] = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not sharded:
        raise ValueError("no module of the model is FSDP2's: call torch.distributed.fsdp.fully_shard first")
    backwards = [sharded[0], *reversed(sharded[1:])]  # The outermost one begins and ends the backward pass.
    for position, module in enumerate(sharded):
        module._set_unshard_async_op(True)
        module.set_modules_to_forward_prefetch(sharded[position + 1 : position + 1 + modules])
        before = backwards.index(module) + 1
        module.set_modules_to_backward_prefetch(backwards[before : before + modules])
    return len(sharded)


def reduce_of(module: FSDPModule, state: InArtState) -> Callable[[torch.Tensor], None]:
    """Return the hook of one module; the residuals of its part belong to the module."""

    def reduce(part: torch.Tensor) -> None:
        pieces = [Piece(module, 0, part.numel())] if state.keeps_errors(part) else []
        state.reduce_pieces(part, pieces).wait()

    return reduce


def _meshes(module: FSDPModule) -> list[dist.DeviceMesh]:
    """Return the meshes of the parameters that this module itself has sharded."""
    found = []
    for parameter in module.parameters(recurse=True):  # type: ignore[attr-defined]
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None and mesh not in found:
            found.append(mesh)
    return found
