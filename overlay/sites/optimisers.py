"""Optimisers for sites far apart: each site trains by itself, and only the change of its model travels, seldom and
small.

    outer = DiLoCo(model, group, every=100, bits=8)
    for batch in data:
        ...                                 # forward, backward, inner.step(), inner.zero_grad(), as ever
        outer.step(samples=len(batch))

All sites hold the same *outer parameters*. A round takes the difference between these and a site's own parameters (the
outer gradient), averages it over the sites, weighted by samples, and moves the outer parameters by it:

- `LocalSGD`: to the mean of the sites' parameters (Stich, 2019).
- `DiLoCo`: with Nesterov momentum (Douillard et al., 2023, Algorithm 1).
- `StreamingDiLoCo`: one fragment of the model at a time, while the site goes on training; the result is mixed in some
  steps later (Douillard et al., 2025, Algorithm 2).

NumPy computes the update in float32, product by product and sum by sum, so that sites with other processors get the
same bits. Floating-point buffers (BatchNorm's means) are averaged like parameters, without momentum.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from overlay.core.errors import Behind, OverlayError
from overlay.net.site_services import Bytes
from overlay.sites.group import FLOAT_BITS, Averaged, SiteGroup
from overlay.sites.pace import Pace
from overlay.sites.packing import Floats

STATE_VERSION = 1
_DONE, _FAILED = 0, 1


class Fragment:
    """Some of a model's tensors, as one array of float32: parameters first, then buffers.

    Attributes:
        outer: the outer values, which all sites share.
        momentum: momentum of the parameters.
        left: the part of this site's outer gradients that rounding has left out; each site has its own.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor]) -> None:
        self.tensors = [*parameters, *buffers]
        self.parameters = sum(tensor.numel() for tensor in parameters)
        self.values = self.parameters + sum(tensor.numel() for tensor in buffers)
        self._device = self.tensors[0].device
        on_gpu = self._device.type == "cuda"
        self.host = torch.empty(self.values, dtype=torch.float32, pin_memory=on_gpu)
        self._stream = torch.cuda.Stream(self._device) if on_gpu else None
        self.outer: Floats = self.read().copy()
        self.momentum: Floats = np.zeros(self.parameters, np.float32)
        self.left: Floats = np.zeros(self.values, np.float32)

    def read(self) -> Floats:
        """Return the tensors' present values, in memory that the next call uses again. From a GPU they are copied over
        pinned memory, on a stream of its own.
        """
        if self._stream is None:
            self._copy_out()
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                self._copy_out()
            self._stream.synchronize()
        return self.host.numpy()

    @torch.no_grad()
    def _copy_out(self) -> None:
        first = 0
        for tensor in self.tensors:
            part = self.host[first : first + tensor.numel()]
            part.copy_(tensor.detach().reshape(-1), non_blocking=True)
            first += tensor.numel()

    @torch.no_grad()
    def write(self, mixing: float = 0.0) -> None:
        """Give the tensors the outer values; `mixing` is the part of their own values that they keep."""
        if mixing:
            own = self.read()
            np.multiply(own, np.float32(mixing), out=own)
            own += self.outer * np.float32(1 - mixing)
        else:
            self.host.numpy()[:] = self.outer
        first = 0
        for tensor in self.tensors:
            tensor.copy_(self.host[first : first + tensor.numel()].view_as(tensor), non_blocking=True)
            first += tensor.numel()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # the next call writes this memory

    def gradient(self) -> Floats:
        """Return the outer gradient: outer minus own values, plus the part that rounding left out of the last one."""
        found: Floats = self.outer - self.read()
        found += self.left
        return found

    def move(self, mean: Floats, rate: float, momentum: float) -> None:
        """Move the outer values by the mean of the outer gradients: v = momentum v + g, then rate (g + momentum v)
        (Nesterov, as PyTorch's SGD has it). Buffers become the mean.
        """
        gradient = mean[: self.parameters]
        if momentum:
            np.multiply(self.momentum, np.float32(momentum), out=self.momentum)
            np.add(self.momentum, gradient, out=self.momentum)
            gradient = gradient + self.momentum * np.float32(momentum)
        self.outer[: self.parameters] -= gradient * np.float32(rate)
        self.outer[self.parameters :] -= mean[self.parameters :]


@dataclass
class _Pending:
    """A fragment's round that is under way.

    Attributes:
        due: the step after which its result is mixed in.
        future: done when the outer values have moved.
    """

    fragment: Fragment
    due: int
    future: Future[Averaged]


