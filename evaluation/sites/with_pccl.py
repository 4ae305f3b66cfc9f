"""Process of an emulated site that trains with DiLoCo over PCCL (Keiblinger et al., 2025) instead of `inart.sites`.

PCCL is no part of this project and not installed with it: who has built it puts its package on PYTHONPATH. The site
does exactly the rounds of `overlay.sites.DiLoCo`: the same outer gradients, the same Nesterov step, the same interval.
Only the mean over the sites is PCCL's: its ring, with values quantised to 8 bits (its MinMax), or float32.
"""

from __future__ import annotations

import time
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from evaluation.sites.training import Clock, Data, Lesson, train_step
from overlay.sites.optimisers import Fragment
from topologies.zygote import Channel

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9
PORT = 48148  # PCCL's own; each site is in a network namespace of its own
CONNECT_ATTEMPTS = 60
GATHER_SECONDS = 0.1
MEAN_TAG = 1


def missing() -> str:
    """Return why PCCL cannot be used here, in words; empty: it can."""
    if find_spec("pccl") is None:
        return "the Python package of PCCL (pccl) cannot be imported: build it, and put it on PYTHONPATH"
    try:
        import_module("pccl")
    except Exception as error:  # its native library, or cffi, is missing or of another platform
        return f"the Python package of PCCL (pccl) is there, and cannot be loaded: {error}"
    return ""


class Master:
    """PCCL's coordinator, which runs in the background; address: HOST:PORT."""

    def __init__(self, address: str) -> None:
        self._node = import_module("pccl").MasterNode(address)
        self._node.run()


class Peers:
    """The sites, as PCCL connects them; bits: 8, or 32 for float32."""

    def __init__(self, master: str, sites: int, bits: int) -> None:
        self._pccl: Any = import_module("pccl")
        self._bits = bits
        self._communicator = self._pccl.Communicator(master, 0)
        self._communicator.connect(n_attempts=CONNECT_ATTEMPTS)
        while self._size() < sites:  # all that are connected do this together
            self._communicator.update_topology()
            time.sleep(GATHER_SECONDS)

    def _size(self) -> int:
        return int(self._communicator.get_attribute(self._pccl.Attribute.GLOBAL_WORLD_SIZE))

    def average(self, values: np.ndarray) -> None:
        """Replaces float32 values by their mean over all sites. Raises RuntimeError when PCCL says that it failed."""
        pccl = self._pccl
        options: dict[str, Any] = {"quantization_options": pccl.QuantizationOptions(
            quantized_datatype=pccl.DataType.UINT8, algorithm=pccl.QuantizationAlgorithm.MIN_MAX
        )} if self._bits == 8 else {}  # fmt: skip
        sent = torch.from_numpy(values.copy())
        handle = self._communicator.all_reduce_async(
            sent, torch.from_numpy(values), op=pccl.ReduceOp.AVG, tag=MEAN_TAG, **options
        )
        done, status, _ = handle.wait()
        if not done:
            raise RuntimeError(f"PCCL's all-reduce failed: {pccl._pccl.Result(status).name}")


def by_pccl(channel: Channel, *, master: str, sites: int, interface: str, site: int, lesson: dict[str, Any]) -> None:
    """DiLoCo over PCCL, until the process is ended. The first site has the master, too: peers reach each other at the
    addresses under which that sees them, and these have to be those of the emulated links."""
    torch.set_num_threads(1)
    given = Lesson(**lesson)
    data, model = Data(given, site), given.model()
    whole = Fragment(list(model.parameters()), [])
    masters = [Master(master)] if site == 0 else []  # referred to until the end
    peers = Peers(master, sites, given.bits)
    inner = torch.optim.AdamW(model.parameters(), lr=given.rate)
    clock = Clock(channel, interface)
    for step, sequences in enumerate(data.batches(), 1):
        train_step(model, inner, sequences, given.compute_s)
        if step % given.every:
            continue
        before = time.monotonic()
        mean = whole.gradient()
        peers.average(mean)
        whole.move(mean, OUTER_RATE, OUTER_MOMENTUM)
        whole.write()
        clock.waited(time.monotonic() - before)
        clock.say(step, data.test_loss(model))
    del masters
