"""The worker's C engine (native/worker/) as ctypes sees it: the structures that it shares with Python, and its
functions.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.native_build import ENGINES, Sources, engine_sources
from worker_agent.c_structures import Header
from worker_agent.io_options import IoConfig, NativeIoStats, PacketStats, assign
from worker_agent.native_engine import (
    KEY_BYTES,
    MESSAGE_BYTES,
    NATIVE,
    TEXT,
    Functions,
    load_engine,
    native_key,
    native_sources,
)
from worker_agent.tree_lanes import lanes_of

NAME_BYTES = 64
LAST_NUMBER = 2**32 - 1
"""The last sequence number of a chunk on the wire. The controller renews the epoch of a job long before."""


_HEADER = Header(
    NATIVE / "worker" / "worker.h",
    {"NAME_BYTES": NAME_BYTES, "MESSAGE_BYTES": MESSAGE_BYTES, "CHECK_KEY_BYTES": KEY_BYTES},
)


class NativeTreeConfig(ctypes.Structure):
    _fields_ = _HEADER.fields("inart_tree_config")


class NativeConfig(ctypes.Structure):
    _fields_ = _HEADER.fields("inart_worker_config", inart_tree_config=NativeTreeConfig)


class NativeRange(ctypes.Structure):
    _fields_ = _HEADER.fields("inart_part_range")


class NativeGathered(ctypes.Structure):
    _fields_ = Header(NATIVE / "gathered.h").fields("inart_gathered")


class NativeEncoding(ctypes.Structure):
    _fields_ = _HEADER.fields("inart_encoding", inart_gathered=NativeGathered)


class NativeCompletion(ctypes.Structure):
    _fields_ = _HEADER.fields("inart_completion")


class NativeTreeStats(ctypes.Structure):
    _fields_ = _HEADER.fields("inart_tree_stats")


class NativeStats(ctypes.Structure):
    _anonymous_ = ("packets",)
    _fields_ = _HEADER.fields("inart_worker_stats", inart_packet_stats=PacketStats)


SOURCES = engine_sources(NATIVE / "worker" / "worker.c", NATIVE)


def library(sources: Sources = SOURCES, options: Sequence[str] = ENGINES) -> ctypes.CDLL:
    """Return the compiled worker engine. Raise AgentError where it cannot be compiled.

    `sources` and `options` of the compiler can be given, for tests of other builds.
    """
    structures = (
        NativeTreeConfig,
        NativeConfig,
        IoConfig,
        NativeIoStats,
        NativeRange,
        NativeEncoding,
        NativeCompletion,
        NativeTreeStats,
        NativeStats,
    )
    return load_engine(sources, "inart_worker", structures, _functions(), options)


def _functions() -> Functions:
    """Return the engine's functions; the first argument of most is the engine."""
    engine, pointer, uint32, real = ctypes.c_void_p, ctypes.POINTER, ctypes.c_uint32, ctypes.c_double
    array = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, pointer(NativeEncoding)]
    parts = [uint32, uint32, pointer(uint32), pointer(NativeRange), pointer(ctypes.c_int32)]
    statistics = [pointer(NativeStats), pointer(NativeIoStats), pointer(uint32), pointer(NativeTreeStats), uint32]
    return {
        "create": (ctypes.c_void_p, [pointer(IoConfig), pointer(NativeConfig), *TEXT]),
        "destroy": (None, [engine]),
        "stop": (None, [engine]),
        "reconfigure": (ctypes.c_int, [engine, pointer(NativeConfig), ctypes.c_char_p, *TEXT]),
        "rerouted": (None, [engine, uint32, real, ctypes.c_int, ctypes.c_int, ctypes.c_int]),
        "abort": (None, [engine, ctypes.c_char_p]),
        "submit": (ctypes.c_int64, [engine, *array, ctypes.c_int, ctypes.c_int, ctypes.c_int, *parts, *TEXT]),
        "next_completion": (ctypes.c_int, [engine, real, pointer(NativeCompletion)]),
        "wait": (ctypes.c_int, [engine, ctypes.c_int64, real, pointer(NativeCompletion)]),
        "open": (None, [engine, pointer(uint32), pointer(ctypes.c_uint64), uint32]),
        "statistics": (None, [engine, *statistics]),
    }


def _check_own_trees(config: AgentConfig) -> None:
    """Check that the root on the worker's own host takes the worker's gradients directly; raise ValueError otherwise.

    They stay on the host (native/io.h, `enum io_reach`). A root that waits for them from a switch would never get them,
    and no chunk of the tree would ever be complete.
    """
    taken = {flow.label for tree in config.root_trees for flow in tree.flows if not flow.partial}
    for tree in config.worker_trees if config.both_roles else ():
        if tree.root == config.node and tree.up_label not in taken:
            raise ValueError(
                f"tree {tree.tree} has its root on {config.node} itself, which is to get its own gradients by way of a "
                "switch: such plans are made no more, so the job has to be replanned (inart replan)"
            )


def native_config(config: AgentConfig, threads: int, timeout: float) -> tuple[NativeConfig, Any]:
    """Return a worker's configuration in the engine's form, and the objects that must live as long as it is used.

    `timeout` is in seconds without progress, after which operations fail. Raise ValueError for a configuration that is
    not a worker's, or makes no sense.
    """
    if config.role != "worker":
        raise ValueError(f"{config.node} is configured as {config.role}, not as a worker")
    if not config.worker_trees:
        raise ValueError(f"the configuration of worker {config.node} has no trees")
    if any(not tree.share > 0 for tree in config.worker_trees):
        raise ValueError(f"the configuration of worker {config.node} has a tree without a share")
    if any(not tree.gather_speed >= 1 for tree in config.worker_trees):
        raise ValueError(f"the configuration of worker {config.node} has a gather_speed below 1")
    _check_own_trees(config)
    lanes = lanes_of(config.worker_trees)
    of = [config.worker_trees[lane.place] for lane in lanes]
    of_lanes = assign([(lane.port, tree.share / tree.lanes) for lane, tree in zip(lanes, of, strict=True)], threads)
    labels = [(ctypes.c_uint32 * len(tree.others_labels))(*tree.others_labels) for tree in config.worker_trees]
    trees = (NativeTreeConfig * len(lanes))(
        *(
            NativeTreeConfig(
                tree=tree.tree,
                up_label=tree.up_label,
                return_label=tree.return_label,
                answer_label=tree.answer_label,
                slots=tree.slots,
                port=lane.port,
                thread=thread,
                here=tree.root == config.node,
                link=tree.link,
                directions=tree.directions,
                lanes=tree.lanes,
                lane=lane.lane,
                rate_mbps=tree.rate_mbps / tree.lanes if math.isfinite(tree.rate_mbps) else 0.0,
                gather_speed=tree.gather_speed,
                others=len(tree.others_labels),
                others_labels=labels[lane.place],
                root=tree.root.encode()[: NAME_BYTES - 1],
            )
            for lane, tree, thread in zip(lanes, of, of_lanes, strict=True)
        )
    )
    sources = native_sources(config)
    native = NativeConfig(
        job=config.job_id,
        epoch=config.epoch,
        workers=len(config.workers),
        values=config.values_per_packet,
        trees=len(trees),
        index=config.index,
        key=native_key(config),
        sources=len(sources),
        source=sources,
        timeout_seconds=timeout,
        last_number=LAST_NUMBER,
        tree=trees,
    )
    return native, (trees, labels, sources)