class StreamingDiLoCo:
    """Averages fragments of the model in turn, while training goes on.

    When the constructor returns, the model is that of the other sites: the state of the site that has done the most
    rounds, checked by digest.

    Args:
        model: on one device, all of it in this process (no FSDP); several processes of one site hold equal models
            (DDP).
        group: the group of `inart.sites.init()`; None in all processes of a site except its first, from which they
            get the results over torch.distributed.
        every: steps in which each fragment is averaged once.
        fragments: number of parts of about equal size into which the model is divided.
        delay: steps between the sending of a fragment and the mixing in of its mean; None for as few as rounds
            take, as measured, so that training does not wait for them (pace.py).
        mixing: the part of a site's own values that it keeps then (alpha; 0 for none).
        rate, momentum: learning rate and momentum of the outer optimiser.
        bits: bits in which a value travels: 32, or 16, 8, 4 with error feedback.
        checkpoint: the result of `state_dict`, from an earlier run.

    Attributes:
        last: the mean of the round that has changed the model last; without sites where this site was behind, and
            has taken the others' state.
    """

    def __init__(  # noqa: PLR0913  (options by keyword)
        self,
        model: nn.Module,
        group: SiteGroup | None,
        *,
        every: int = 100,
        fragments: int = 4,
        delay: int | None = 5,
        mixing: float = 0.5,
        rate: float = 0.4,
        momentum: float = 0.9,
        bits: int = 4,
        checkpoint: dict[str, Any] | None = None,
    ) -> None:
        if fragments < 1 or every < fragments:
            raise ValueError(f"every={every} steps are too few for {fragments} fragments: one a step at most")
        if (delay is not None and not 0 <= delay < every) or not 0 <= mixing < 1:
            raise ValueError(f"delay is from 0 to below every={every}, mixing from 0 to below 1, got {delay}, {mixing}")
        self._model, self._group = model, group
        self.every, self.delay, self.mixing = every, delay, mixing
        self.rate, self.momentum, self.bits = rate, momentum, bits
        self._world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        _check_processes(group, self._world)
        self.fragments = [Fragment(*part) for part in divided(model, fragments)]
        self.steps = self.round = 0
        self._shared_round = 0  # the state that all sites share is before this round; the model may be some behind
        self.samples = 0.0  # all so far; a fragment's weight is the difference since it was sent last
        self.last: Averaged | None = None
        self.pace, self._ended = Pace(fragments, every - 1), 0.0
        self._sent_samples = [0.0] * fragments
        self._pending: list[_Pending] = []
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="inart sites") if group is not None else None
        if checkpoint is not None:
            self._load_checkpoint(checkpoint)
        self._agree()

    # --- for training scripts ---

    def step(self, samples: float = 1.0) -> bool:
        """Count a step of the inner optimiser, after which this has to be called; send and mix in fragments where it is
        time. Return whether the model was changed. Raise OverlayError, at all processes of the site alike.

        Args:
            samples: number of samples on which this site has trained in the step (in all its processes): its weight.
        """
        if self._ended:
            self.pace.stepped(time.monotonic() - self._ended)
        self.steps += 1
        self.samples += samples
        changed = False
        interval = self.every // len(self.fragments)
        if self.steps % interval == 0:
            self._send()
        while self._pending and self._pending[0].due <= self.steps:
            self._finish()
            changed = True
        self._ended = time.monotonic()
        return changed

    def synchronise(self) -> None:
        """Average the next fragment now, and wait for the result (for the end of training, say). The outer values stay
        as they are if no site has trained since the fragment was averaged last.
        """
        self._drain()
        self._send()
        self._drain()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside the model's and the inner optimiser's own states. Rounds under way end
        first. All processes of a site call this.
        """
        self._drain()
        return {
            "version": STATE_VERSION, "round": self.round, "steps": self.steps, "samples": self.samples,
            "sent_samples": list(self._sent_samples),
            "outer": [torch.from_numpy(part.outer.copy()) for part in self.fragments],
            "momentum": [torch.from_numpy(part.momentum.copy()) for part in self.fragments],
            "left": [torch.from_numpy(part.left.copy()) for part in self.fragments],
            "model": [torch.from_numpy(part.read().copy()) for part in self.fragments],
        }  # fmt: skip

    def close(self) -> None:
        """End the rounds under way, and leave the group."""
        try:
            self._drain()
        finally:
            if self._worker is not None:
                self._worker.shutdown()
            if self._group is not None:
                self._group.close()

    # --- rounds ---

    def _send(self) -> None:
        """Begin the round of the next fragment."""
        index = (self.round + len(self._pending)) % len(self.fragments)
        fragment, round_ = self.fragments[index], self.round + len(self._pending)
        weight, self._sent_samples[index] = self.samples - self._sent_samples[index], self.samples
        future: Future[Averaged] = Future()
        if self._group is not None:
            assert self._worker is not None, "there is one where there is a group"
            future = self._worker.submit(self._average, fragment, fragment.gradient(), round_, weight, time.monotonic())
        self._pending.append(_Pending(fragment, self.steps + self._delay_now(), future))

    def _delay_now(self) -> int:
        """Return the delay of the round that is sent now, the same in all processes of the site."""
        if self.delay is not None:
            return self.delay
        planned = [self.pace.delay()]
        if self._world > 1:
            dist.broadcast_object_list(planned, src=0)
        return planned[0]

    def _average(self, fragment: Fragment, gradient: Floats, round_: int, weight: float, sent: float) -> Averaged:
        """Average a fragment, move the outer values, and offer the new state to sites that join. Runs in the worker's
        thread.
        """
        assert self._group is not None, "only the site's first process has a worker"
        found = self._group.average(gradient, round=round_, weight=weight, bits=self.bits)
        if any(found.weights):  # else no site has trained since the fragment was sent last: nothing is left to do
            if found.left is not None:
                fragment.left = found.left
            fragment.move(gradient, self.rate, self.momentum)
        self._shared_round = round_ + 1
        self._group.offer(self._state(), self._shared_round)
        self.pace.took(time.monotonic() - sent)
        return found

    def _finish(self) -> None:
        """Wait for the oldest round under way, and mix its result in."""
        pending = self._pending.pop(0)
        error: OverlayError | None = None
        tensors = pending.fragment.tensors
        if self._group is not None:
            try:
                self.last = pending.future.result()
                pending.fragment.write(self.mixing)
                self.round += 1
            except Behind as behind:
                error, tensors = self._catch_up(behind), [each for part in self.fragments for each in part.tensors]
            except OverlayError as failed:
                error = failed
        self._tell_site(tensors, error)

    def _catch_up(self, behind: Behind) -> OverlayError | None:
        """Take the state of the other sites, which have done more rounds, and give up the rounds under way. Return the
        error where that fails, else None.
        """
        for pending in self._pending:
            pending.future.exception()  # waits for its end: its round was done by the others, too
        self._pending.clear()
        self.last = Averaged((), (), None, 0.0)
        try:
            self._take_state()
        except OverlayError as error:
            return error
        return None

    def _drain(self) -> None:
        while self._pending:
            self._finish()

    # --- several processes of a site ---

    def _tell_site(self, tensors: Sequence[torch.Tensor], error: OverlayError | None) -> None:
        """Give the site's other processes these tensors and the round, or raise the error at all of them."""
        if self._world > 1:
            words = f"{type(error).__name__}: {error}" if error is not None else None
            last = None if self.last is None else replace(self.last, left=None)
            said: list[Any] = [(self.round, len(self._pending), len(tensors), words, last)]
            dist.broadcast_object_list(said, src=0)
            self.round, pending, count, words, self.last = said[0]
            del self._pending[pending:]  # the site has taken the others' state, and nothing is under way any more
            everything = [tensor for part in self.fragments for tensor in part.tensors]
            with torch.no_grad():
                for tensor in () if words is not None else everything if count == len(everything) else tensors:
                    dist.broadcast(tensor, src=0)
            if error is None and words is not None:
                raise OverlayError(words)
        if error is not None:
            raise error

    # --- the state that all sites share ---

    def _agree(self) -> None:
        """Make the model that of all sites, in this process and in the site's other processes."""
        error: OverlayError | None = None
        if self._group is not None:
            try:
                self._take_state()
            except OverlayError as failed:
                error = failed
        self._tell_site([tensor for part in self.fragments for tensor in part.tensors], error)

    def _take_state(self) -> None:
        assert self._group is not None, "only the site's first process takes states"
        own = self._state()
        state = self._group.agree(own, self._shared_round)
        if state.data is not own:
            self._load(state.data)
            for part in self.fragments:
                part.left[:] = 0
                part.write()
            self._sent_samples = [self.samples] * len(self.fragments)
            self.round = self._shared_round = state.round

    def _state(self) -> Bytes:
        """Return the state that all sites share, as bytes: a line of JSON, then outer values and momentum of each
        fragment.
        """
        head = {"version": STATE_VERSION, "bits": self.bits, "rate": self.rate,
                "momentum": self.momentum,
                "values": [[part.parameters, part.values] for part in self.fragments]}  # fmt: skip
        words = json.dumps(head).encode()
        words += b" " * (-(len(words) + 1) % 4) + b"\n"
        parts = [np.frombuffer(words, np.uint8)]
        for part in self.fragments:
            parts += [part.outer.view(np.uint8), part.momentum.view(np.uint8)]
        return np.concatenate(parts)

    def _load(self, data: Bytes) -> None:
        """Take the outer values and momentum of another site's state. Raise OverlayError when it is of another model or
        of other settings.
        """
        end = int(np.argmax(data == ord("\n"))) + 1
        own = self._state()
        own_head = own[: int(np.argmax(own == ord("\n"))) + 1].tobytes()
        if data[:end].tobytes() != own_head or data.size != own.size:
            raise OverlayError(
                "the other sites train another model, or with other settings: "
                f"{data[:end].tobytes().decode(errors='replace').strip()} there, {own_head.decode().strip()} here"
            )
        values, first = data[end:].view(np.float32), 0
        for part in self.fragments:
            for array in (part.outer, part.momentum):
                array[:] = values[first : first + array.size]
                first += array.size

    def _load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        sizes = [part.values for part in self.fragments]
        found = [part.numel() for part in checkpoint["outer"]]
        if found != sizes:
            raise OverlayError(f"the checkpoint is of fragments of {found} values, and this model has {sizes}")
        self.round = self._shared_round = int(checkpoint["round"])
        self.steps = int(checkpoint["steps"])
        self.samples, self._sent_samples = float(checkpoint["samples"]), list(checkpoint["sent_samples"])
        for index, part in enumerate(self.fragments):
            part.outer[:] = checkpoint["model"][index].numpy()
            part.write()
            for name in ("outer", "momentum", "left"):
                getattr(part, name)[:] = checkpoint[name][index].numpy()


