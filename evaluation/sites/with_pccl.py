"""The process of an emulated site that trains with DiLoCo over PCCL (Keiblinger et al., 2025) instead of `inart.sites`.

PCCL is no part of this project and not installed with it: its package has to be built and put on PYTHONPATH. The site
does exactly the rounds of `overlay.sites.DiLoCo`: the same outer gradients, the same Nesterov step, the same interval.
Only the mean over the sites is PCCL's: its ring, with values quantised to 8 bits (its MinMax), or float32.
"""

from __future__ import annotations

import socket
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evaluation.sites.training import Clock, Data, Lesson, train_step
from overlay.sites.fragments import Fragment, tensors_of
from topologies.zygote import Channel

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9
PORT = 48148  # PCCL's own; each site is in a network namespace of its own
CONNECT_ATTEMPTS = 60
GATHER_SECONDS = 0.1
MEAN_TAG = 1
CONNECTIONS, ESTABLISHED = Path("/proc/net/tcp"), "01"


def missing() -> str:
    """Return why PCCL cannot be used, in words; empty where it can."""
    if find_spec("pccl") is None:
        return "the Python package of PCCL (pccl) cannot be imported: build it, and put it on PYTHONPATH"
    try:
        import_module("pccl")
    except Exception as error:  # its native library, or cffi, is missing or of another platform
        return f"the Python package of PCCL (pccl) is there, and cannot be loaded: {error}"
    return ""


class Master:
    """PCCL's coordinator, which runs in the background.

    Attributes:
        address: HOST:PORT.
    """

    def __init__(self, address: str) -> None:
        self._node = import_module("pccl").MasterNode(address)
        self._node.run()


class Peers:
    """The sites, as PCCL connects them. With up to 8 bits values have PCCL's 8 bits, with more they are float32."""

    def __init__(self, master: str, bits: int) -> None:
        self._pccl: Any = import_module("pccl")
        self._bits = bits
        self._communicator = self._pccl.Communicator(master, 0)
        self._communicator.connect(n_attempts=CONNECT_ATTEMPTS)

    def gather(self, sites: int) -> None:
        """Wait for the other sites: all that are connected do this together."""
        while self._size() < sites:
            self._communicator.update_topology()
            time.sleep(GATHER_SECONDS)

    def _size(self) -> int:
        return int(self._communicator.get_attribute(self._pccl.Attribute.GLOBAL_WORLD_SIZE))

    def average(self, values: np.ndarray) -> None:
        """Replace float32 values by their mean over all sites. Raise RuntimeError when PCCL reports that it failed."""
        pccl = self._pccl
        options: dict[str, Any] = {"quantization_options": pccl.QuantizationOptions(
            quantized_datatype=pccl.DataType.UINT8, algorithm=pccl.QuantizationAlgorithm.MIN_MAX
        )} if self._bits <= 8 else {}  # fmt: skip
        sent = torch.from_numpy(values.copy())
        handle = self._communicator.all_reduce_async(
            sent, torch.from_numpy(values), op=pccl.ReduceOp.AVG, tag=MEAN_TAG, **options
        )
        done, status, _ = handle.wait()
        if not done:
            raise RuntimeError(f"PCCL's all-reduce failed: {pccl._pccl.Result(status).name}")


def connected() -> list[str]:
    """Return the addresses (IPv4) to which this host has TCP connections."""
    found = set()
    for line in CONNECTIONS.read_text().splitlines()[1:]:
        _, _, remote, state, *_ = line.split()
        if state == ESTABLISHED:
            found.add(socket.inet_ntoa(bytes.fromhex(remote.split(":")[0])[::-1]))
    return sorted(found)


def by_pccl(channel: Channel, *, master: str, sites: int, interface: str, site: int, lesson: dict[str, Any]) -> None:
    """Train by DiLoCo over PCCL, until the process is ended. The first site runs the master, too: peers reach each
    other at the addresses under which the master sees them, which have to be those of the emulated links. A site joins
    when it is told to, and reports when it has, and which hosts are connected to it in the end: sites that join at once
    did not always connect.
    """
    torch.set_num_threads(1)
    given = Lesson(**lesson)
    data, model = Data(given, site), given.model()
    whole = Fragment([each for each in tensors_of(model).averaged if each.trained])
    masters = [Master(master)] if site == 0 else []  # kept, since the master ends with its object
    channel.receive()
    peers = Peers(master, given.bits)
    channel.send("joined")
    peers.gather(sites)
    channel.send({"peers": connected()})
    inner = torch.optim.AdamW(model.parameters(), lr=given.rate)
    clock = Clock(channel, interface)
    for step, sequences in enumerate(data.batches(), 1):
        train_step(model, inner, sequences, given.compute_s)
        if step % given.every:
            continue
        before = time.monotonic()
        change = whole.change(None)
        mean, _ = change.sent()
        peers.average(mean)
        whole.move(change.split(mean), OUTER_RATE, OUTER_MOMENTUM)
        whole.write()
        clock.waited(time.monotonic() - before)
        clock.say(step, data.test_loss(model))
    del masters