class DiLoCo(StreamingDiLoCo):
    """Averages the whole model every so many steps, while no site trains (Douillard et al., 2023). The arguments are
    those of `StreamingDiLoCo`; `every` is the paper's H.
    """

    def __init__(
        self,
        model: nn.Module,
        group: SiteGroup | None,
        *,
        every: int = 100,
        rate: float = 0.7,
        momentum: float = 0.9,
        bits: int = 8,
        checkpoint: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            model, group, every=every, fragments=1, delay=0, mixing=0.0, rate=rate, momentum=momentum, bits=bits,
            checkpoint=checkpoint,
        )  # fmt: skip


class LocalSGD(StreamingDiLoCo):
    """Replaces the sites' models by their mean every so many steps (Stich, 2019). The arguments are those of
    `StreamingDiLoCo`.
    """

    def __init__(
        self,
        model: nn.Module,
        group: SiteGroup | None,
        *,
        every: int = 10,
        bits: int = FLOAT_BITS,
        checkpoint: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            model, group, every=every, fragments=1, delay=0, mixing=0.0, rate=1.0, momentum=0.0, bits=bits,
            checkpoint=checkpoint,
        )  # fmt: skip


def _check_processes(group: SiteGroup | None, known: int) -> None:
    """Check that a site's processes hear of each other's rounds; raise OverlayError otherwise.

    Args:
        group: the group of this process, or None.
        known: number of processes of this site that torch.distributed knows.
    """
    started = int(os.environ.get("WORLD_SIZE") or 1)
    if known == 1 and started > 1:
        raise OverlayError(
            f"torchrun has started {started} processes at this site, and they do not know each other: call "
            "torch.distributed.init_process_group() before, as DDP needs it"
        )
    if group is None and known == 1:
        raise OverlayError("this process is the only one of its site: it needs a group, of inart.sites.init()")


def divided(model: nn.Module, count: int) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Return the parameters and the floating-point buffers of each fragment, in the model's order. Raise OverlayError
    where the model cannot be divided so.
    """
    entries: list[tuple[torch.Tensor, bool]] = []
    for module in model.modules():
        entries += [(tensor, True) for tensor in module.parameters(recurse=False) if tensor.requires_grad]
        entries += [(tensor, False) for tensor in module.buffers(recurse=False) if tensor.is_floating_point()]
    entries = list(
        {id(tensor): (tensor, own) for tensor, own in entries}.values()
    )  # a tensor that modules share counts once
    if not any(own for _, own in entries):
        raise OverlayError("the model has no parameters to train")
    for tensor, _ in entries:
        if hasattr(tensor, "to_local") or tensor.device != entries[0][0].device:
            raise OverlayError("the model must be on one device, and whole in this process: no FSDP, no pipeline")
    total, done = sum(tensor.numel() for tensor, _ in entries), 0
    parts: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = [([], []) for _ in range(count)]
    for tensor, own in entries:
        part = parts[min(count - 1, count * (done + tensor.numel() // 2) // total)]
        part[0 if own else 1].append(tensor)
        done += tensor.numel()
    if not all(part[0] for part in parts):
        raise OverlayError(f"the model's tensors cannot be divided into {count} fragments: give fewer")
    return parts
